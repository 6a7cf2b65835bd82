// Scissorhands (Liu et al. 2023): pivotal tokens stay pivotal. An entry is low in a step if its
// attention is below the mean, a_i < 1/E. When the budget is full, the entries that were low most
// often over the last steps are evicted in a batch.
//
//   c_i = number of the last w rows in which entry i was low
//   before a step would hold B + 1 entries, the m of the largest c_i outside the last r leave

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

struct PersistenceSettings {
  std::int64_t recent = 10;
  std::int32_t history = 400;
  bool cumulative = false;  // count low rows from the beginning
  double drop = 0.5;        // share of the budget that is evicted at once
};

/// Returns the number of entries evicted at once for a budget: at least one, and no protected
/// entries.
std::int64_t batch(const PersistenceSettings& settings, std::int64_t budget) {
  const auto share = static_cast<std::int64_t>(settings.drop * static_cast<double>(budget));
  return std::clamp<std::int64_t>(share, 1, std::max<std::int64_t>(budget - settings.recent, 1));
}

class PersistenceSelector final : public Selector {
 public:
  PersistenceSelector(const PersistenceSettings& settings, const SessionPlace& place)
      : settings_{settings},
        group_{place.group},
        words_{settings.cumulative ? 0 : (static_cast<std::size_t>(settings.history) + 63) / 64},
        column_(static_cast<std::size_t>(place.tokens), -1),
        low_(static_cast<std::size_t>(place.tokens), 0) {}

  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    for (std::int32_t id = 0; id < prompt_; ++id) add_entry(id);
    // Rows arrive head by head; a decision for several heads needs their sum, row by row.
    const std::int64_t first =
        settings_.cumulative ? 0 : std::max<std::int64_t>(prompt_ - settings_.history, 0);
    const auto heads = static_cast<std::int32_t>(scores.heads().size());
    if (heads == 1) {
      std::vector<double> sum;
      scores.each_row(first, [&](const PromptScores::Row& row) {
        if (row.g == 0) sum.assign(row.probabilities.size(), 0.0);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row.probabilities[i];
        if (row.g == group_ - 1) count_prompt_row(sum, group_);
      });
      return;
    }
    std::vector<std::vector<double>> sums(static_cast<std::size_t>(prompt_ - first));
    scores.each_row(first, [&](const PromptScores::Row& row) {
      std::vector<double>& sum = sums[static_cast<std::size_t>(row.t - first)];
      sum.resize(row.probabilities.size(), 0.0);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row.probabilities[i];
    });
    for (const auto& sum : sums) count_prompt_row(sum, group_ * heads);
  }

  void allow(const EntryBudget& /*allotted*/, std::int64_t room) override { budget_ = room; }

  void observe(const StepView& step) override {
    for (const std::int32_t id : gone_) {
      free_.push_back(column_[static_cast<std::size_t>(id)]);
      column_[static_cast<std::size_t>(id)] = -1;
    }
    gone_.clear();
    next_row();
    const double mean =
        static_cast<double>(step.heads.size()) * group_ / static_cast<double>(step.ids.size());
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      const std::int32_t id = step.ids[slot];
      if (column_[static_cast<std::size_t>(id)] < 0) add_entry(id);
      count(id, step.group_sum[slot] < mean);
    }
  }

  double score(std::int32_t id) const override {
    return -static_cast<double>(low_[static_cast<std::size_t>(id)]);
  }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    // At a decode step the newest token was just added; earlier entries are evicted for it.
    const std::int64_t recent = settings_.recent + (at_prefill ? 0 : 1);
    return id > newest - recent ? std::numeric_limits<double>::infinity() : score(id);
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t room,
               std::vector<std::int32_t>& out) override {
    if (budget_ == kNoLimit || entries.free_size() <= room) return;
    const std::size_t before = out.size();
    const bool feeding = newest < prompt_;  // a merge that feeds the prompt token by token
    Selector::leaving(entries, newest, feeding ? room : room + 1 - batch(settings_, room), out);
    gone_.insert(gone_.end(), out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
  }

 private:
  void add_entry(std::int32_t id) {
    std::int32_t column = 0;
    if (free_.empty()) {
      column = static_cast<std::int32_t>(n_columns_++);
      history_.resize(n_columns_ * words_, 0);
    } else {
      column = free_.back();
      free_.pop_back();
      std::fill_n(
          history_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(column) * words_),
          words_, 0);
    }
    column_[static_cast<std::size_t>(id)] = column;
    low_[static_cast<std::size_t>(id)] = 0;
  }
  void next_row() { row_ = (row_ + 1) % static_cast<std::size_t>(settings_.history); }
  /// Records whether `id` was low in this step's row, and removes the row of `history` steps ago.
  void count(std::int32_t id, bool is_low) {
    std::int32_t& low = low_[static_cast<std::size_t>(id)];
    if (settings_.cumulative) {
      low += is_low ? 1 : 0;
      return;
    }
    const auto column = static_cast<std::size_t>(column_[static_cast<std::size_t>(id)]);
    std::uint64_t& word = history_[column * words_ + row_ / 64];
    const std::uint64_t bit = std::uint64_t{1} << (row_ % 64);
    low += (is_low ? 1 : 0) - ((word & bit) != 0 ? 1 : 0);
    word = is_low ? word | bit : word & ~bit;
  }
  void count_prompt_row(std::span<const double> sum, std::int32_t queries) {
    next_row();
    const double mean = static_cast<double>(queries) / static_cast<double>(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      count(static_cast<std::int32_t>(i), sum[i] < mean);
    }
  }

  PersistenceSettings settings_;
  std::int32_t group_;
  std::size_t words_;                   // words per history of an entry
  std::vector<std::int32_t> column_;    // by id; -1: none
  std::vector<std::int32_t> low_;       // by id: number of the history's rows in which it was low
  std::vector<std::uint64_t> history_;  // [columns, words]: one bit per row, a ring
  std::vector<std::int32_t> free_, gone_;
  std::size_t n_columns_ = 0, row_ = 0;
  std::int32_t prompt_ = 0;
  std::int64_t budget_ = kNoLimit;
};

