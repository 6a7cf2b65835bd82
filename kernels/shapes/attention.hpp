#pragma once

#include <cstdint>
#include <span>

#include "kernels/shapes/traffic.hpp"

// Decode attention, over rows of the element's type.

namespace kvsim::kernels {

/// One decode step of attention over a cache.
struct DecodeShape {
  std::int64_t batch = 1, n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t entries = 1;     // attended, the same for every sequence and head
  std::int64_t capacity = 1;    // entries between one head's cache and the next, >= entries
  std::int64_t entries_per_split = 512;  // a multiple of kDecodeTile
  std::int64_t page = 0;                 // entries a page, a divisor of kDecodeTile; 0: contiguous
  std::int64_t pages_per_sequence = 0;   // of the table
  std::int64_t sequences = 0;            // caches, where query rows share them; 0: one a row

  [[nodiscard]] constexpr std::int64_t caches() const { return sequences > 0 ? sequences : batch; }
  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
  [[nodiscard]] constexpr std::int64_t splits() const {
    return ceil_div(entries, entries_per_split);
  }
};
inline constexpr std::int64_t kDecodeTile = 64;
inline constexpr std::int64_t kDecodeThreads = 128;
inline constexpr std::int64_t kDecodeMaxHeads = 8;  // query heads that share a read of the cache

/// What one split kernel and the combining one move, of a cache that a lane reads `per_lane`
/// elements of an entry from, `cache_bytes` in all. Beyond the cache: each block's rows of lanes
/// read their queries each; the query heads of a group read an entry's bias each; the partial
/// results of every split are written and read in fp32, with a maximum and a sum.
[[nodiscard]] constexpr KernelTraffic split_traffic(const DecodeShape& s, std::int64_t cache_bytes,
                                                    std::int64_t per_lane,
                                                    std::int64_t element_bytes, bool with_bias,
                                                    bool with_logits, bool with_log_sum) {
  const std::int64_t row_bytes = s.head_dim * element_bytes;
  const std::int64_t lane_rows = kDecodeThreads * per_lane / s.head_dim;
  const std::int64_t queries = s.batch * s.n_heads * s.splits() * lane_rows * row_bytes;
  const std::int64_t bias = with_bias ? 4 * s.batch * s.n_heads * s.entries : 0;
  const std::int64_t logits = with_logits ? 4 * s.batch * s.n_heads * s.entries : 0;
  const std::int64_t partials = 4 * s.batch * s.n_heads * s.splits() * (s.head_dim + 2);
  const std::int64_t out = s.batch * s.n_heads * row_bytes;
  const std::int64_t log_sum = with_log_sum ? 4 * s.batch * s.n_heads : 0;
  return {Bytes{cache_bytes + queries + bias + partials}, Bytes{logits + partials + out + log_sum},
          0, 2};
}
/// Times each stored head's cache is read: once for every eight query heads of a group.
[[nodiscard]] constexpr std::int64_t cache_reads(const DecodeShape& s) {
  return ceil_div(s.group(), kDecodeMaxHeads);
}
/// Rows of the element's type. Page numbers are read once for every read of the cache.
[[nodiscard]] constexpr KernelTraffic decode_traffic(const DecodeShape& s,
                                                     std::int64_t element_bytes, bool with_bias,
                                                     bool with_logits, bool with_log_sum) {
  const std::int64_t entry = 2 * s.n_kv_heads * s.head_dim * element_bytes;
  const std::int64_t pages = s.page > 0 ? 4 * s.n_kv_heads * ceil_div(s.entries, s.page) : 0;
  return split_traffic(s, s.batch * cache_reads(s) * (s.entries * entry + pages),
                       16 / element_bytes, element_bytes, with_bias, with_logits, with_log_sum);
}
/// A ragged batch: the sum of what each query row of `lengths` moves on its own, which
/// `alone(DecodeShape)` gives for a batch of one, and zeros for rows without entries. Each warp of
/// a split's block reads the row's length, and its cache's number where rows share caches; so does
/// the combining one its length.
template <class Alone>
[[nodiscard]] constexpr KernelTraffic ragged_traffic(const DecodeShape& s,
                                                     std::span<const std::int32_t> lengths,
                                                     bool shared_caches, std::int64_t element_bytes,
                                                     bool with_log_sum, Alone alone) {
  KernelTraffic all{Bytes{0}, Bytes{0}, 0, 0};
  for (const std::int32_t n : lengths) {
    if (n == 0) {
      all.stored += Bytes{s.n_heads * (s.head_dim * element_bytes + (with_log_sum ? 4 : 0))};
      continue;
    }
    DecodeShape one = s;
    one.batch = 1;
    one.entries = n;
    all = all + alone(one);
  }
  const std::int64_t blocks = s.splits() * s.n_kv_heads * cache_reads(s) * s.batch;
  all.loaded +=
      Bytes{blocks * (kDecodeThreads / 32) * (shared_caches ? 8 : 4) + 4 * s.batch * s.n_heads};
  all.launches = 2;
  return all;
}
/// Multiplications and additions of the two products.
[[nodiscard]] constexpr std::int64_t decode_flops(const DecodeShape& s) {
  return 4 * s.batch * s.n_heads * s.entries * s.head_dim;
}

/// Logits of a score row into probabilities, in place; a row's sum is read by each of its threads
/// (a thread takes four entries, those of the last three at most one each).
[[nodiscard]] constexpr KernelTraffic normalise_traffic(std::int64_t rows, std::int64_t entries) {
  const std::int64_t threads = entries / 4 + entries % 4;
  return {Bytes{4 * rows * (entries + threads)}, Bytes{4 * rows * entries}};
}

}  // namespace kvsim::kernels
