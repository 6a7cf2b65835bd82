#pragma once

#include <algorithm>
#include <cstdint>

namespace kvsim {

/// Query rows of the next attempt after an allocation for `rows` of them was refused. ZeroMerge's
/// code divides its query chunk by four on an OOM and keeps that size in subsequent layers.
[[nodiscard]] constexpr std::int64_t fewer_score_rows(std::int64_t rows) {
  constexpr std::int64_t kDivisor = 4;
  return std::max<std::int64_t>(1, rows / kDivisor);
}

}  // namespace kvsim
