// KeepKV's selection (Tian et al. 2025). Prompt: attention of the last queries, with higher weights
// for later ones. Decode steps: the moving average of each entry's unnormalised exponential, eq.
// (8), without votes. First and last tokens are kept.

#include "models/methods/learn/logit_average.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kLastWeight = 1.2;  // weight of the newest query; the window's oldest has weight 1

struct Settings {
  double heavy_share = 0.8;
  std::int64_t sinks = 4;
  std::int64_t recent = 0;  // for the mean budget
  LogitAverageSettings average{};
};

/// Returns the number of `entries` for the last tokens, which remain after the heavy share.
std::int64_t recent_of(std::int64_t entries, double heavy_share) {
  return entries - static_cast<std::int64_t>(heavy_share * static_cast<double>(entries));
}

class LogitAverageSelector final : public Selector {
 public:
  LogitAverageSelector(const Settings& settings, const SessionPlace& place)
      : settings_{settings},
        average_{settings.average, place.group, place.tokens},
        sinks_{settings.sinks},
        recent_{settings.recent} {}

  void allow(const EntryBudget& allotted, std::int64_t /*room*/) override {
    if (allotted.entries == std::numeric_limits<std::int64_t>::max()) return;
    sinks_ = std::min(settings_.sinks, allotted.entries - 1);
    recent_ = std::clamp<std::int64_t>(recent_of(allotted.entries, settings_.heavy_share), 0,
                                       allotted.entries - sinks_);
  }
  void learn_prompt(PromptScores& scores) override {
    prompt_score_.assign(static_cast<std::size_t>(scores.prompt()), 0.0);
    const std::int64_t first = average_.first_row(scores.prompt());
    const auto rows = static_cast<double>(scores.prompt() - first);
    scores.each_row(first, [&](const PromptScores::Row& row) {
      if (row.head == 0) average_.learn_row(row);
      const double place = rows > 1 ? static_cast<double>(row.t - first) / (rows - 1) : 0.0;
      const double weight = 1.0 + (kLastWeight - 1.0) * place;
      for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
        prompt_score_[i] += weight * row.probabilities[i];
      }
    });
  }
  void observe(const StepView& step) override { average_.observe(step.heads[0], step.newest); }
  LogitAverage* logit_average() override { return &average_; }
  double score(std::int32_t id) const override { return average_.log_mean(id); }
  double importance(std::int32_t id, std::int32_t newest, bool at_prefill) const override {
    if (id < sinks_ || id > newest - recent_) return std::numeric_limits<double>::infinity();
    return at_prefill ? prompt_score_[static_cast<std::size_t>(id)] : average_.log_mean(id);
  }

 private:
  Settings settings_;
  LogitAverage average_;
  std::int64_t sinks_, recent_;
  std::vector<double> prompt_score_;
};

class LogitAverageRule final : public SelectRule {
 public:
  explicit LogitAverageRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<LogitAverageSelector>(settings_, place);
  }
  MethodNeeds needs() const override {
    return {.prompt_scores = PromptScoreClass::kLastWindow,
            .prompt_window = settings_.average.prompt_rows(),
            .decode_rows = true,
            .inputs = {}};
  }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return settings_.average.entry_bytes() * entries;
  }
  // The kernel writes the row of raw logits. A moving average takes an exponential, a product and a
  // sum per entry; an exponential counts as 4.
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    const double row = shape.group * events.attended * 4.0;
    traffic.score_row_write += row;
    traffic.score_row_read += row;
    const double carried =
        settings_.average.rows ? static_cast<double>(settings_.average.entry_bytes().count()) : 4.0;
    traffic.side_read += events.attended * carried;
    traffic.side_write += events.attended * 4.0;
    traffic.extra_flops +=
        events.attended * (settings_.average.rows ? settings_.average.window + 1.0 : 6.0);
  }

 private:
  Settings settings_;
};

std::shared_ptr<const SelectRule> resolve_average_rule(MethodResolver& resolver) {
  const std::int64_t entries = resolver.budget_entries(0.2);
  resolver.set_entries(entries);
  const double share = resolver.number("heavy_share");
  const std::int64_t sinks = resolver.integer("sinks");
  const std::int64_t recent = recent_of(entries, share);
  if (entries - recent < sinks || recent < 1) {
    resolver.refuse(fmt::format(
        "a budget of {} entries at heavy_share {} leaves {} heavy and {} recent ones (expected at "
        "least {} sinks and 1 recent)",
        entries, share, entries - recent, recent, sinks));
  }
  return std::make_shared<LogitAverageRule>(
      Settings{.heavy_share = share,
               .sinks = sinks,
               .recent = recent,
               .average = resolve_logit_average(resolver, recent)});
}

}  // namespace

LogitAverageSettings resolve_logit_average(MethodResolver& resolver, std::int64_t recent) {
  constexpr std::int64_t kMinWindow = 8;
  std::int64_t window = resolver.integer("score_window");
  if (window == 0) window = std::max(recent, kMinWindow);
  resolver.resolve("score_window", window);
  const bool rows = resolver.word("estimator") == "rows";
  if (window > static_cast<std::int64_t>(kMaxRows)) {
    resolver.refuse(fmt::format("score_window: expected {}, got {}", kRowsRange, window));
  }
  return {.rows = rows,
          .keep = rows ? 0.0 : resolver.number("ema"),
          .window = static_cast<std::int32_t>(window)};
}

std::vector<ParamInfo> logit_average_params() {
  return {word_param("estimator", {"ema", "rows"},
                     "how e^logit of an entry is estimated: moving average, or mean of the last "
                     "score_window rows",
                     "KeepKV eq. (8) against its released code"),
          number_param("ema", "alpha", 0.9, 0, 0.999999, "a number in [0, 1)",
                       "weight that the moving average keeps per step; 0: only the current step",
                       "KeepKV eq. (8); its value is not published"),
          integer_param("score_window", "w", 0, 0, kMaxRows,
                        "an integer in [1, 65536] (rows that are kept, one number per entry), or 0 "
                        "for the recent budget, at least 8",
                        "prompt rows before the last that initialise scores; rows: R",
                        "KeepKV eq. (8); its value is not published"),
          word_param("gqa", {"mean_s"},
                     "e^logit of a key that several query heads share: their mean (exact only with "
                     "a key per query head: granularity=query_head)",
                     "KeepKV is multi-head only; ours")};
}

AxisChoice select_logit_average() {
  AxisChoice choice{
      .axis = "select",
      .name = "logit_average",
      .params = {number_param(
                     "heavy_share", "", 0.8, 0, 1, "a number in [0, 1]",
                     "share of the budget kept by score, including sinks; the rest is recent",
                     "KeepKV, released configurations (4:1)"),
                 integer_param("sinks", "", 4, 0, kManyEntries, "an integer >= 0",
                               "first tokens that are always kept", "KeepKV, released code")},
      .make = &resolve_average_rule};
  for (ParamInfo& info : logit_average_params()) choice.params.push_back(std::move(info));
  return choice;
}

}  // namespace kvsim
