#pragma once

// What came of a sweep over a scenario's keys. Every document is a function of the plan and the
// points' results alone: the same bytes however many threads or processes made them, and in
// whatever order.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/folder/results_folder.hpp"
#include "sim/sweep/sweep_plan.hpp"

namespace kvsim {

/// What varies, as tables and figures have it: an axis, or, where its values are objects, one of
/// their keys: of methods the name, the budget, ….
struct SweepColumn {
  std::string name;  // "budget"; unique among the columns
  std::size_t axis = 0;
  std::string key{};  // of the axis' objects; empty: the value itself
};

/// A figure of a point's results that tables and figures show.
struct SweepMeasure {
  std::string path;    // "latency_s", "ttft_s/p90"
  std::string header;  // of a table's column: "tok/s"
  std::string words;   // "output tokens per second"
  std::string unit;    // "GiB", "s", "tok/s"
  double divisor = 1;  // from base units
  bool most_is_best = false;
};

/// A sweep that is done: of each point its object, as run_sweep_point makes them.
class ScenarioSweep {
 public:
  /// `threads`: that read the objects and write documents of them, whose bytes do not depend on it;
  /// 0: as many as the machine has. Errors: ContractError unless there is one object for every
  /// point, in order.
  ScenarioSweep(const SweepPlan& plan, std::vector<std::string> objects, int threads = 1);

  [[nodiscard]] const SweepPlan& plan() const { return *plan_; }
  [[nodiscard]] std::size_t size() const { return objects_.size(); }
  [[nodiscard]] const std::vector<SweepColumn>& columns() const { return columns_; }
  /// Those that some point has.
  [[nodiscard]] const std::vector<SweepMeasure>& measures() const { return measures_; }
  [[nodiscard]] const std::string& text(std::size_t point) const { return objects_.at(point); }
  [[nodiscard]] nlohmann::ordered_json object(std::size_t point) const;  // of that text
  /// The value of the column at the point; null if it has no such key.
  [[nodiscard]] nlohmann::json value(const SweepColumn& column, std::size_t point) const;
  /// Base units; nullopt where the point has none: it ran out of memory, or was skipped.
  [[nodiscard]] std::optional<double> measure(const SweepMeasure& measure, std::size_t point) const;
  /// Where 90 % of cases lie about it, base units; nullopt where the point's results do not say.
  [[nodiscard]] std::optional<std::pair<double, double>> interval(const SweepMeasure& measure,
                                                                  std::size_t point) const;
  [[nodiscard]] bool skipped(std::size_t point) const { return skipped_[point] != 0; }
  [[nodiscard]] bool ran_out(std::size_t point) const { return ran_out_[point] != 0; }
  [[nodiscard]] int threads() const { return threads_; }

 private:
  const SweepPlan* plan_;
  std::vector<std::string> objects_;
  std::vector<SweepColumn> columns_;
  std::vector<SweepMeasure> measures_;
  std::vector<std::vector<std::optional<double>>> measured_;  // [measure][point]
  std::vector<unsigned char> skipped_, ran_out_;              // threads write adjacent elements
  int threads_;
};

/// "8192", "h2o", "40 GiB"; "-" for null.
[[nodiscard]] std::string sweep_value_text(const nlohmann::json& value);

/// "kvsim.scenario-sweep/1" as text, a point a line.
[[nodiscard]] std::string scenario_sweep_text(const ScenarioSweep& sweep,
                                              const std::vector<std::string>& notes = {});
/// A line a point: its number, hash, columns, every number and word of its results.
[[nodiscard]] std::string scenario_sweep_csv(const ScenarioSweep& sweep);
/// For the terminal, at most `width` columns.
[[nodiscard]] std::string scenario_sweep_summary(const ScenarioSweep& sweep,
                                                 const ResultsFolder* written,
                                                 std::size_t width = 80);
/// Lines over the one number that varies, heat maps over two, bars where none does.
[[nodiscard]] FigureSet scenario_sweep_figures(const ScenarioSweep& sweep);

/// The first line of the sweep's points file: what it is, and which program wrote it.
[[nodiscard]] std::string sweep_header(const SweepPlan& plan);

/// The results folder: sweep.json, sweep.csv, points.jsonl (in order) and figures/. Errors: as
/// write_run_results.
ResultsFolder write_scenario_sweep(const ScenarioSweep& sweep, const std::filesystem::path& folder,
                                   const FolderOptions& options = {});

}  // namespace kvsim
