#pragma once

// The parts that the pages of all kinds of results share.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/metrics/metric.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/report/html/page.hpp"

namespace kvsim {

inline constexpr std::size_t kOneLine = 1'000'000;  // columns: sentences are not broken
inline constexpr std::size_t kSummaryWidth = 100;   // columns
inline constexpr std::size_t kMaxExplained = 24;    // points with the terms of their time and peak

/// The schema of the embedded data: incremented if the meaning of a key changes.
inline constexpr const char* kPageSchema = "kvsim.report/1";

/// The non-empty lines of a text, without list dashes.
[[nodiscard]] std::vector<std::string> lines_of(std::string_view text);
/// The lines that begin with one of these words.
[[nodiscard]] std::vector<PageSentence> lines_that_begin(
    const std::string& text, const std::vector<std::string_view>& words);
/// The data of a page of this kind: charts, the document, `extras`, and notes on omitted parts.
/// Displayed names are cleaned and bounded.
[[nodiscard]] nlohmann::ordered_json data_of(const char* kind, nlohmann::ordered_json document,
                                             const FigureSet& figures,
                                             nlohmann::ordered_json extras,
                                             std::vector<std::string> cuts);
/// The metrics that tables of a page show: `key`, `header`, `unit`, `place` in the table of points
/// (0: latencies that only the table of percentiles has) and `latency`.
[[nodiscard]] nlohmann::ordered_json page_columns(const MetricInfos& metrics);
/// Cuts a document's points and their long lists to what a page can hold; reports this in `cuts`.
void cut_points(nlohmann::ordered_json& document, std::vector<std::string>& cuts);
/// The title of a page; if it has none, the name of what it shows.
[[nodiscard]] std::string title_of(const std::string& name, const std::string& title);

}  // namespace kvsim
