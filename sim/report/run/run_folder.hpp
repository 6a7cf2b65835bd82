#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

#include "sim/report/folder/results_folder.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The results folder of a run of `document` (run_document): result.json, points.csv, timeline.csv,
/// owners.csv, time_terms.csv, layers.csv, replay_steps.csv, replay_layer_steps.csv (if there is a
/// replay) and figures/. It appears as a whole or not at all, and replaces an older one that kvsim
/// wrote. Errors: InputError "FOLDER: cannot be written: …", or if FOLDER exists and has files that
/// kvsim did not write.
ResultsFolder write_run_results(const RunReport& report, nlohmann::ordered_json document,
                                const std::filesystem::path& folder,
                                const FolderOptions& options = {});

}  // namespace kvsim
