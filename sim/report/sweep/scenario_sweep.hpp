#pragma once

// The results of a sweep over a scenario's keys. Every document is a function of only the plan and
// the points' results: the number of threads or processes and their order do not change the bytes.

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

/// A varied key as in tables and figures: an axis or, if its values are objects, one of their keys:
/// for methods the name, the budget, ….
struct SweepColumn {
  std::string name;  // "budget"; unique among the columns
  std::size_t axis = 0;
  std::string key{};  // of the axis' objects; empty: the value itself
};

/// A metric of a point's results that tables and figures show.
struct SweepMeasure {
  std::string path;    // "latency_s", "ttft_s/p90"
  std::string header;  // of the table's column: "tok/s"
  std::string words;   // "output tokens per second"
  std::string unit;    // "GiB", "s", "tok/s"
  double divisor = 1;  // from base units
  bool higher_is_better = false;
};

/// A completed sweep: the object of each point, as run_sweep_point makes it.
class ScenarioSweep {
 public:
  /// `threads`: number of threads that read the objects and write documents; it does not change
  /// their bytes. 0: one per hardware thread. Errors: ContractError unless there is one object for
  /// every point, in order.
  ScenarioSweep(const SweepPlan& plan, std::vector<std::string> objects, int threads = 1);

  [[nodiscard]] const SweepPlan& plan() const { return *plan_; }
  [[nodiscard]] std::size_t size() const { return objects_.size(); }
  [[nodiscard]] const std::vector<SweepColumn>& columns() const { return columns_; }
  /// The measures that some point has.
  [[nodiscard]] const std::vector<SweepMeasure>& measures() const { return measures_; }
  [[nodiscard]] const std::string& text(std::size_t point) const { return objects_.at(point); }
  [[nodiscard]] nlohmann::ordered_json object(std::size_t point) const;  // of that text
  /// The value of the column at the point; null if it has no such key.
  [[nodiscard]] nlohmann::json value(const SweepColumn& column, std::size_t point) const;
  /// In base units; nullopt if the point has no value: it ran out of memory, or was skipped.
  [[nodiscard]] std::optional<double> measure(const SweepMeasure& measure, std::size_t point) const;
  /// The 90 % interval, in base units; nullopt if the point's results have none.
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

/// The values of the columns that differ between points: "gpu A40, method h2o, budget 0.2".
[[nodiscard]] std::string sweep_point_words(const ScenarioSweep& sweep, std::size_t point);

/// "kvsim.scenario-sweep/1" as text, one point per line.
[[nodiscard]] std::string scenario_sweep_text(const ScenarioSweep& sweep,
                                              const std::vector<std::string>& notes = {});
/// One line per point: its number, hash, columns, all numbers and words of its results.
[[nodiscard]] std::string scenario_sweep_csv(const ScenarioSweep& sweep);
/// For the terminal, at most `width` columns.
[[nodiscard]] std::string scenario_sweep_summary(const ScenarioSweep& sweep,
                                                 const ResultsFolder* written,
                                                 std::size_t width = 80);
/// Lines if one number varies, heat maps if two do, bars if none does.
[[nodiscard]] FigureSet scenario_sweep_figures(const ScenarioSweep& sweep);

/// The first line of the sweep's points file: its kind, and the program that wrote it.
[[nodiscard]] std::string sweep_header(const SweepPlan& plan);

/// The results folder: sweep.json, sweep.csv, points.jsonl (in order) and figures/. Errors: as
/// write_run_results.
ResultsFolder write_scenario_sweep(const ScenarioSweep& sweep, const std::filesystem::path& folder,
                                   const FolderOptions& options = {});

}  // namespace kvsim
