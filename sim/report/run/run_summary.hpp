#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/report/folder/results_folder.hpp"
#include "sim/report/text/text_style.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The summary of a run's `document` (run_document) for the terminal: a title line, the table of
/// its points, what fits, what fails first and why, published values next to the predicted ones,
/// the replay's table, notes, and the locations of files (`written` null: none were written).
[[nodiscard]] std::string run_summary(const RunReport& report,
                                      const nlohmann::ordered_json& document,
                                      const ResultsFolder* written, std::size_t width = 80);
/// The same with the features of `style`: headings, what fits and what runs out of memory in
/// colour, and HBM over tokens or time as sparklines.
[[nodiscard]] std::string run_summary(const RunReport& report,
                                      const nlohmann::ordered_json& document,
                                      const ResultsFolder* written, const TextStyle& style);

}  // namespace kvsim
