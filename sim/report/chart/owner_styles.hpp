#pragma once

// What each owner of HBM is called in figures and how its part of a bar is filled: one table for
// all figures of all runs, so that two figures side by side can be compared.

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

/// What was asked for when memory ran out, and not had.
[[nodiscard]] const PartStyle& style_of_refusal();

/// All of these: owners, "other" and what was asked for.
[[nodiscard]] std::vector<PartStyle> breakdown_styles();

}  // namespace kvsim
