#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// The scoring pass over a prompt.

namespace kvsim::kernels {

struct PrefillScoreShape {
  std::int64_t n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t tokens = 1;
  std::int64_t first = 0;  // first query row that is scored

  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
  /// Start of the first query tile that attends to the key tile starting at `key`.
  [[nodiscard]] constexpr std::int64_t first_seeing(std::int64_t key) const;
};
inline constexpr std::int64_t kPrefillTile = 32;  // queries, and keys, per block

constexpr std::int64_t PrefillScoreShape::first_seeing(std::int64_t key) const {
  return key <= first ? first : first + (key - first) / kPrefillTile * kPrefillTile;
}
/// First pass: reads queries once, and for each query tile the keys up to its last. Second pass:
/// reads keys once, and for each key tile the queries of each head from the first tile that attends
/// to it, with a log_sum for each unmasked (query, key) pair.
[[nodiscard]] constexpr KernelTraffic prefill_score_traffic(const PrefillScoreShape& s,
                                                            std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  std::int64_t rows = 0;  // rows per query head
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

/// The same mass by eager kernels: matrices of all keys for `rows` query rows starting at `first`.
struct EagerScoreShape {
  std::int64_t n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t tokens = 1;
  std::int64_t first = 0;
  std::int64_t rows = 1;  // rows of a chunk if there are several

  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
};
/// Queries are read once per tile of keys, keys once per query head and tile of queries. The whole
/// matrix is written, including masked elements.
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
