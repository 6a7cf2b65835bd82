// Oracles: the importance of each prompt token for repeating the prompt. Kim et al., "KVzip", and
// the KVzip+ score that KVzap's surrogates are trained on. Scored once, after prefill; decode does
// not evict.

#include <cmath>
#include <cstdlib>
#include <limits>

#include <fmt/format.h>

#include "models/methods/learn/oracle.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct RepeatSettings {
  OracleSettings oracle;
  std::string recorded;  // "score.NAME" to read instead of scoring; empty: compute the scores
  bool protect = true;   // always keep sinks and tokens before the first repeated token
};

class RepeatSelector final : public Selector {
 public:
  explicit RepeatSelector(const RepeatSettings& settings) : settings_{settings} {}

  void learn_prompt(PromptScores& scores) override {
    score_ = settings_.recorded.empty() ? oracle_scores(scores, settings_.oracle)
                                        : recorded_scores(scores, settings_.recorded);
    const auto sinks = settings_.oracle.sinks;
    if (!settings_.protect && std::isnan(score_.front())) {
      // As in kvpress: a prefix token scores 1 if it is a sink, otherwise 0.
      score_.front() = sinks > 0 ? 1.0 : 0.0;
    }
  }
  double score(std::int32_t id) const override {
    const auto at = static_cast<std::size_t>(id);
    return at < score_.size() && !std::isnan(score_[at]) ? score_[at] : 0.0;
  }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    const auto at = static_cast<std::size_t>(id);
    const bool sink = settings_.protect && id < settings_.oracle.sinks;
    return sink || at >= score_.size() || std::isnan(score_[at]) ? kInfinity : score_[at];
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    if (allotted.entries < 1) return {};  // a head may become empty
    return Selector::plan(prompt, allotted);
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t /*newest*/, std::int64_t /*room*/,
               std::vector<std::int32_t>& /*out*/) override {}

 private:
  RepeatSettings settings_;
  std::vector<double> score_;  // by position; NaN: no score
};

class RepeatRule final : public SelectRule {
 public:
  RepeatRule(RepeatSettings settings, std::int32_t d_model)
      : settings_{std::move(settings)}, d_model_{d_model} {}

  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<RepeatSelector>(settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    if (settings_.recorded.empty()) {
      needs.inputs = oracle_inputs(settings_.oracle);
    } else {
      needs.inputs.per_head = {settings_.recorded};
    }
    return needs;
  }
  // The repeat attends over the whole cache, so entries cannot be dropped before it ends.
  PrefillPeak prefill_peak() const override { return PrefillPeak::kAllLayers; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    return std::min(budget, prompt) + (tokens - prompt);
  }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    return oracle_cost(settings_.oracle, shape, d_model_, prompt);
  }

 private:
  RepeatSettings settings_;
  std::int32_t d_model_;
};

