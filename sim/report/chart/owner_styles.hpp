#pragma once

// The name of each HBM owner in figures and the fill of its part of a bar. All figures of all runs
// use the same table, so that they can be compared.

#include <span>
#include <string_view>
#include <vector>

#include "sim/report/chart/chart.hpp"

namespace kvsim {

struct OwnerStyle {
  std::string_view owner;  // as in results: "kv_cache"
  PartStyle style;         // "KV cache" and its fill
};

/// Every owner that results name, in stacking order.
[[nodiscard]] std::span<const OwnerStyle> owner_styles();

/// The owner's row of the table; the row of "other" for an unknown owner.
[[nodiscard]] const PartStyle& style_of_owner(std::string_view owner);

/// The request that failed when memory ran out.
[[nodiscard]] const PartStyle& style_of_refusal();

/// All styles: owners, "other" and the failed request.
[[nodiscard]] std::vector<PartStyle> breakdown_styles();

}  // namespace kvsim
