#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/report/chart/chart.hpp"
#include "validation/measured/kernel_accuracy.hpp"

namespace kvsim {

/// The results of `kvsim validate measured`.
struct MeasuredScore {
  std::vector<MeasuredFile> files;
  std::vector<PredictedRow> rows{};  // of all files, in their order
  std::vector<AccuracyGroup> groups{};
  std::string unseen = "nothing";  // calibrations hidden from predictions
};

/// Document "kvsim.validate-measured/1".
[[nodiscard]] nlohmann::ordered_json measured_json(const MeasuredScore& score, bool with_rows);
[[nodiscard]] std::string measured_csv(const MeasuredScore& score);
[[nodiscard]] std::string measured_text(const MeasuredScore& score, std::size_t width);
/// A section of docs/accuracy.md: the pooled kernel families, then every group within them.
[[nodiscard]] std::string measured_markdown(const MeasuredScore& score, const std::string& title);
/// Predicted against measured times, one figure per family.
[[nodiscard]] std::vector<Figure> measured_figures(const MeasuredScore& score);

}  // namespace kvsim
