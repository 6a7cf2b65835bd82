#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// Rows of one setting: the same method, model, task, budget, bits, protocol and kept bytes in one
/// harness. A budget in tokens at two lengths of prompts is two settings.
struct QualityGroup {
  std::vector<std::size_t> rows;  // indices
  const QualityRow* first = nullptr;
  std::optional<double> retained{};  // mean over the rows that have it
  /// Of that mean: the rows' own errors, else from their spread where there are several.
  std::optional<double> standard_error{};
  std::optional<double> kept_bytes{};  // of every row
};

/// Groups in the order of their first rows, which have to outlive them.
[[nodiscard]] std::vector<QualityGroup> group_quality(std::span<const QualityRow> rows);

}  // namespace kvsim
