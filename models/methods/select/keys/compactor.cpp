// Compactor (Chari and Van Durme 2025, arXiv 2507.08143) as in kvpress, CompactorPress: outlier
// scores of keys plus attention within chunks.
//
//   score = blending z(leverage) + z(attention),   z: over all heads and tokens of the layer
//
// Both are computed without the first 8 and the last 4 tokens, which are always kept. z divides by
// the sample standard deviation, at least 1e-6. The default of `blending` is the removed share.

#include "models/methods/select/keys/compactor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct CompactorSettings {
  std::size_t first = 8, last = 4;  // tokens that are kept
  std::int64_t sketch = 48;
  std::int64_t chunk = 256;
  bool padded = false;
  double blending = 0;
  double width = 0;  // width of a hidden state
};

using HeadScores = std::vector<std::vector<double>>;  // by head, by token

void standardize(HeadScores& heads) {
  constexpr double kMinDeviation = 1e-6;
  double n = 0;
  double mean = 0;
  for (const auto& head : heads) {
    for (const double x : head) mean += x;
    n += static_cast<double>(head.size());
  }
  mean /= n;
  double squares = 0;
  for (const auto& head : heads) {
    for (const double x : head) squares += (x - mean) * (x - mean);
  }
  const double deviation =
      n > 1 ? std::max(std::sqrt(squares / (n - 1)), kMinDeviation) : kMinDeviation;
  for (auto& head : heads) {
    for (double& x : head) x = (x - mean) / deviation;
  }
}

/// Scores of a layer's prompt, computed on first use.
class LayerScores {
 public:
  const std::vector<double>& of_head(const PromptScores& scores, const CompactorSettings& set,
                                     const SessionPlace& place) {
    if (all_.empty()) compute(scores, set, place);
    return all_.at(scores.knows_layer() ? static_cast<std::size_t>(scores.first_head()) : 0);
  }

 private:
  /// Computes the scores of all heads of the layer, or of the given heads without a layer.
  void compute(const PromptScores& scores, const CompactorSettings& set,
               const SessionPlace& place) {
    const std::span<const HeadVectors> heads =
        scores.knows_layer() ? std::span<const HeadVectors>{scores.layer().heads} : scores.heads();
    const auto n = static_cast<std::size_t>(heads.front().prompt);
    const std::size_t first = std::min(set.first, n);
    const std::size_t inner = n - first - std::min(set.last, n - first);
    all_.assign(heads.size(), std::vector<double>(n, std::numeric_limits<double>::infinity()));
    if (inner == 0) return;
    std::vector<std::int32_t> positions(inner);
    for (std::size_t i = 0; i < inner; ++i) positions[i] = static_cast<std::int32_t>(first + i);
    HeadScores leverage, attention;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto d = static_cast<std::size_t>(heads[h].head_dim);
      const ScoredTokens tokens{.head = heads[h],
                                .positions = positions,
                                .keys = heads[h].keys.subspan(first * d, inner * d),
                                .values = heads[h].values.subspan(first * d, inner * d),
                                .first_query = 0,
                                .tokens = heads[h].prompt,
                                .kv_head = static_cast<std::int32_t>(h)};
      leverage.push_back(leverage_scores(tokens, place, set.sketch));
      attention.push_back(non_causal_scores(tokens, set.chunk, set.padded));
    }
    standardize(leverage);
    standardize(attention);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (std::size_t i = 0; i < inner; ++i) {
        all_[h][first + i] = set.blending * leverage[h][i] + attention[h][i];
      }
    }
  }
  HeadScores all_;
};

/// Provides only the cost, because scores require the whole layer.
class CompactorCost final : public Scorer {
 public:
  explicit CompactorCost(const CompactorSettings& settings) : set_{settings} {}
  std::vector<double> score(const ScoredTokens& tokens, const SessionPlace& place) const override {
    LayerScores scores;
    PromptScores one{tokens.head};
    return scores.of_head(one, set_, place);
  }
  bool non_negative() const override { return false; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    const ScoreCost a = leverage_cost(entries, set_.sketch, set_.width, shape);
    const ScoreCost b = non_causal_cost(entries, set_.chunk, set_.width, shape);
    return {.flops = a.flops + b.flops + 8 * entries,
            .read = a.read + b.read,
            .transient = std::max(a.transient, b.transient)};
  }

 private:
  CompactorSettings set_;
};

class CompactorSelector final : public ScoredSelector {
 public:
  CompactorSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                    const CompactorSettings& settings, std::shared_ptr<LayerScores> layer)
      : ScoredSelector{std::move(scorer), place}, set_{settings}, layer_{std::move(layer)} {}

  void learn_prompt(PromptScores& scores) override {
    score_ = layer_->of_head(scores, set_, place());
  }

 private:
  CompactorSettings set_;
  std::shared_ptr<LayerScores> layer_;
};

class CompactorRule final : public ScoredRule {
 public:
  explicit CompactorRule(const CompactorSettings& settings)
      : ScoredRule{std::make_shared<CompactorCost>(settings)}, set_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::move(start_heads({&place, 1}).front());
  }
  std::vector<std::unique_ptr<Selector>> start_heads(
      std::span<const SessionPlace> places) const override {
    const auto layer = std::make_shared<LayerScores>();
    std::vector<std::unique_ptr<Selector>> all;
    for (const SessionPlace& place : places) {
      all.push_back(std::make_unique<CompactorSelector>(scorer(), place, set_, layer));
    }
    return all;
  }
  bool needs_layer() const override { return true; }

 private:
  CompactorSettings set_;
};

std::shared_ptr<const SelectRule> resolve_compactor(MethodResolver& resolver) {
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("its attention is a mean over a KV head's group: expected granularity=kv_head");
  }
  if (resolver.choice("budget") != "uniform") {
    resolver.refuse("it normalises scores over the heads of a layer: expected budget=uniform");
  }
  resolve_ratio(resolver);
  double blending = resolver.number("blending");
  if (blending < 0) {
    blending = resolver.number("ratio");
    resolver.resolve("blending", blending);
  }
  return std::make_shared<CompactorRule>(
      CompactorSettings{.first = static_cast<std::size_t>(resolver.integer("sink_size_start")),
                        .last = static_cast<std::size_t>(resolver.integer("sink_size_end")),
                        .sketch = resolver.integer("sketch"),
                        .chunk = resolver.integer("chunk"),
                        .padded = resolver.word("padding") == "zeros",
                        .blending = blending,
                        .width = hidden_width(resolver)});
}

}  // namespace

double hidden_width(const MethodResolver& resolver) {
  const MethodContext& site = resolver.site();
  return site.d_model > 0 ? site.d_model
                          : static_cast<double>(site.shape.n_heads) * site.shape.head_dim;
}

AxisChoice select_compactor() {
  const std::string source = "kvpress, CompactorPress";
  return scored_choice(
      "compactor",
      {number_param("blending", "lambda", -1, -1, 1e6, "a number >= 0, or -1 for the ratio",
                    "weight of leverage scores against attention", source),
       integer_param("sink_size_start", "", 8, 0, kManyEntries, "an integer >= 0",
                     "first tokens that are kept", source),
       integer_param("sink_size_end", "", 4, 0, kManyEntries, "an integer >= 0",
                     "last tokens that are kept", source),
       sketch_param(), chunk_param(), padding_param()},
      &resolve_compactor);
}

}  // namespace kvsim
