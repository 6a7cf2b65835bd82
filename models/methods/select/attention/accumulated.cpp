// Accumulated attention: H2O (Zhang et al. 2023) sums each token's attention over all queries; with
// a decay per step it is ZeroMerge's contribution score (eq. (5)).
//
//   s_i <- decay * s_i + sum over the group of a_i,   a new token starts with its own a

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Protects the first `sinks` tokens and the last ones: `recent_prompt` when the prompt is
/// compressed at once, `recent_decode` at a decode step.
struct AccumulatedSettings {
  double decay = 1.0;
  std::int64_t sinks = 0;
  std::int64_t recent_prompt = 0;
  std::int64_t recent_decode = 0;
  ScoreExec score_exec = ScoreExec::kEager;
  std::int32_t score_copies = 1;  // score matrices of the cache's dtype in eager execution
  bool fp32_softmax = true;
  bool retries_smaller_chunks = false;
  std::int64_t entries = 0;           // the mean budget that determines the tails
  bool first_step = false;            // compress the prompt at the first decode step
  bool score_in_cache_dtype = false;  // carried scores take the cache's dtype, not fp32
};

class AccumulatedSelector final : public Selector {
 public:
  AccumulatedSelector(const AccumulatedSettings& settings, std::int32_t tokens)
      : settings_{settings}, score_(static_cast<std::size_t>(tokens), 0.0) {}

  /// If budgets differ between layers or heads, the tails are scaled in proportion.
  void allow(const EntryBudget& allotted, std::int64_t /*room*/) override {
    if (allotted.entries == std::numeric_limits<std::int64_t>::max()) return;
    if (allotted.entries == settings_.entries) return;
    const auto scaled = [&](std::int64_t tail) {
      const auto share = static_cast<double>(tail) / static_cast<double>(settings_.entries);
      const auto entries = static_cast<std::int64_t>(share * static_cast<double>(allotted.entries));
      return std::clamp<std::int64_t>(entries, std::min<std::int64_t>(tail, 1), allotted.entries);
    };
    settings_.recent_prompt = scaled(settings_.recent_prompt);
    settings_.recent_decode = scaled(settings_.recent_decode);
    settings_.sinks = std::min(settings_.sinks, allotted.entries - settings_.recent_decode);
  }
  void learn_prompt(PromptScores& scores) override {
    const auto sums = scores.column_sums(settings_.decay);
    KVSIM_CHECK(sums.size() <= score_.size(), "{} sums, {} tokens", sums.size(), score_.size());
    std::copy(sums.begin(), sums.end(), score_.begin());
  }
  void observe(const StepView& step) override {
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      double& score = at(step.ids[slot]);
      score = settings_.decay * score + step.group_sum[slot];
    }
  }
  double score(std::int32_t id) const override { return score_[static_cast<std::size_t>(id)]; }
  void merge_scores(std::int32_t into, std::int32_t from, bool take_max) override {
    at(into) = take_max ? std::max(at(into), at(from)) : at(into) + at(from);
  }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    const std::int64_t recent = at_prefill ? settings_.recent_prompt : settings_.recent_decode;
    if (id < settings_.sinks || id > newest - recent)
      return std::numeric_limits<double>::infinity();
    return score_[static_cast<std::size_t>(id)];
  }

 private:
  double& at(std::int32_t id) { return score_[static_cast<std::size_t>(id)]; }

  AccumulatedSettings settings_;
  std::vector<double> score_;  // by id
};

