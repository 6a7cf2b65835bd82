#pragma once

// The name of each owner of HBM in figures and the fill of its part of a bar: one table for all
// figures of all runs, so that figures can be compared.

#include <span>
#include <string_view>
#include <vector>

#include "sim/report/chart/chart.hpp"

namespace kvsim {

struct OwnerStyle {
  std::string_view owner;  // as in results: "kv_cache"
  PartStyle style;         // "KV cache" and its fill
};

/// Every owner that results name, in the order in which bars stack them.
[[nodiscard]] std::span<const OwnerStyle> owner_styles();

/// Its row of the table; an unknown owner's is that of "other".
[[nodiscard]] const PartStyle& style_of_owner(std::string_view owner);

/// The request that failed when memory ran out.
[[nodiscard]] const PartStyle& style_of_refusal();

/// All of these: owners, "other" and the failed request.
[[nodiscard]] std::vector<PartStyle> breakdown_styles();

}  // namespace kvsim
