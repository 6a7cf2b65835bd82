// Skip-softmax (BLASST): tiles whose logits are all far below their rows' running maxima skip
// exponentials and values. Source: TensorRT-LLM docs/source/features/sparse-attention.md
// (06e777cb); NVIDIA ModelOpt, flash_skip_softmax. Tiles are processed from left to right; the
// running maximum includes the tile.

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attention/causal_attention.hpp"
#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill/prefill.hpp"

namespace kvsim {
namespace {

class SkipSoftmaxRule final : public PrefillRule {
 public:
  SkipSoftmaxRule(double pairs, std::int64_t tile, double factor)
      : pairs_{pairs}, tile_{tile}, factor_{factor} {}

  std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const override {
    auto pattern = std::make_unique<TilePattern>(head.prompt, tile_);
    const double min = factor_ > 0 ? std::log(factor_ / static_cast<double>(head.prompt))
                                   : -std::numeric_limits<double>::infinity();
    each_causal_row(head.q, head.keys, 1, head.head_dim, head.prompt, head.prompt, 0, head.scale,
                    [&](const CausalRow& row) {
                      double max = -std::numeric_limits<double>::infinity();
                      const std::int64_t block = row.t / tile_;
                      for (std::int64_t column = 0; column <= block; ++column) {
                        const auto from = row.logits.begin() + column * tile_;
                        const auto to =
                            row.logits.begin() + std::min((column + 1) * tile_, row.t + 1);
                        const double own = *std::max_element(from, to);
                        max = std::max(max, own);
                        // A tile with the maximum of its row so far, such as the first tile, is
                        // never skipped.
                        if (own == max || own - max > min) pattern->add(block, column);
                      }
                    });
    return pattern;
  }
  /// Attention already computes the maxima.
  double choice_flops(std::int64_t /*prompt*/, std::int32_t /*head_dim*/) const override {
    return 0;
  }
  bool computes_logits() const override { return true; }
  double pairs_share(std::int64_t /*prompt*/) const override { return pairs_; }
  std::int32_t launches() const override { return 0; }

 private:
  double pairs_;
  std::int64_t tile_;
  double factor_;
};

std::shared_ptr<const PrefillRule> make_skip_softmax(MethodResolver& resolver) {
  return std::make_shared<SkipSoftmaxRule>(resolver.number("pairs"), resolver.integer("tile"),
                                           resolver.number("skip_factor"));
}

}  // namespace

AxisChoice prefill_skip_softmax() {
  return {.axis = "prefill",
          .name = "skip-softmax",
          .params = {integer_param("tile", "", 128, 1, 65536, ">= 1", "queries and keys of a tile",
                                   "TensorRT-LLM: 128 x 128"),
                     number_param("skip_factor", "", 1000, 0, 1e9, ">= 0",
                                  "a tile is skipped if all of its logits are below the running "
                                  "maximum by log(prompt / factor); 0: never",
                                  "TensorRT-LLM's example: 1000 at prefill"),
                     pairs_param()},
          .make = &make_skip_softmax,
          .takes_budget = false};
}

}  // namespace kvsim
