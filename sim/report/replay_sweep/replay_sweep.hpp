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

/// One combination: what is replayed, and its value on each axis; nullopt where the method does not
/// have the parameter.
struct SweepCell {
  MethodSpec spec;
  std::vector<std::optional<ParamValue>> values;
};

struct ReplaySweep {
  std::vector<std::string> methods;
  std::vector<Budget> budgets;  // as requested; empty: the methods' defaults
  std::vector<SweepAxis> axes;
  Params fixed;                      // given with one value
  std::vector<SweepCell> cells;      // method, budget, then the axes, the last changing fastest
  std::vector<ReplayJob> jobs;       // one per trace; its requested methods are those of `cells`
  std::vector<std::string> notes{};  // traces that are missing
};

/// "zeromerge, alpha 0.6, residual_slots 4": the method if there are several, then its varied
/// parameters, except axis `without`.
[[nodiscard]] std::string cell_words(const ReplaySweep& sweep, const SweepCell& cell,
                                     std::optional<std::size_t> without = {});

/// A varied parameter's value as a cell of a table: cut after 24 bytes; "-" without one.
[[nodiscard]] std::string value_cell(const std::optional<ParamValue>& value);

/// Of each varied parameter its value; null where the method does not have it.
[[nodiscard]] nlohmann::ordered_json values_json(const ReplaySweep& sweep, const SweepCell& cell);

/// One sentence: which values have the least error where combinations of one trace and budget hold
/// equal bytes, and whether they matter. Of combinations that tie only what they share is named.
[[nodiscard]] std::string replay_sweep_finding(const ReplaySweep& sweep);

/// "kvsim.sweep/1".
[[nodiscard]] nlohmann::ordered_json sweep_document(const ReplaySweep& sweep);
/// A line a point.
[[nodiscard]] std::string sweep_csv(const ReplaySweep& sweep);
/// For the terminal, at most `width` columns: a table of each trace, what was skipped, the means
/// over the traces where there are several, the best points, and where files are (`written` null:
/// nothing was).
[[nodiscard]] std::string sweep_summary(const ReplaySweep& sweep, const ResultsFolder* written,
                                        std::size_t width = 80);
/// The results folder: result.json, sweep.csv, sweep_means.csv (of several traces) and figures/.
/// Errors: as write_run_results.
ResultsFolder write_sweep_results(const ReplaySweep& sweep, const std::filesystem::path& folder,
                                  const FolderOptions& options = {});

}  // namespace kvsim
