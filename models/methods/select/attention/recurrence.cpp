// LazyEviction (Zhang et al. 2025, arXiv 2506.15969): keeps entries whose attention recurs at long
// intervals, even if it is currently low.
//
//   step t, attention p_i (mean over the group) > alpha:  MRI_i = max(MRI_i, t - TS_i), TS_i = t
//   every W decode steps, if more than B entries are held: the W newest stay, and from the rest the
//   B - W of greatest  I = 2 s(-(t - TS) / MRI) + 2 s(1 - MRI),   s the logistic function
//
// TS starts at the entry's position, MRI at 0. While MRI is 0, I is 1 at t = TS and 0 otherwise.
// Ties go to the older. The prompt's tokens are included, but attention within the prompt is not.
// The authors' code was not read. The paper's descriptions differ in the second term, and only a
// decreasing function of MRI fits the text. They do not define how heads decide; here each KV head
// decides separately.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct RecurrenceSettings {
  double alpha = 1e-4;
  std::int64_t window = 175;  // W
  std::int64_t limit = 0;     // B
};

class RecurrenceSelector final : public Selector {
 public:
  RecurrenceSelector(const RecurrenceSettings& settings, const SessionPlace& place)
      : settings_{settings}, group_{place.group} {
    known_.reserve(static_cast<std::size_t>(std::max(place.tokens, 0)));
  }

  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    for (std::int32_t id = 0; id < prompt_; ++id) known_.push_back({.last = id});
  }
  void observe(const StepView& step) override {
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      const auto id = static_cast<std::size_t>(step.ids[slot]);
      while (known_.size() <= id) {
        known_.push_back({.last = static_cast<std::int32_t>(known_.size())});
      }
      const double mean = step.group_sum[slot] / static_cast<double>(group_) /
                          static_cast<double>(step.heads.size());
      if (mean <= settings_.alpha) continue;
      Recurrence& one = known_[id];
      one.gap = std::max(one.gap, step.newest - one.last);
      one.last = step.newest;
    }
  }
  double score(std::int32_t id) const override { return score_at(id, newest_); }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    if (at_prefill || id > newest - settings_.window) {
      return std::numeric_limits<double>::infinity();
    }
    return score_at(id, newest);
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    newest_ = newest;
    const std::int64_t steps = std::int64_t{newest} + 1 - prompt_;
    if (steps > 0 && steps % settings_.window == 0)
      Selector::leaving(entries, newest, settings_.limit, out);
  }

 private:
  struct Recurrence {
    std::int32_t last = 0;  // TS: position of the last step that attended to it
    std::int32_t gap = 0;   // MRI: the longest interval between two such steps
  };
  [[nodiscard]] double score_at(std::int32_t id, std::int32_t newest) const {
    if (static_cast<std::size_t>(id) >= known_.size()) return 0;
    const Recurrence& one = known_[static_cast<std::size_t>(id)];
    const double since = newest - one.last;
    if (one.gap == 0) return since == 0 ? 1 : 0;
    return 2 / (1 + std::exp(since / one.gap)) + 2 / (1 + std::exp(one.gap - 1.0));
  }

  RecurrenceSettings settings_;
  std::int32_t group_;
  std::int32_t prompt_ = 0, newest_ = 0;
  std::vector<Recurrence> known_;  // by id
};

class RecurrenceRule final : public SelectRule {
 public:
  explicit RecurrenceRule(const RecurrenceSettings& settings) : settings_{settings} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<RecurrenceSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.decode_rows = true;
    return needs;
  }
  bool compresses_prompt() const override { return false; }
  PrefillPeak prefill_peak() const override { return PrefillPeak::kAllLayers; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    if (tokens <= prompt) return tokens;
    return Sawtooth{.start = prompt,
                    .trigger = settings_.limit + 1,
                    .target = settings_.limit,
                    .period = settings_.window}
        .held(decode_steps(prompt, tokens));
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{8} * entries;  // last step and longest interval, 4 bytes each
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    traffic.side_read += events.attended * 8.0;
    traffic.side_write += events.attended * 8.0;
    traffic.extra_flops += events.attended * 4.0;  // comparison, interval, maximum, selection
    if (events.left <= 0) return;
    traffic.extra_flops += events.attended * 8.0;  // two logistic functions
    const double survivors = events.attended - events.left;
    traffic.move_read += survivors * (shape.row_bytes() + 8);
    traffic.move_write += survivors * (shape.row_bytes() + 8);
  }

 private:
  RecurrenceSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_recurrence(MethodResolver& resolver) {
  if (resolver.budget()) {
    resolver.refuse(
        "it leaves the prompt whole until the first eviction and takes no budget; set limit, the "
        "entries after an eviction");
  }
  if (resolver.choice("budget") != "none" || resolver.choice("merge") != "drop") {
    resolver.refuse(
        fmt::format("its limit is the same in every head and has no room for merged entries: "
                    "expected budget=none and merge=drop, got budget={} and merge={}",
                    resolver.choice("budget"), resolver.choice("merge")));
  }
  const double limit = resolver.number("limit");
  RecurrenceSettings set{.alpha = resolver.number("alpha"),
                         .window = resolver.integer("window"),
                         .limit = share_or_count(limit, resolver.prompt())};
  if (set.window >= set.limit) {
    if (resolver.given("window") || set.limit < 2) {
      resolver.refuse(
          fmt::format("a limit of {} entries leaves none outside the window of {} (LazyEviction: "
                      "B > W)",
                      set.limit, set.window));
    }
    set.window = set.limit - 1;
    resolver.resolve("window", set.window);
  }
  return std::make_shared<RecurrenceRule>(set);
}

}  // namespace

AxisChoice select_recurrence() {
  return {
      .axis = "select",
      .name = "recurrence",
      .params = {number_param("limit", "B", 0.5, 1e-6, kManyEntries,
                              "entries, or a share of the prompt below 1",
                              "entries after an eviction",
                              "LazyEviction on MATH-500: half of the cache"),
                 integer_param("window", "W", 175, 1, 1e6, "an integer in [1, 1000000]",
                               "decode steps between evictions, and newest entries that stay",
                               "a reproduction of LazyEviction on MATH-500: 80 % of gaps are "
                               "shorter; less if the limit is less"),
                 number_param("alpha", "alpha", 1e-4, 0, 1, "a number in [0, 1]",
                              "attention above which a step counts as an activation",
                              "a reproduction of LazyEviction; a value per model in the paper")},
      .make = &resolve_recurrence,
      .takes_budget = false};
}

}  // namespace kvsim
