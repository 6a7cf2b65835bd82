#pragma once

#include <algorithm>
#include <cstdint>

namespace kvsim {

/// Query rows of the next try where `rows` of them were refused memory: ZeroMerge's code quarters
/// its query chunk on an OOM, and keeps to it in the layers after.
[[nodiscard]] constexpr std::int64_t fewer_score_rows(std::int64_t rows) {
  constexpr std::int64_t kDivisor = 4;
  return std::max<std::int64_t>(1, rows / kDivisor);
}

}  // namespace kvsim
