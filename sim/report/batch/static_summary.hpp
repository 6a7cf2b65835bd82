#pragma once

// Parts of run_summary that are specific to static batches.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/text/text_style.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// "full: out of memory at decode step 33,912 (53,912 tokens): requested 842 MiB, 310 MiB free;
/// weights 25.1 GiB, …", with owners sorted by size.
[[nodiscard]] std::string oom_sentence(std::string_view label, const OomEvent& oom);

/// "8 of 9 points fit (usable HBM 79.0 GiB).", then a line per point that does not fit, earliest
/// failure first. `labels`: one per point.
[[nodiscard]] std::string static_verdict(const RunReport& report,
                                         const std::vector<std::string>& labels,
                                         const TextStyle& style = {});

/// One line per point: peaks, cache, speed, where memory runs out. If `style.verbose`, also the
/// rate of the whole run.
[[nodiscard]] std::string points_table(const RunReport& report, const TextStyle& style);
/// Whether a short points_table numbers its groups, for a table of published figures after it.
[[nodiscard]] bool has_numbered_groups(const RunReport& report);
/// A line per point that does not fit. If all fit or too many fail: how many fit. `labels`: one per
/// point.
[[nodiscard]] std::string brief_verdict(const RunReport& report,
                                        const std::vector<std::string>& labels,
                                        const TextStyle& style);
/// The bounds of the times of prefill and of the last decode step. Empty if no time was explained
/// or there are too many points to read.
[[nodiscard]] std::string bounds_block(const RunReport& report, std::size_t width);
/// The 90 % intervals of the metrics, and their basis. Empty if no point has one or there are too
/// many points to read.
[[nodiscard]] std::string intervals_block(const RunReport& report, std::size_t width);
/// The simulated allocator's results, a paragraph per point, for static runs or services.
[[nodiscard]] std::string allocator_block(const RunReport& report,
                                          const std::vector<std::string>& labels,
                                          std::size_t width);

}  // namespace kvsim
