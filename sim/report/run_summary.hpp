#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/report/results_folder.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/text_style.hpp"

namespace kvsim {

/// run_summary of table.hpp for a terminal: headings, what fits and what runs out of memory in
/// colour, and HBM over tokens or time as sparklines, as far as `style` has them.
[[nodiscard]] std::string run_summary(const RunReport& report,
                                      const nlohmann::ordered_json& document,
                                      const ResultsFolder* written, const TextStyle& style);

}  // namespace kvsim
