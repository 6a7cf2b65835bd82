#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// What a run of kind "serve" says on the terminal between its head and its notes: the workload,
/// what requests see, what the service does, and what keeps each point from doing more.
[[nodiscard]] std::string serve_block(const RunReport& report,
                                      const std::vector<std::string>& labels, std::size_t width);

/// Its verdict alone: "2 of 8 points serve every request.", then lines of what keeps each from
/// doing more and what it ran out of first.
[[nodiscard]] std::string serve_verdict(const RunReport& report,
                                        const std::vector<std::string>& labels, std::size_t width);

}  // namespace kvsim
