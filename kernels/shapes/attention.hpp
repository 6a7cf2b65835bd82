#pragma once

#include <cstdint>
#include <span>

#include "kernels/shapes/traffic.hpp"

// Decode attention over rows of the element type.

namespace kvsim::kernels {

/// One decode step of attention over a cache.
struct DecodeShape {
  std::int64_t batch = 1, n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t entries = 1;     // attended to, the same for every sequence and head
  std::int64_t capacity = 1;    // entries between one head's cache and the next, >= entries
  std::int64_t entries_per_split = 512;  // a multiple of kDecodeTile
  std::int64_t page = 0;                 // entries per page, a divisor of kDecodeTile; 0:
                                         // contiguous
  std::int64_t pages_per_sequence = 0;   // columns of the page table
  std::int64_t sequences = 0;            // number of caches if query rows share them; 0: one per
                                         // row

  [[nodiscard]] constexpr std::int64_t caches() const { return sequences > 0 ? sequences : batch; }
  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
  [[nodiscard]] constexpr std::int64_t splits() const {
    return ceil_div(entries, entries_per_split);
  }
};
inline constexpr std::int64_t kDecodeTile = 64;
inline constexpr std::int64_t kDecodeThreads = 128;
inline constexpr std::int64_t kDecodeMaxHeads = 8;  // query heads that share a read of the cache

/// Traffic of one split kernel and the combining kernel, for a cache of `cache_bytes` bytes from
/// which a lane reads `per_lane` elements of an entry. Besides the cache, each row of lanes of a
/// block reads its queries, each query head of a group reads an entry's bias, and the partial
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
/// Number of times that each stored head's cache is read: once per eight query heads of a group.
[[nodiscard]] constexpr std::int64_t cache_reads(const DecodeShape& s) {
  return ceil_div(s.group(), kDecodeMaxHeads);
}
/// Rows of the element type. Page numbers are read once per read of the cache.
[[nodiscard]] constexpr KernelTraffic decode_traffic(const DecodeShape& s,
                                                     std::int64_t element_bytes, bool with_bias,
                                                     bool with_logits, bool with_log_sum) {
  const std::int64_t entry = 2 * s.n_kv_heads * s.head_dim * element_bytes;
  const std::int64_t pages = s.page > 0 ? 4 * s.n_kv_heads * ceil_div(s.entries, s.page) : 0;
  return split_traffic(s, s.batch * cache_reads(s) * (s.entries * entry + pages),
                       16 / element_bytes, element_bytes, with_bias, with_logits, with_log_sum);
}
/// Traffic of a ragged batch: the sum of `alone(DecodeShape)`, the traffic of a batch of one, over
/// the query rows of `lengths`, and written zeros for rows without entries. Each warp of a split's
/// block reads the row's length, and its cache's index if rows share caches; the combining warp
/// reads the length.
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

/// Converts the logits of a score row to probabilities in place. Each thread of a row reads the
/// row's sum; a thread handles four entries, or one of the last up to three.
[[nodiscard]] constexpr KernelTraffic normalise_traffic(std::int64_t rows, std::int64_t entries) {
  const std::int64_t threads = entries / 4 + entries % 4;
  return {Bytes{4 * rows * (entries + threads)}, Bytes{4 * rows * entries}};
}

}  // namespace kvsim::kernels