class PersistenceRule final : public SelectRule {
 public:
  PersistenceRule(const PersistenceSettings& settings, std::int64_t mean_budget, ScoreExec exec)
      : settings_{settings}, batch_{batch(settings, mean_budget)}, score_exec_{exec} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<PersistenceSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.decode_rows = true;
    if (settings_.cumulative) {
      needs.prompt_scores = PromptScoreClass::kColumnSums;
      needs.score_exec = score_exec_;
      needs.score_copies = 2;
    } else {
      needs.prompt_scores = PromptScoreClass::kLastWindow;
      needs.prompt_window = settings_.history;
    }
    return needs;
  }
  bool leaves_before_attend() const override { return true; }
  std::int64_t min_entries() const override { return settings_.recent + 1; }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }

  std::optional<std::int64_t> held(std::int64_t budget, std::int64_t prompt,
                                   std::int64_t tokens) const override {
    if (budget == kNoLimit || tokens <= prompt) return std::min(tokens, budget);
    return Sawtooth{.start = std::min(prompt, budget),
                    .trigger = budget + 1,
                    .target = budget + 1 - batch(settings_, budget)}
        .held(decode_steps(prompt, tokens));
  }
  std::optional<std::int64_t> attended(std::int64_t budget, std::int64_t prompt,
                                       std::int64_t tokens) const override {
    return held(budget, prompt, tokens);
  }

  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{(settings_.cumulative ? 2 : (settings_.history + 7) / 8) * entries};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += shape.group * events.attended * 4.0;
    // The step's bit (its byte is read and written) or the running count.
    const double touched = settings_.cumulative ? 2.0 : 1.0;
    traffic.side_read += events.attended * touched;
    traffic.side_write += events.attended * touched;
    traffic.extra_flops += events.attended * 2.0;  // compare, count
    if (events.left > 0) {
      // One gather per batch; a step that evicts one of `batch_` entries counts as a share.
      const double share = std::min(1.0, events.left / static_cast<double>(batch_));
      const double entry = shape.row_bytes() + static_cast<double>(side_bytes(1, shape).count());
      traffic.move_read += share * events.attended * entry;
      traffic.move_write += share * events.attended * entry;
      // Counts of the histories, once per batch.
      if (!settings_.cumulative) {
        traffic.side_read +=
            share * events.attended * static_cast<double>(side_bytes(1, shape).count());
      }
    }
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    const double rows = settings_.cumulative ? s / 2.0 : std::min<double>(settings_.history, s);
    return {.flops = rows * s * (shape.n_heads + 2.0 * shape.n_kv_heads)};
  }

 private:
  PersistenceSettings settings_;
  std::int64_t batch_;
  ScoreExec score_exec_;
};

