// CacheBlend (Yao et al. 2025): a prompt of chunks whose rows were computed separately and are
// loaded from host memory. Source: LMCache, lmcache/v1/compute/blend/blender.py (01d29c23): layers
// before the check layer compute all tokens. The check layer chooses the tokens whose keys differ
// most from the reused keys. Starting there, only these are computed, over the rows of all tokens.

#include "models/methods/prefill/blend.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill/prefill.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class BlendRule final : public PrefillRule {
 public:
  BlendRule(double share, std::int32_t check_layer) : share_{share}, check_layer_{check_layer} {}

  std::unique_ptr<PrefillPattern> start(const PrefillHead& /*head*/) const override {
    return nullptr;
  }
  PromptPart part(std::int32_t layer) const override {
    return {.computed = layer < check_layer_ ? 1 : share_,
            .attended = 1,
            .reused = true,
            .chooses = layer == check_layer_ && share_ < 1};
  }
  std::int32_t layer_kind(std::int32_t layer) const override {
    return layer < check_layer_ ? 0 : layer == check_layer_ ? 1 : 2;
  }
  double choice_flops(std::int64_t /*prompt*/, std::int32_t /*head_dim*/) const override {
    return 0;
  }
  double pairs_share(std::int64_t /*prompt*/) const override { return 1; }
  std::int32_t launches() const override { return 0; }

  std::optional<std::int32_t> check_layer() const override { return check_layer_; }
  std::vector<std::int32_t> computed_tokens(std::span<const double> differences) const override {
    const std::vector<std::int64_t> order = by_falling(differences);
    // May be 0, unlike PromptPart::computed_of: a share of 0 is plain reuse.
    const auto count = static_cast<std::ptrdiff_t>(
        share_ * static_cast<double>(differences.size()) + kShareRounding);
    std::vector<std::int32_t> chosen(order.begin(), order.begin() + count);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  double share_;
  std::int32_t check_layer_;
};

std::shared_ptr<const PrefillRule> make_blend(MethodResolver& resolver) {
  for (const auto& [axis, wanted] : {std::pair{"select", "all"}, std::pair{"share", "none"},
                                     std::pair{"tier", "none"}, std::pair{"read", "all"}}) {
    if (resolver.choice(axis) == wanted) continue;
    resolver.refuse(
        fmt::format("prefill=blend loads rows of whole chunks and recomputes part of them: "
                    "expected {}={}, got {}={}",
                    axis, wanted, axis, resolver.choice(axis)));
  }
  const std::int64_t check = resolver.integer("check_layer");
  const std::int32_t layers = resolver.n_layers();
  if (check >= layers) {
    resolver.refuse(fmt::format("check_layer: expected 0 to {}, the layers of the model, got {}",
                                layers - 1, check));
  }
  return std::make_shared<BlendRule>(resolver.number("recompute_ratio"),
                                     static_cast<std::int32_t>(check));
}

}  // namespace

std::vector<double> key_differences(std::span<const float> keys, std::span<const float> reused,
                                    std::int64_t tokens, std::int32_t head_dim,
                                    std::int64_t prompt) {
  KVSIM_CHECK(keys.size() == reused.size(), "{} and {} keys", keys.size(), reused.size());
  const auto d = static_cast<std::size_t>(head_dim);
  const std::size_t head = static_cast<std::size_t>(tokens) * d;
  std::vector<double> out(static_cast<std::size_t>(prompt));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t token = i % head / d;
    if (token >= out.size()) continue;
    const double difference = static_cast<double>(keys[i]) - static_cast<double>(reused[i]);
    out[token] += difference * difference;
  }
  return out;
}

AxisChoice prefill_blend() {
  return {
      .axis = "prefill",
      .name = "blend",
      .params = {number_param("recompute_ratio", "r", 0.15, 0, 1, "[0, 1]",
                              "share of the prompt's tokens that are recomputed",
                              "the paper: 0.15; LMCache: blend_recompute_ratios"),
                 integer_param(
                     "check_layer", "", 1, 0, 4096, "a layer of the model",
                     "the layer whose keys decide which tokens; earlier layers compute all tokens",
                     "LMCache: blend_check_layers, 1")},
      .make = &make_blend,
      .takes_budget = false};
}

}  // namespace kvsim
