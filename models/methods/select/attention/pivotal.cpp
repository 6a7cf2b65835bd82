// The released simulation of Scissorhands: an entry is pivotal in a step if its attention is above
// a percentile of the row. Entries that were not pivotal in any of the last steps are dropped.
// There is no budget: the number of kept entries depends on the data.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct PivotalSettings {
  double percentile = 0.9;
  std::int32_t history = 400;
  std::int32_t recent = 10;
  std::int32_t start = 100;
};

/// Returns the q-quantile, interpolated linearly between the two nearest ranks, as in NumPy and
/// PyTorch. Reorders `values`.
double quantile(std::vector<double>& values, double q) {
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), values.begin() + below, values.end());
  const double low = values[static_cast<std::size_t>(below)];
  const double part = rank - static_cast<double>(below);
  if (part == 0.0) return low;
  const double high = *std::min_element(values.begin() + below + 1, values.end());
  return low + part * (high - low);
}

class PivotalSelector final : public Selector {
 public:
  PivotalSelector(const PivotalSettings& settings, const SessionPlace& place)
      : settings_{settings}, last_(static_cast<std::size_t>(place.tokens), -1) {}

  void learn_prompt(PromptScores& scores) override {
    prompt_ = scores.prompt();
    const std::int64_t first =
        std::max<std::int64_t>(settings_.start, prompt_ - std::int64_t{settings_.history});
    if (first >= prompt_) return;
    std::vector<std::vector<double>> sums(static_cast<std::size_t>(prompt_ - first));
    scores.each_row(first, [&](const PromptScores::Row& row) {
      std::vector<double>& sum = sums[static_cast<std::size_t>(row.t - first)];
      sum.resize(row.probabilities.size(), 0.0);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row.probabilities[i];
    });
    for (std::size_t r = 0; r < sums.size(); ++r) {
      row_ = sums[r];
      const double cut = quantile(row_, settings_.percentile);
      for (std::size_t i = 0; i < sums[r].size(); ++i) {
        if (sums[r][i] > cut)
          last_[i] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(r);
      }
    }
  }
  void observe(const StepView& step) override {
    if (step.newest < settings_.start) return;
    row_.assign(step.group_sum.begin(), step.group_sum.end());
    const double cut = quantile(row_, settings_.percentile);
    for (std::size_t slot = 0; slot < step.ids.size(); ++slot) {
      if (step.group_sum[slot] > cut) last_[static_cast<std::size_t>(step.ids[slot])] = step.newest;
    }
  }
  double score(std::int32_t id) const override { return last_[static_cast<std::size_t>(id)]; }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    return stays(id, newest) ? std::numeric_limits<double>::infinity()
                             : -std::numeric_limits<double>::infinity();
  }
  std::vector<std::int32_t> plan(std::int32_t prompt,
                                 const EntryBudget& /*allotted*/) const override {
    std::vector<std::int32_t> kept;
    for (std::int32_t id = 0; id < prompt; ++id) {
      if (stays(id, prompt - 1)) kept.push_back(id);
    }
    return kept;
  }
  void leaving(const EntryTable& entries, std::int32_t newest, std::int64_t /*room*/,
               std::vector<std::int32_t>& out) override {
    const auto before = static_cast<std::ptrdiff_t>(out.size());
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      if (!entries.is_pinned(slot) && !stays(entries.id(slot), newest)) {
        out.push_back(entries.id(slot));
      }
    }
    std::sort(out.begin() + before, out.end());
  }

 private:
  [[nodiscard]] bool stays(std::int32_t id, std::int32_t newest) const {
    return newest < settings_.start || id > newest - settings_.recent ||
           (last_[static_cast<std::size_t>(id)] >= 0 &&
            last_[static_cast<std::size_t>(id)] > newest - settings_.history);
  }

  PivotalSettings settings_;
  std::vector<std::int32_t> last_;  // by id: newest step in which it was pivotal; -1: none
  std::vector<double> row_;
  std::int32_t prompt_ = 0;
};