/// The released simulation has no budget, so only the default one is accepted. Parameters of the
/// other variant are refused instead of ignored.
std::shared_ptr<const SelectRule> make_percentile(MethodResolver& resolver) {
  if (resolver.choice("budget") != "uniform") {
    resolver.refuse(
        fmt::format("variant=percentile keeps all entries above a percentile: expected no budget, "
                    "got budget={}",
                    resolver.choice("budget")));
  }
  resolver.set_entries(kNoLimit);
  return make_pivotal(resolver);
}

void refuse_params_of_other_variant(const MethodResolver& resolver, bool percentile) {
  const auto refuse = [&](std::string_view name, std::string_view variant) {
    if (!resolver.given(name)) return;
    resolver.refuse(fmt::format("parameter {} belongs to variant={}", name, variant));
  };
  if (percentile) {
    for (const char* name : {"recent", "history_steps", "history", "drop", "score_exec"}) {
      refuse(name, "paper");
    }
  } else {
    for (const ParamInfo& info : pivotal_params()) refuse(info.name, "percentile");
  }
}

std::shared_ptr<const SelectRule> resolve_persistence(MethodResolver& resolver) {
  const bool percentile = resolver.word("variant") == "percentile";
  refuse_params_of_other_variant(resolver, percentile);
  if (percentile) return make_percentile(resolver);
  const std::int64_t entries = resolver.budget_entries(0.2);
  resolver.set_entries(entries);
  const bool cumulative = resolver.word("history") == "cumulative";
  const PersistenceSettings settings{
      .recent = resolver.integer("recent"),
      .history = cumulative ? 1 : static_cast<std::int32_t>(resolver.integer("history_steps")),
      .cumulative = cumulative,
      .drop = resolver.number("drop")};
  return std::make_shared<PersistenceRule>(settings, entries,
                                           score_exec_of(resolver.word("score_exec")));
}

}  // namespace

AxisChoice select_persistence() {
  AxisChoice choice{
      .axis = "select",
      .name = "persistence",
      .params =
          {word_param("variant", {"paper", "percentile"},
                      "lows are counted with a budget, or entries above a percentile of their row "
                      "are kept without one",
                      "Scissorhands' text against its released simulation"),
           integer_param("recent", "r", 10, 0, kManyEntries, "an integer >= 0",
                         "last tokens kept regardless of their counts",
                         "Scissorhands, by a second implementation"),
           integer_param("history_steps", "w", 400, 1, kMaxRows, kRowsRange,
                         "rows in which an entry's lows are counted",
                         "Scissorhands, by a second implementation"),
           word_param(
               "history", {"window", "cumulative"},
               "lows of the last history_steps rows (a bit each), or all since the beginning "
               "(a 16 bit count)",
               "Scissorhands section 4; the count is cheaper"),
           number_param(
               "drop", "m/B", 0.5, 1e-6, 1.0, "a number in (0, 1]",
               "share of the budget that is evicted at once, at most all entries except the recent",
               "Scissorhands: m = 0.5 B"),
           score_exec_param()},
      .make = &resolve_persistence};
  for (ParamInfo& info : pivotal_params()) {
    info.help += " (variant=percentile)";
    choice.params.push_back(std::move(info));
  }
  return choice;
}

}  // namespace kvsim
