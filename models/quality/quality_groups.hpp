#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// Rows of one setting: the same method, model, task, budget, bits, protocol and kept bytes in one
/// harness. A budget in tokens at two prompt lengths is two settings.
struct QualityGroup {
  std::vector<std::size_t> rows;  // indices
  const QualityRow* first = nullptr;
  std::optional<double> retained{};  // mean over the rows with a value
  /// Of that mean: from the rows' own errors, else from their spread if there are several rows.
  std::optional<double> standard_error{};
  std::optional<double> kept_bytes{};  // equal in all rows
};

/// Groups the rows, in the order of their first rows. The rows must outlive the groups.
[[nodiscard]] std::vector<QualityGroup> group_quality(std::span<const QualityRow> rows);

}  // namespace kvsim
