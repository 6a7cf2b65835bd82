#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// Streaming kernels that measure the peak bandwidth.

namespace kvsim::kernels {

/// Streams over n fp32 numbers.
struct BandwidthShape {
  std::int64_t n = 0;
  std::int64_t blocks = 0;  // of the grid, which strides over the array
};
inline constexpr std::int64_t kBandwidthThreads = 256;

/// Reads everything and writes one partial sum per block.
[[nodiscard]] constexpr KernelTraffic read_traffic(const BandwidthShape& s) {
  return {Bytes{4 * s.n}, Bytes{4 * s.blocks}};
}
[[nodiscard]] constexpr KernelTraffic write_traffic(const BandwidthShape& s) {
  return {Bytes{0}, Bytes{4 * s.n}};
}
[[nodiscard]] constexpr KernelTraffic copy_traffic(const BandwidthShape& s) {
  return {Bytes{4 * s.n}, Bytes{4 * s.n}};
}
[[nodiscard]] constexpr KernelTraffic triad_traffic(const BandwidthShape& s) {
  return {Bytes{8 * s.n}, Bytes{4 * s.n}};
}

}  // namespace kvsim::kernels
