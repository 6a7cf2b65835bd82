#pragma once

#include <cstdint>

#include "kernels/shapes/products.hpp"

// Kernels of a decode loop besides matrix products and attention.

namespace kvsim::kernels {

/// The rows of a fused projection: queries, keys and values of one token per sequence.
struct ProjectedShape {
  std::int64_t batch = 1, n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // half of it is a multiple of 16 bytes

  [[nodiscard]] constexpr std::int64_t width() const {
    return (n_heads + 2 * n_kv_heads) * head_dim;
  }
};
/// Everything is read or written once; each rotated pair reads its cosine and sine.
[[nodiscard]] constexpr KernelTraffic rotate_traffic(const ProjectedShape& s,
                                                     std::int64_t element_bytes) {
  const std::int64_t rows = s.batch * s.width() * element_bytes;
  return {Bytes{rows + 4 * s.batch * (s.n_heads + s.n_kv_heads) * s.head_dim}, Bytes{rows}};
}
[[nodiscard]] constexpr KernelTraffic gate_traffic(const RowsShape& s, std::int64_t element_bytes) {
  const std::int64_t n = s.rows * s.width * element_bytes;
  return {Bytes{2 * n}, Bytes{n}};
}
[[nodiscard]] constexpr KernelTraffic add_traffic(std::int64_t n, std::int64_t element_bytes) {
  return {Bytes{2 * n * element_bytes}, Bytes{n * element_bytes}};
}

/// Rows of a cache, each with a slot for the entry of the step.
struct SlotShape {
  std::int64_t rows = 1;
  std::int64_t capacity = 4;  // entries of a row, a multiple of 4
};
/// Writes a slot index per row and, with `entries`, its position and score; with `chosen` the slot
/// is read.
[[nodiscard]] constexpr KernelTraffic open_slots_traffic(const SlotShape& s, bool chosen,
                                                         bool entries) {
  return {Bytes{chosen ? 4 * s.rows : 0}, Bytes{s.rows * (8 + (entries ? 8 : 0))}};
}
/// A score per entry, and a position per unpinned entry.
[[nodiscard]] constexpr KernelTraffic choose_victims_traffic(std::int64_t rows,
                                                             std::int64_t entries,
                                                             std::int64_t pinned) {
  return {Bytes{4 * rows * (2 * entries - pinned)}, Bytes{4 * rows}};
}
[[nodiscard]] constexpr KernelTraffic count_bias_traffic(std::int64_t rows, std::int64_t slots) {
  return {Bytes{4 * rows * slots}, Bytes{4 * rows * slots}};
}
[[nodiscard]] constexpr KernelTraffic fill_traffic(std::int64_t n, std::int64_t element_bytes) {
  return {Bytes{0}, Bytes{n * element_bytes}};
}
[[nodiscard]] constexpr KernelTraffic copy_values_traffic(std::int64_t n,
                                                          std::int64_t element_bytes) {
  return {Bytes{n * element_bytes}, Bytes{n * element_bytes}};
}

}  // namespace kvsim::kernels
