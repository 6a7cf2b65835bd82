#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// The summary of a run of kind "serve" for the terminal, between its title and its notes: the
/// workload, request latencies with all percentiles, engine activity, and the limit of each point.
[[nodiscard]] std::string serve_block(const RunReport& report,
                                      const std::vector<std::string>& labels, std::size_t width);

/// Its short form: only the median and the shown percentile, without engine activity. Intervals are
/// included only if there are few points.
[[nodiscard]] std::string brief_serve_block(const RunReport& report,
                                            const std::vector<std::string>& labels,
                                            std::size_t width);

/// Only its verdict: "2 of 8 points serve every request.", then lines with each point's limit and
/// the resource that ran out first.
[[nodiscard]] std::string serve_verdict(const RunReport& report,
                                        const std::vector<std::string>& labels, std::size_t width);

}  // namespace kvsim
