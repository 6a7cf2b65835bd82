#pragma once

#include <filesystem>
#include <vector>

#include "sim/report/folder/results_folder.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Writes the tables of a replay into the folder under construction.
void write_replay_tables(const AtomicFolder& building, const ReplayResult& replay);

/// The results folder of `kvsim replay -o DIR`: result.json is the replay document. Errors: as
/// AtomicFolder.
ResultsFolder write_replay_results(const ReplayResult& replay,
                                   const std::vector<SkippedMethod>& skipped,
                                   const std::filesystem::path& folder,
                                   const FolderOptions& options = {});

/// The same for several traces: result.json ("kvsim.aggregate/1"), aggregate.csv, figures.
ResultsFolder write_aggregate_results(const std::vector<ReplayResult>& replays,
                                      const std::filesystem::path& folder,
                                      const FolderOptions& options = {});

}  // namespace kvsim
