#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "models/units/check.hpp"

namespace kvsim {

/// Returns the largest n in [1, max] that fits; assumes that no larger n fits if a smaller one does
/// not. nullopt if not even 1 fits.
template <class Fits>
[[nodiscard]] std::optional<std::int64_t> largest_fitting(std::int64_t max, Fits&& fits) {
  KVSIM_CHECK(max >= 1, "the largest of at most {}", max);
  if (!fits(1)) return std::nullopt;
  std::int64_t good = 1;
  std::int64_t bad = 2;
  for (; bad <= max && fits(bad); bad *= 2) good = bad;
  bad = std::min(bad, max + 1);
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace kvsim
