#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "validation/served/served_score.hpp"
#include "validation/served/served_two_loads.hpp"

namespace kvsim {

/// Tables for people. `rows`: one line per run as well.
[[nodiscard]] std::string served_text(const ServedScore& score, bool rows, std::size_t width);

/// Of values at loads that a calibration by two others has not seen: errors, coverage and width
/// before and after, by source and metric.
[[nodiscard]] std::string two_loads_text(const ServedScore& score,
                                         const std::vector<UnseenValue>& values, std::size_t width);

/// The document of schema kvsim.validate-served/1. `rows`: every comparison as well.
[[nodiscard]] nlohmann::ordered_json served_json(const ServedScore& score, const std::string& file,
                                                 bool rows);

/// Every comparison, and every run, as CSV.
[[nodiscard]] std::string served_comparisons_csv(const ServedScore& score);
[[nodiscard]] std::string served_runs_csv(const ServedScore& score);

/// Parity, error against load, nominal against observed coverage.
[[nodiscard]] std::vector<Figure> served_figures(const ServedScore& score);

}  // namespace kvsim
