#pragma once

// The output of `kvsim validate published`: text, JSON, CSV and figures of one score.

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "validation/published/published_score.hpp"

namespace kvsim {

/// Tables: errors by metric, verdicts, coverage, and rows without a prediction by reason; with
/// `rows` every row.
[[nodiscard]] std::string published_text(const PublishedScore& score, bool rows, std::size_t width);
/// Schema kvsim.validate-published/1.
[[nodiscard]] nlohmann::ordered_json published_json(const PublishedScore& score,
                                                    const std::string& file, bool rows);
/// One line per row.
[[nodiscard]] std::string published_csv(const PublishedScore& score);
/// Predicted against published by document, one figure per kind of metric, and coverage.
[[nodiscard]] std::vector<Figure> published_figures(const PublishedScore& score);

}  // namespace kvsim
