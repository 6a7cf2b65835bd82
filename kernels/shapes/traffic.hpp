#pragma once

#include <cstdint>

#include "models/units/units.hpp"

// Shared parts of all traffic formulas.

namespace kvsim::kernels {

/// The traffic of a launch. Bytes are payload as requested by threads: bytes read by several
/// threads count once for each thread.
struct KernelTraffic {
  Bytes loaded, stored;
  std::int64_t atomics = 0;  // on global memory
  std::int64_t launches = 1;

  friend constexpr KernelTraffic operator+(const KernelTraffic& a, const KernelTraffic& b) {
    return {a.loaded + b.loaded, a.stored + b.stored, a.atomics + b.atomics,
            a.launches + b.launches};
  }
  friend bool operator==(const KernelTraffic&, const KernelTraffic&) = default;
};

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace kvsim::kernels
