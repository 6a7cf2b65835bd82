#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// The summary of a run of kind "serve" for the terminal, between its title and its notes: the
/// workload, request latencies with all percentiles, engine activity, and what limits each point.
[[nodiscard]] std::string serve_block(const RunReport& report,
                                      const std::vector<std::string>& labels, std::size_t width);

/// Its short form: without percentiles other than the median and the one shown, and without what
/// the engine did. Intervals only of a few points.
[[nodiscard]] std::string brief_serve_block(const RunReport& report,
                                            const std::vector<std::string>& labels,
                                            std::size_t width);

/// Only its verdict: "2 of 8 points serve every request.", then lines with what limits each point
/// and what it ran out of first.
[[nodiscard]] std::string serve_verdict(const RunReport& report,
                                        const std::vector<std::string>& labels, std::size_t width);

}  // namespace kvsim
