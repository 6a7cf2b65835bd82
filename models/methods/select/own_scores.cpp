#include "models/methods/select/own_scores.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "models/methods/select/scored.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Scores of a layer are computed once for all its heads, for each (rule, granularity).
class OwnSelector final : public ScoredSelector {
 public:
  OwnSelector(const OwnMethod& method, const Params& params, std::uint64_t key,
              const SessionPlace& place)
      : ScoredSelector{nullptr, place}, method_{method}, params_{params}, key_{key} {}

  void learn_prompt(PromptScores& scores) override {
    LayerVectors single;  // only for heads without a layer
    if (!scores.knows_layer()) {
      single.layer = place().layer;
      single.n_layers = place().n_layers;
      single.heads.assign(scores.heads().begin(), scores.heads().end());
    }
    const LayerVectors& layer = scores.knows_layer() ? scores.layer() : single;
    const bool split = layer.heads.front().group > place().group;
    const PromptLayer prompt{.vectors = layer, .seed = place().seed, .per_query_head = split};
    const std::vector<double>& all = layer.memo->get(2 * key_ + (split ? 1 : 0), [&] {
      std::vector<double> found = method_.score(params_, prompt);
      KVSIM_CHECK(std::ssize(found) == prompt.stored_heads() * prompt.prompt(),
                  "{} scores of {} heads and {} tokens", found.size(), prompt.stored_heads(),
                  prompt.prompt());
      return found;
    });
    const std::int64_t head = !scores.knows_layer() ? 0
                              : split               ? place().first_query_head
                                                    : scores.first_head();
    const auto first = all.begin() + head * prompt.prompt();
    score_.assign(first, first + prompt.prompt());
  }

 private:
  const OwnMethod& method_;
  const Params& params_;
  std::uint64_t key_;
};

/// The size law is that of ScoredRule. Its scorer is not used, because it would score a single
/// head.
class OwnRule final : public ScoredRule {
 public:
  OwnRule(std::shared_ptr<const OwnMethod> method, Params params)
      : ScoredRule{nullptr}, method_{std::move(method)}, params_{std::move(params)}, key_{next()} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<OwnSelector>(*method_, params_, key_, place);
  }
  bool reads_layer() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs = method_->inputs;
    return needs;
  }
  /// The selection costs the same as for built-in scorers. The scores cost only the declared
  /// passes.
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    PrefillExtra extra{.written = s * 4.0 * shape.n_kv_heads, .launches = 1};
    if (const auto& passes = method_->passes) {
      const double row = shape.head_dim * bits_of(recorded) / 8.0;
      extra.read =
          s * row *
          ((passes->keys + passes->values) * shape.n_kv_heads + passes->queries * shape.n_heads);
      ++extra.launches;
    }
    return extra;
  }

 private:
  /// Returns a unique key, which distinguishes rules that share a layer. It does not affect
  /// results.
  static std::uint64_t next() {
    static std::atomic<std::uint64_t> made{0};
    return made++;
  }

  std::shared_ptr<const OwnMethod> method_;
  Params params_;
  std::uint64_t key_;
};

}  // namespace

std::shared_ptr<const SelectRule> own_rule(std::shared_ptr<const OwnMethod> method, Params params) {
  return std::make_shared<OwnRule>(std::move(method), std::move(params));
}

}  // namespace kvsim
