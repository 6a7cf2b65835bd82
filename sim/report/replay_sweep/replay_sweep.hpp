#pragma once

// Replays of a method over a grid of its parameters.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/methods/method.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// A parameter and its values, in the requested order.
struct SweepAxis {
  std::string name;
  std::vector<ParamValue> values;
};

/// One combination: the replayed method, and its value on each axis; nullopt if the method does not
/// have the parameter.
struct SweepCell {
  MethodSpec spec;
  std::vector<std::optional<ParamValue>> values;
};

struct ReplaySweep {
  std::vector<std::string> methods;
  std::vector<Budget> budgets;  // as requested; empty: the methods' defaults
  std::vector<SweepAxis> axes;
  Params fixed;                      // parameters with a single value
  std::vector<SweepCell> cells;      // ordered by method, budget, then the axes; the last changes
                                     // fastest
  std::vector<ReplayJob> jobs;       // one per trace; its requested methods are those of `cells`
  std::vector<std::string> notes{};  // missing traces
};

/// "zeromerge, alpha 0.6, residual_slots 4": the method if there are several, then its varied
/// parameters except axis `without`.
[[nodiscard]] std::string cell_words(const ReplaySweep& sweep, const SweepCell& cell,
                                     std::optional<std::size_t> without = {});

/// A varied parameter's value as a table cell: cut after 24 bytes; "-" if there is none.
[[nodiscard]] std::string value_cell(const std::optional<ParamValue>& value);

/// The values of the varied parameters; null if the method does not have one.
[[nodiscard]] nlohmann::ordered_json values_json(const ReplaySweep& sweep, const SweepCell& cell);

/// One sentence: which values have the smallest error if combinations of one trace and budget hold
/// equal bytes, and whether they matter. For ties, names only what the combinations share.
[[nodiscard]] std::string replay_sweep_finding(const ReplaySweep& sweep);

/// "kvsim.sweep/1".
[[nodiscard]] nlohmann::ordered_json sweep_document(const ReplaySweep& sweep);
/// One line per point.
[[nodiscard]] std::string sweep_csv(const ReplaySweep& sweep);
/// For the terminal, at most `width` columns: a table per trace, skipped combinations, means over
/// the traces if there are several, the best points, and the locations of files (`written` null:
/// none were written).
[[nodiscard]] std::string sweep_summary(const ReplaySweep& sweep, const ResultsFolder* written,
                                        std::size_t width = 80);
/// The results folder: result.json, sweep.csv, sweep_means.csv (if there are several traces) and
/// figures/. Errors: as write_run_results.
ResultsFolder write_sweep_results(const ReplaySweep& sweep, const std::filesystem::path& folder,
                                  const FolderOptions& options = {});

}  // namespace kvsim
