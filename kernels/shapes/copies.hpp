#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// Copies within a cache, into it and out of it.

namespace kvsim::kernels {

/// to[row, i, :] = from[row, kept[row, i], :]
struct GatherShape {
  std::int64_t rows = 1;           // (sequence, stored head) pairs
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t capacity_from = 1, capacity_to = 1, kept = 1;
};
/// A position is read once per 16 bytes of its entry.
[[nodiscard]] constexpr KernelTraffic gather_traffic(const GatherShape& s) {
  const std::int64_t moved = s.rows * s.kept * s.entry_bytes;
  return {Bytes{moved + moved / 16 * 4}, Bytes{moved}};
}

/// to[slots[row], :] = fresh[row, :]
struct AppendShape {
  std::int64_t rows = 1;           // (sequence, stored head) pairs
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t slots = 1;          // entries of the whole cache
};
/// A slot's index is read once per 16 bytes of its entry.
[[nodiscard]] constexpr KernelTraffic append_traffic(const AppendShape& s) {
  const std::int64_t moved = s.rows * s.entry_bytes;
  return {Bytes{moved + moved / 16 * 8}, Bytes{moved}};
}

/// cache[to[n], :] = cache[from[n], :]
struct MoveShape {
  std::int64_t moves = 1;
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t slots = 1;          // entries of the whole cache
};
/// The indices of both slots are read once per 16 bytes of an entry.
[[nodiscard]] constexpr KernelTraffic move_traffic(const MoveShape& s) {
  const std::int64_t moved = s.moves * s.entry_bytes;
  return {Bytes{moved + moved / 16 * 16}, Bytes{moved}};
}

/// longer[row, :, :] = old[row, :, :] then fresh[row, :]
struct ConcatShape {
  std::int64_t rows = 1;
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t before = 0;         // entries of the old cache
};
[[nodiscard]] constexpr KernelTraffic concat_traffic(const ConcatShape& s) {
  const Bytes longer{s.rows * (s.before + 1) * s.entry_bytes};
  return {longer, longer};
}

/// Entries evicted from a paged cache.
struct LazyPageShape {
  std::int64_t rows = 1, max_leaving = 1;
  std::int64_t page = 16;               // entries
  std::int64_t pages_per_sequence = 1;  // columns of the page table
  std::int64_t n_pages = 1;
};
/// Reads each entry's index and, for the `leaving` evicted entries, their page number; writes a
/// bias for each. One atomic per evicted entry and one more per freed page.
[[nodiscard]] constexpr KernelTraffic lazy_page_traffic(const LazyPageShape& s,
                                                        std::int64_t leaving, std::int64_t freed) {
  return {Bytes{4 * s.rows * s.max_leaving + 4 * leaving}, Bytes{4 * leaving + 4 * freed},
          leaving + freed};
}

}  // namespace kvsim::kernels
