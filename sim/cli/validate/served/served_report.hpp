#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "validation/served/served_score.hpp"
#include "validation/served/served_two_loads.hpp"

namespace kvsim {

/// Tables for display. `rows`: also one line per run.
[[nodiscard]] std::string served_text(const ServedScore& score, bool rows, std::size_t width);

/// Errors, coverage and interval width before and after a calibration at two loads, for values at
/// the other loads, by source and metric.
[[nodiscard]] std::string two_loads_text(const ServedScore& score,
                                         const std::vector<UnseenValue>& values, std::size_t width);

/// The document of schema kvsim.validate-served/1. `rows`: also every comparison.
[[nodiscard]] nlohmann::ordered_json served_json(const ServedScore& score, const std::string& file,
                                                 bool rows);

/// Every comparison, and every run, as CSV.
[[nodiscard]] std::string served_comparisons_csv(const ServedScore& score);
[[nodiscard]] std::string served_runs_csv(const ServedScore& score);

/// Parity, error against load, and nominal against observed coverage.
[[nodiscard]] std::vector<Figure> served_figures(const ServedScore& score);

}  // namespace kvsim