class PivotalRule final : public SelectRule {
 public:
  explicit PivotalRule(const PivotalSettings& settings) : settings_{settings} {}

  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<PivotalSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = settings_.history;
    needs.decode_rows = true;
    return needs;
  }
  Compaction compaction(Compaction /*of_merge*/) const override { return Compaction::kGather; }
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t /*prompt*/,
                                   std::int64_t tokens) const override {
    if (tokens <= settings_.start) return tokens;
    return std::nullopt;
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return Bytes{4} * entries;  // the last step in which it was pivotal
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.score_row_write += shape.group * events.attended * 4.0;
    traffic.score_row_read += 2.0 * shape.group * events.attended * 4.0;  // percentile, compare
    traffic.side_read += events.attended * 4.0;
    traffic.side_write += events.attended * 4.0;
    traffic.extra_flops += events.attended * (3.0 + kQuantileFlops);
    if (events.left > 0) {
      traffic.move_read += (events.attended - events.left) * (shape.row_bytes() + 4.0);
      traffic.move_write += (events.attended - events.left) * (shape.row_bytes() + 4.0);
    }
  }

  PrefillExtra prefill_extra(const LayerShape& shape, Dtype /*recorded*/,
                             std::int64_t prompt) const override {
    const auto s = static_cast<double>(prompt);
    const double rows =
        std::clamp(s - settings_.start, 0.0, static_cast<double>(settings_.history));
    const double seen = s - rows / 2.0;  // mean number of entries per row
    // Sum over the group, the row's quantile and the comparisons with it.
    return {.flops = rows * seen * (shape.n_heads + (kQuantileFlops + 1.0) * shape.n_kv_heads)};
  }

 private:
  // The percentile of a row by quickselect: about 2 E comparisons for an extreme rank, 3.4 E for
  // the middle (Knuth 1971), and the same number to find its upper neighbour.
  static constexpr double kQuantileFlops = 4.0;

  PivotalSettings settings_;
};

std::shared_ptr<const SelectRule> resolve_pivotal(MethodResolver& resolver) {
  if (resolver.choice("budget") != "none") {
    resolver.refuse("select=pivotal keeps all entries above a percentile: expected budget=none");
  }
  return make_pivotal(resolver);
}

}  // namespace

std::shared_ptr<const SelectRule> make_pivotal(MethodResolver& resolver) {
  if (resolver.budget()) {
    resolver.refuse(
        "it keeps all entries above a percentile and takes no budget (the paper's rule, "
        "variant=paper of scissorhands, does)");
  }
  return std::make_shared<PivotalRule>(
      PivotalSettings{.percentile = resolver.number("percentile"),
                      .history = static_cast<std::int32_t>(resolver.integer("lru_window")),
                      .recent = static_cast<std::int32_t>(resolver.integer("position_window")),
                      .start = static_cast<std::int32_t>(resolver.integer("start_step"))});
}

std::vector<ParamInfo> pivotal_params() {
  const std::string source = "Scissorhands, released simulation";
  return {number_param("percentile", "", 0.9, 0, 1.0, "a number in [0, 1]",
                       "percentile of its row above which an entry is pivotal", source),
          integer_param("lru_window", "", 400, 1, kMaxRows, kRowsRange,
                        "steps for which a pivotal entry stays",
                        source + "; the paper's history, as no value is published"),
          integer_param("position_window", "", 10, 1, kManyEntries, "an integer >= 1",
                        "last tokens kept regardless of their attention",
                        source + "; the paper's recent tokens, as no value is published"),
          integer_param("start_step", "", 100, 0, kManyEntries, "an integer >= 0",
                        "position before which nothing is judged or evicted", source)};
}

AxisChoice select_pivotal() {
  return {.axis = "select",
          .name = "pivotal",
          .params = pivotal_params(),
          .make = &resolve_pivotal,
          .takes_budget = false};
}

}  // namespace kvsim
