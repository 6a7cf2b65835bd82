// XAttention (Xu et al. 2025): blocks selected by sums of antidiagonals. Source:
// mit-han-lab/x-attention, xattn/src/Xattention.py and utils.py, find_blocks_chunked (3185fb2).
// Rows of `stride` tokens are concatenated, queries in reverse order; their softmax is summed per
// block. A row of blocks keeps the first and the diagonal block, then the largest blocks until
// their sum reaches the threshold.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill/prefill.hpp"

namespace kvsim {
namespace {

class XAttentionRule final : public PrefillRule {
 public:
  XAttentionRule(double pairs, std::int64_t block, std::int64_t stride, double threshold)
      : pairs_{pairs}, block_{block}, stride_{stride}, threshold_{threshold} {}

  std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const override {
    auto pattern = std::make_unique<TilePattern>(head.prompt, block_);
    if (threshold_ >= 1) {
      pattern->add_all();
      return pattern;
    }
    const std::int64_t rows = (head.prompt + stride_ - 1) / stride_;  // coarse rows
    const std::int64_t per_block = block_ / stride_;
    std::vector<double> logits(static_cast<std::size_t>(rows));
    std::vector<double> sums(static_cast<std::size_t>(pattern->blocks()));
    for (std::int64_t i = 0; i < rows; ++i) {
      if (i % per_block == 0) std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t j = 0; j <= i; ++j) {
        logits[static_cast<std::size_t>(j)] = logit(head, i, j);
      }
      const auto seen = std::span{logits}.first(static_cast<std::size_t>(i + 1));
      softmax(seen);
      for (std::int64_t j = 0; j <= i; ++j) {
        sums[static_cast<std::size_t>(j / per_block)] += logits[static_cast<std::size_t>(j)];
      }
      if ((i + 1) % per_block == 0 || i + 1 == rows) choose(*pattern, i / per_block, sums);
    }
    return pattern;
  }
  /// Coarse QK^T: 1 / stride of the pairs' products, and a softmax and sum of the coarse pairs.
  double choice_flops(std::int64_t prompt, std::int32_t head_dim) const override {
    const auto n = static_cast<double>(prompt);
    const auto s = static_cast<double>(stride_);
    const double pairs = n * (n + 1) / 2;
    constexpr double kSoftmax = 5;  // maximum, difference, exponential, sum, division
    return pairs * 2 * head_dim / s + pairs / (s * s) * (kSoftmax + 1);
  }
  double pairs_share(std::int64_t /*prompt*/) const override { return pairs_; }
  std::int32_t launches() const override { return 3; }  // product, softmax with sums, choice

 private:
  /// Tokens after the prompt's end are zeros.
  [[nodiscard]] double logit(const PrefillHead& head, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t k = 0; k < stride_; ++k) {
      const std::int64_t query = i * stride_ + stride_ - 1 - k;
      const std::int64_t key = j * stride_ + k;
      if (query >= head.prompt || key >= head.prompt) continue;
      const std::span<const float> q = head.query(query);
      const std::span<const float> of_key = head.key(key);
      float product = 0;
      for (std::size_t c = 0; c < q.size(); ++c) product += q[c] * of_key[c];
      sum += static_cast<double>(product);
    }
    return sum * head.scale / static_cast<double>(stride_);
  }
  void choose(TilePattern& pattern, std::int64_t row, std::span<const double> sums) const {
    std::vector<double> others(sums.begin(), sums.begin() + row + 1);
    double wanted = 0;
    for (const double x : others) wanted += threshold_ * x;
    double have = 0;
    for (const std::int64_t column : {std::int64_t{0}, row}) {
      if (pattern.has(row, column)) continue;
      pattern.add(row, column);
      have += others[static_cast<std::size_t>(column)];
      others[static_cast<std::size_t>(column)] = -1;
    }
    for (const std::int64_t column : by_falling(others)) {
      const double sum = others[static_cast<std::size_t>(column)];
      if (have >= wanted || sum < 0) break;
      pattern.add(row, column);
      have += sum;
    }
  }

  double pairs_;
  std::int64_t block_, stride_;
  double threshold_;
};

std::shared_ptr<const PrefillRule> make_xattention(MethodResolver& resolver) {
  const std::int64_t block = resolver.integer("tile"), stride = resolver.integer("stride");
  if (block % stride != 0) {
    resolver.refuse(fmt::format("stride: expected a divisor of tile ({}), got {}", block, stride));
  }
  return std::make_shared<XAttentionRule>(resolver.number("pairs"), block, stride,
                                          resolver.number("threshold"));
}

}  // namespace

AxisChoice prefill_xattention() {
  return {.axis = "prefill",
          .name = "xattention",
          .params = {integer_param("tile", "", 128, 1, 65536, ">= 1", "tokens of a block",
                                   "x-attention: 128"),
                     integer_param("stride", "S", 16, 1, 65536, "a divisor of tile",
                                   "tokens whose rows are concatenated", "the paper: 8 or 16"),
                     number_param("threshold", "", 0.9, 0, 1, "[0, 1]",
                                  "share of a row of blocks that is kept, by the estimate",
                                  "the paper: 0.9"),
                     pairs_param()},
          .make = &make_xattention,
          .takes_budget = false};
}

}  // namespace kvsim
