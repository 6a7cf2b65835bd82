#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/report/folder/results_folder.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The tables of a replay, the skipped methods, and notes; without its finding and files.
[[nodiscard]] std::string replay_block(const ReplayResult& replay,
                                       const std::vector<SkippedMethod>& skipped,
                                       std::size_t width);
/// The table of a replay: entries, bytes against full, error, closed form.
[[nodiscard]] std::string replay_summary(const ReplayResult& replay,
                                         const std::vector<SkippedMethod>& skipped,
                                         const ResultsFolder* written, std::size_t width = 80);

/// The summary of several traces (`written` as above).
[[nodiscard]] std::string aggregate_summary(const std::vector<ReplayResult>& replays,
                                            const ResultsFolder* written, std::size_t width = 80);

}  // namespace kvsim
