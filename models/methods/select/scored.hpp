#pragma once

// Selection by a score per (stored head, token): scorers, and the harness that keeps the highest
// scores.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/methods/axis_choice.hpp"

namespace kvsim {

/// Tokens of one stored head to be scored, in order of position.
struct ScoredTokens {
  const HeadVectors& head;                  // for its recorded queries
  std::span<const std::int32_t> positions;  // [n], ascending
  std::span<const float> keys, values;      // [n, d]: row i belongs to positions[i]
  std::int64_t first_query = 0;  // queries of positions first_query … tokens - 1 are available
  std::int64_t tokens = 0;       // length of the sequence so far
  std::int32_t kv_head = 0;      // index in its layer

  [[nodiscard]] std::size_t size() const { return positions.size(); }
};

/// Cost of scoring one stored head, excluding the attention rows, which the cost class covers.
struct ScoreCost {
  double flops = 0;
  double read = 0;  // bytes
  Bytes transient{0};
};

/// One score per token; higher scores are kept. Immutable, shared by all heads.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// Returns [n] scores; +infinity marks tokens that are always kept.
  [[nodiscard]] virtual std::vector<double> score(const ScoredTokens& tokens,
                                                  const SessionPlace& place) const = 0;
  /// Finite replacement of +infinity if scores are averaged; `highest` is the largest finite score.
  [[nodiscard]] virtual double forced_score(double highest) const { return highest; }
  /// True if scores are products or shares of attention, so that multiplying them by a factor is
  /// meaningful.
  [[nodiscard]] virtual bool non_negative() const = 0;
  [[nodiscard]] virtual MethodNeeds needs() const { return {}; }
  /// Number of past queries that it reads to score entries during decode.
  [[nodiscard]] virtual std::int32_t past_queries() const { return 0; }
  /// Bytes carried for these during decode, per stored head; by default the queries themselves.
  [[nodiscard]] virtual Bytes past_bytes(const HeadShape& shape) const {
    return bytes_of(static_cast<std::int64_t>(past_queries()) * shape.group * shape.head_dim,
                    shape.recorded);
  }
  /// Cost for `entries` entries and, if queries are read, `queries` queries.
  [[nodiscard]] virtual ScoreCost cost(double entries, double queries,
                                       const HeadShape& shape) const = 0;
};

// The scorers, one maker per file, and the parameters that each declares.
[[nodiscard]] std::shared_ptr<const Scorer> make_knorm(MethodResolver& resolver);
[[nodiscard]] std::shared_ptr<const Scorer> make_keydiff(MethodResolver& resolver);
[[nodiscard]] std::shared_ptr<const Scorer> make_expected_attention(MethodResolver& resolver);
[[nodiscard]] std::shared_ptr<const Scorer> make_lagkv(MethodResolver& resolver);
[[nodiscard]] std::shared_ptr<const Scorer> make_random(MethodResolver& resolver);
[[nodiscard]] std::shared_ptr<const Scorer> make_last_window(MethodResolver& resolver);
[[nodiscard]] std::vector<ParamInfo> expected_attention_params();
[[nodiscard]] std::vector<ParamInfo> lagkv_params();
[[nodiscard]] std::vector<ParamInfo> last_window_params();

/// Parameters of choices that wrap any scorer: `scorer` (its default is `preferred`), then the
/// parameters of each scorer.
[[nodiscard]] std::vector<ParamInfo> wrapped_scorer_params(const std::string& preferred);
/// Creates the scorer named by the parameter `scorer` if `entries` entries are kept. A window of
/// last queries is limited to `entries`.
[[nodiscard]] std::shared_ptr<const Scorer> make_wrapped_scorer(
    MethodResolver& resolver, std::int64_t entries, const std::string& param = "scorer");
/// The parameter `prompt_scorer`: a second scorer, for the prompt, with the parameters of
/// wrapped_scorer_params.
[[nodiscard]] ParamInfo prompt_scorer_param(const std::string& preferred);

/// The parameter `ratio` of the harness.
[[nodiscard]] ParamInfo ratio_param();
inline constexpr double kRatioRounding = 0x1p-51;  // quotient and difference err by 2^-53 together
/// Returns the ratio r for which int(whole * (1 - r)) is `kept`: 1 - kept / whole, or slightly less
/// if rounding would lose an entry.
[[nodiscard]] double ratio_keeping(std::int64_t kept, std::int64_t whole);
/// Returns the number of prompt entries to keep: the budget in entries, or int(prompt * (1 -
/// ratio)). Sets the method's budget, and the ratio if a budget is given. If the choice rounds,
/// `kept` and `rounded` return the entries left by a ratio and by a budget. Errors: refuses a
/// budget and a ratio that leave different numbers of entries, and a ratio that leaves no entry.
std::int64_t resolve_ratio(MethodResolver& resolver,
                           const std::function<std::int64_t(double)>& kept = {},
                           const std::function<std::int64_t(std::int64_t)>& rounded = {});

/// Scores the prompt of stored head `h` of `scores`.
[[nodiscard]] std::vector<double> score_prompt(const Scorer& scorer, PromptScores& scores,
                                               std::size_t h, const SessionPlace& place);
/// Replaces +infinity by the scorer's forced_score.
void make_finite(std::vector<double>& scores, const Scorer& scorer);
/// Returns the indices of the `count` highest scores, ascending; ties go to the older.
[[nodiscard]] std::vector<std::int32_t> highest(std::span<const double> scores, std::int64_t count);

/// The ratio harness (kvpress, ScorerPress): the prompt's highest scores are kept, and decode
/// appends.
class ScoredSelector : public Selector {
 public:
  ScoredSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place)
      : scorer_{std::move(scorer)}, place_{place} {}

  void learn_prompt(PromptScores& scores) override;
  double score(std::int32_t id) const override { return importance(id, id, true); }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override;
  void leaving(const EntryTable& /*entries*/, std::int32_t /*newest*/, std::int64_t /*room*/,
               std::vector<std::int32_t>& /*out*/) override {}

 protected:
  [[nodiscard]] const Scorer& scorer() const { return *scorer_; }
  [[nodiscard]] const SessionPlace& place() const { return place_; }

  std::vector<double> score_;  // [prompt]

 private:
  std::shared_ptr<const Scorer> scorer_;
  SessionPlace place_;
};

/// E = min(prompt, budget) + generated.
class ScoredRule : public SelectRule {
 public:
  explicit ScoredRule(std::shared_ptr<const Scorer> scorer) : scorer_{std::move(scorer)} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<ScoredSelector>(scorer_, place);
  }
  MethodNeeds needs() const override { return scorer_->needs(); }
  bool rerotates_once() const override { return true; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override;
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override;

 protected:
  [[nodiscard]] const std::shared_ptr<const Scorer>& scorer() const { return scorer_; }

 private:
  std::shared_ptr<const Scorer> scorer_;
};

/// Creates a choice of the select axis: one scorer in the harness.
[[nodiscard]] AxisChoice scored_choice(std::string_view name, std::vector<ParamInfo> params,
                                       MakeSelect make);
/// Completes the choice's maker after the scorer is created.
[[nodiscard]] std::shared_ptr<const SelectRule> make_scored(MethodResolver& resolver,
                                                            std::shared_ptr<const Scorer> scorer);

}  // namespace kvsim
