#include "sim/report/sweep/scenario_sweep_page.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/folder/page_parts.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxPagePoints = 2000;  // per scenario sweep

}  // namespace

std::string scenario_sweep_page(const ScenarioSweep& sweep, const FigureSet& figures,
                                const std::vector<std::string>& notes) {
  std::vector<std::string> cuts;
  const std::size_t n = std::min(sweep.size(), kMaxPagePoints);
  if (n < sweep.size()) {
    cuts.push_back(fmt::format("Tables have the first {} of {} points; sweep.csv has all.", n,
                               with_commas(static_cast<std::int64_t>(sweep.size()))));
  }
  // Columns and measures once, then rows of values: only the contents of a table, not every key of
  // each point.
  ordered_json document{{"schema", "kvsim.scenario-sweep/1"},
                        {"scenario", {{"echo", sweep.plan().echo()}}}};
  document["scenario"]["name"] = sweep.plan().name();
  document["notes"] = notes;
  ordered_json extras{{"columns", ordered_json::array()},
                      {"measures", ordered_json::array()},
                      {"rows", ordered_json::array()}};
  for (const SweepColumn& column : sweep.columns()) extras["columns"].push_back(column.name);
  for (const SweepMeasure& measure : sweep.measures()) {
    extras["measures"].push_back({{"words", measure.words},
                                  {"path", measure.path},
                                  {"unit", measure.unit},
                                  {"divisor", measure.divisor},
                                  {"most_is_best", measure.higher_is_better}});
  }
  for (std::size_t i = 0; i < n; ++i) {
    ordered_json row{{"values", ordered_json::array()},
                     {"measures", ordered_json::array()},
                     {"ranges", ordered_json::array()}};
    for (const SweepColumn& column : sweep.columns()) {
      row["values"].push_back(sweep_value_text(sweep.value(column, i)));
    }
    for (const SweepMeasure& measure : sweep.measures()) {
      const auto value = sweep.measure(measure, i);
      row["measures"].push_back(value ? ordered_json(*value) : ordered_json(nullptr));
      const auto range = sweep.interval(measure, i);
      row["ranges"].push_back(range ? ordered_json{range->first, range->second}
                                    : ordered_json(nullptr));
    }
    row["state"] = sweep.skipped(i) ? "skipped" : sweep.ran_out(i) ? "out of memory" : "fits";
    extras["rows"].push_back(std::move(row));
  }
  return page_text(
      {.title = fmt::format("Sweep of {}", clean_text(sweep.plan().name())),
       .lead = "One scenario run over a grid of its keys.",
       .sentences = lines_that_begin(scenario_sweep_summary(sweep, nullptr, kOneLine),
                                     {"Sweep of ", "Finding: ", "most ", "least ", "skipped "}),
       .summary = scenario_sweep_summary(sweep, nullptr, kSummaryWidth),
       .data = data_of("scenario-sweep", std::move(document), figures, std::move(extras), cuts)});
}

}  // namespace kvsim