template <bool kPlus>
std::shared_ptr<const SelectRule> resolve_repeat(MethodResolver& resolver) {
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("its scores are per KV head: expected granularity=kv_head");
  }
  const auto s = static_cast<double>(resolver.prompt());
  // Global budgets cut one ranking of all heads at the ratio; `entries` is the mean per head,
  // rounded down. Otherwise each head drops int(s * ratio) entries.
  const bool is_global = resolver.choice("budget") == "global";
  const auto entries_at = [&](double ratio) {
    constexpr double kRounding = 1e-9;
    const double lost = is_global ? std::ceil(s * ratio - kRounding) : s * ratio;
    return std::max<std::int64_t>(resolver.prompt() - static_cast<std::int64_t>(lost), 1);
  };
  if (resolver.budget()) {
    const Budget& budget = *resolver.budget();
    const std::int64_t entries = resolver.entries_of(budget);
    if (resolver.given("ratio")) {
      const std::int64_t left = entries_at(resolver.number("ratio"));
      // A mean may be rounded to the adjacent number.
      const std::int64_t apart = std::abs(left - std::min(entries, resolver.prompt()));
      if (apart > (is_global ? 1 : 0)) {
        resolver.refuse(
            fmt::format("budget and ratio are both given; one follows from the other, and the "
                        "budget leaves {} entries, the ratio {}",
                        entries, left));
      }
    }
    resolver.set_entries(entries);
    double ratio = std::max(1.0 - static_cast<double>(entries) / s, 0.0);
    if (is_global && budget.fraction > 0) {  // not rounded to whole entries per head
      const double bits = resolver.store().bits_per_element(
          std::max(resolver.site().shape.head_dim, 1), resolver.site().recorded);
      double kept = budget.fraction;
      if (bits != bits_of(resolver.site().recorded)) {
        kept *= bits_of(resolver.site().recorded) / bits;
      }
      ratio = std::max(1.0 - kept, 0.0);
    } else if (entries_at(ratio) > entries) {
      ratio += kRatioRounding;
    }
    if (!resolver.given("ratio")) resolver.resolve("ratio", ratio);
  } else {
    resolver.set_entries(entries_at(resolver.number("ratio")));
  }
  RepeatSettings settings;
  settings.oracle.plus = kPlus;
  settings.oracle.chunk = resolver.integer("chunk");
  settings.oracle.sinks = resolver.integer("n_sink");
  settings.oracle.carry_over = resolver.integer("carry_over");
  settings.protect = resolver.flag("protect_prefix");
  if constexpr (kPlus) {
    // Stored scores are used unchanged.
    settings.oracle.residual_norm =
        resolver.word("kvzip_source") != "trace" && resolver.word("kvzip_plus_norm") == "residual";
  }
  if (resolver.word("kvzip_source") == "trace") {
    settings.recorded = kPlus ? "score.kvzip_plus" : "score.kvzip";
  }
  return std::make_shared<RepeatRule>(std::move(settings), resolver.site().d_model);
}

std::vector<ParamInfo> shared_params() {
  return {
      number_param("ratio", "rho", 0.7, 0, 1, "a number in [0, 1]",
                   "share of the prompt's (layer, KV head, token) entries removed",
                   "KVzip's official example keeps 0.3; kvpress removes 0.0 by default"),
      integer_param("chunk", "m", 2048, 1, kManyEntries, "an integer >= 1",
                    "prompt tokens that are scored against their own repeat at once",
                    "kvpress; 2000 in KVzip's official code"),
      integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                    "first tokens that are in every chunk's softmax and are kept",
                    "kvpress; the official code keeps the system prompt", {"sinks"}),
      integer_param("carry_over", "", 8, 0, kManyEntries, "an integer >= 0",
                    "tokens fed before each chunk in the repeat: its instruction and the end of "
                    "the previous chunk; costs only, as repeats in traces do not contain them",
                    "KVzip: the last 8 tokens of the previous chunk"),
      flag_param("protect_prefix", true,
                 "sinks and tokens before the first repeated one are always kept; false: kvpress, "
                 "where a chunk overwrites the sinks' scores",
                 "method catalogue, section 6"),
      word_param("kvzip_source", {"repeat", "trace"},
                 "scores from the trace's repeat segment, or those stored in the trace", "kvsim")};
}

}  // namespace

AxisChoice select_kvzip() {
  return {
      .axis = "select", .name = "kvzip", .params = shared_params(), .make = &resolve_repeat<false>};
}

AxisChoice select_kvzip_plus() {
  std::vector<ParamInfo> params = shared_params();
  params.push_back(word_param(
      "kvzip_plus_norm", {"post_norm", "residual"},
      "norm of the repeat token's state by which its attention is divided: of the normed input of "
      "attention, or of the residual stream (from score.residual_norm in the trace)",
      "kvpress; KVzip+ as described"));
  return {.axis = "select",
          .name = "kvzip-plus",
          .params = std::move(params),
          .make = &resolve_repeat<true>};
}

}  // namespace kvsim
