#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// The score pass of a prompt.

namespace kvsim::kernels {

struct PrefillScoreShape {
  std::int64_t n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t tokens = 1;
  std::int64_t first = 0;  // query rows from here on count

  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
  /// The first query tile's start, of those that see keys from `key` on.
  [[nodiscard]] constexpr std::int64_t first_seeing(std::int64_t key) const;
};
inline constexpr std::int64_t kPrefillTile = 32;  // queries, and keys, that a block holds

constexpr std::int64_t PrefillScoreShape::first_seeing(std::int64_t key) const {
  return key <= first ? first : first + (key - first) / kPrefillTile * kPrefillTile;
}
/// First pass: queries once, and for each tile of them the keys up to its last. Second: keys once,
/// and for each tile of them the queries of each head from the first tile that sees one on, with
/// their logarithms for each (query, key) that is seen.
[[nodiscard]] constexpr KernelTraffic prefill_score_traffic(const PrefillScoreShape& s,
                                                            std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  std::int64_t rows = 0;  // of a query head
  for (std::int64_t t = s.first; t < s.tokens; t += kPrefillTile) {
    const std::int64_t end = t + kPrefillTile < s.tokens ? t + kPrefillTile : s.tokens;
    rows += end - t + end;
  }
  std::int64_t pairs = 0;
  for (std::int64_t k = 0; k < s.tokens; k += kPrefillTile) rows += s.tokens - s.first_seeing(k);
  for (std::int64_t t = s.first; t < s.tokens; ++t) pairs += t + 1;
  const std::int64_t keys = s.n_kv_heads * s.tokens * row;
  return {Bytes{s.n_heads * (rows * row + 4 * pairs) + keys},
          Bytes{4 * s.n_heads * (s.tokens - s.first) + 4 * s.n_kv_heads * s.tokens}, 0, 2};
}

/// The same mass by eager steps: matrices of all keys for `rows` query rows from `first` on.
struct EagerScoreShape {
  std::int64_t n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t tokens = 1;
  std::int64_t first = 0;
  std::int64_t rows = 1;  // of a chunk, where there are several

  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
};
/// Queries once for every tile of keys, keys for each query head and every tile of queries; the
/// whole matrix is written, what the mask hides too.
[[nodiscard]] constexpr KernelTraffic score_matrix_traffic(const EagerScoreShape& s,
                                                           std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  const std::int64_t rows =
      s.rows * ceil_div(s.tokens, kPrefillTile) + s.tokens * ceil_div(s.rows, kPrefillTile);
  return {Bytes{s.n_heads * rows * row}, Bytes{s.n_heads * s.rows * s.tokens * element_bytes}};
}
[[nodiscard]] constexpr KernelTraffic column_sums_traffic(const EagerScoreShape& s,
                                                          bool accumulates) {
  const std::int64_t mass = 4 * s.n_kv_heads * s.tokens;
  return {Bytes{4 * s.n_heads * s.rows * s.tokens + (accumulates ? mass : 0)}, Bytes{mass}};
}

}  // namespace kvsim::kernels