class AccumulatedRule final : public SelectRule {
 public:
  explicit AccumulatedRule(const AccumulatedSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<AccumulatedSelector>(settings_, place.tokens);
  }
  std::int64_t min_entries() const override {
    return std::max<std::int64_t>(
        settings_.sinks + std::max(settings_.recent_prompt, settings_.recent_decode), 1);
  }
  MethodNeeds needs() const override {
    return {.prompt_scores = PromptScoreClass::kColumnSums,
            .prompt_window = 0,
            .score_exec = settings_.score_exec,
            .retries_smaller_chunks = settings_.retries_smaller_chunks,
            .score_copies = settings_.score_copies,
            .fp32_softmax = settings_.fp32_softmax,
            .decode_rows = true,
            .inputs = {}};
  }
  bool compresses_prompt() const override { return !settings_.first_step; }
  PrefillPeak prefill_peak() const override {
    return settings_.first_step ? PrefillPeak::kAllLayers : PrefillPeak::kPerLayer;
  }
  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    if (settings_.first_step && tokens <= prompt) return tokens;
    return std::min(budget, tokens);
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& shape) const override {
    return (settings_.score_in_cache_dtype ? bytes_of(1, shape.stored) : Bytes{4}) * entries;
  }

  // Work as counted in the method catalogue: decay, add and compare once per previously held entry;
  // the sum over the group is part of reading the row.
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double side =
        settings_.score_in_cache_dtype ? bits_of(shape.stored) / 8.0 : sizeof(float);
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    traffic.side_read += events.attended * side;
    traffic.side_write += events.attended * side;
    traffic.extra_flops += (events.attended - 1.0) * (settings_.decay == 1.0 ? 2.0 : 3.0);
  }

 private:
  AccumulatedSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_accumulated(MethodResolver& resolver) {
  const double recent = resolver.number("recent");
  const double heavy = resolver.number("heavy");
  const bool residual = resolver.choice("merge") == "residual";
  const bool sizes_given =
      resolver.given("heavy") && resolver.given("recent") && heavy >= 1 && recent >= 1;
  if (recent < 0 && recent != -1) {
    resolver.refuse(fmt::format(
        "parameter recent: expected a fraction of the budget below 1, entries, or -1 for the rest, "
        "got {}",
        recent));
  }
  if (resolver.budget() && sizes_given) {
    resolver.refuse("budget, heavy and recent are all given; one follows from the others");
  }
  const std::int64_t entries =
      sizes_given && !resolver.budget()
          ? static_cast<std::int64_t>(heavy) + static_cast<std::int64_t>(recent)
          : resolver.budget_entries(0.2);
  resolver.set_entries(entries);
  std::int64_t tail =
      recent >= 0 ? share_or_count(recent, entries) : entries - share_or_count(heavy, entries);
  if (residual && recent < 1) {
    tail = std::max<std::int64_t>(tail, 2);  // minimum in ZeroMerge's code
  }
  const std::int64_t sinks = resolver.integer("sinks");
  const std::int64_t slots = resolver.reserve_slots(entries - tail);

  const bool late = resolver.word("eviction_candidates") == "code";
  const bool short_ring = resolver.word("tail_ring") == "code";
  const std::int64_t tail_decode = tail - (short_ring ? 1 : 0) + (late ? 1 : 0);
  const std::int64_t room = entries - slots - sinks - std::max(tail, tail_decode);
  if (room < (residual ? 1 : 0)) {
    resolver.refuse(fmt::format(
        "a budget of {} entries has no room for a tail of {}, {} residual slots and {} sinks{}",
        entries, std::max(tail, tail_decode), slots, sinks,
        residual ? " (expected B > B_p + B_r)" : ""));
  }
  if (resolver.given("heavy") && resolver.given("recent") && recent >= 0 && !sizes_given) {
    const std::int64_t wanted = share_or_count(heavy, entries);
    if (wanted != entries - slots - tail && wanted != entries - tail) {
      resolver.refuse(fmt::format(
          "heavy and recent are both given and come to {} and {} of a budget of {} entries: one "
          "follows from the other",
          wanted, tail, entries));
    }
  }
  resolver.resolve("recent", tail);
  resolver.resolve("heavy", entries - slots - tail);
  return std::make_shared<AccumulatedRule>(AccumulatedSettings{
      .decay = resolver.number("decay"),
      .sinks = sinks,
      .recent_prompt = tail,
      .recent_decode = tail_decode,
      .score_exec = score_exec_of(resolver.word("score_exec")),
      // ZeroMerge's code holds three matrices in the cache's dtype; Hugging Face's eager attention
      // holds logits, an fp32 softmax and its cast.
      .score_copies = residual ? 3 : 2,
      .fp32_softmax = !residual,
      .retries_smaller_chunks = residual,
      .entries = entries,
      .first_step = resolver.word("first_compression") == "first_step",
      .score_in_cache_dtype = residual && resolver.word("count_dtype") == "kv"});
}

}  // namespace

AxisChoice select_accumulated() {
  return {
      .axis = "select",
      .name = "accumulated",
      .params = {number_param("decay", "lambda", 1.0, 1e-6, 1.0, "a number in (0, 1]",
                              "factor on scores at each step; 1 is H2O's plain sum",
                              "ZeroMerge eq. (5)", {"lambda"}),
                 number_param("heavy", "hh", 0.5, 0, kManyEntries,
                              "a fraction of the budget below 1, or entries",
                              "entries kept by score; the rest of the budget is recent",
                              "H2O, released code", {"hh"}),
                 number_param("recent", "", -1, -1, kManyEntries,
                              "a fraction of the budget below 1, or entries; -1: the rest",
                              "last tokens kept regardless of their score",
                              "H2O; ZeroMerge's proximity", {"proximity", "tail"}),
                 integer_param("sinks", "", 0, 0, kManyEntries, "an integer >= 0",
                               "first tokens that are always kept",
                               "none in H2O's and ZeroMerge's code"),
                 word_param("eviction_candidates", {"paper", "code"},
                            "whether the token that has just left the tail may be evicted at once "
                            "(paper) or stays for one step",
                            "ZeroMerge alg. 1 against its released code"),
                 word_param("tail_ring", {"paper", "code"},
                            "tail after prefill: as set, or one token shorter as the released ring "
                            "buffer has it",
                            "ZeroMerge alg. 1 against its released code"),
                 word_param("first_compression", {"prefill", "first_step"},
                            "the prompt is compressed at its end, or whole until the first decode "
                            "step is done",
                            "D2O's released code compresses at the first decode step"),
                 score_exec_param(), positions_param()},
      .make = &resolve_accumulated};
}

}  // namespace kvsim
