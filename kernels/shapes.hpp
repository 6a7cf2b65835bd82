#pragma once

#include <cstdint>

#include "models/units/units.hpp"

// Sizes that the launches of kernels take, and the traffic of each kernel as an exact formula of
// them. Plain numbers: no executor, no CUDA. tests/kernels holds the simulator's counts to them.

namespace kvsim::kernels {

/// What a launch moves. Bytes are payload, as threads ask for them: what several threads read alike
/// is counted for each, as the formulas say.
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

// --- bandwidth -----------------------------------------------------------------------------------

/// Streams over n fp32 numbers.
struct BandwidthShape {
  std::int64_t n = 0;
  std::int64_t blocks = 0;  // of the grid, which strides over the array
};
inline constexpr std::int64_t kBandwidthThreads = 256;

/// Reads all, writes a partial sum a block.
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

// --- decode attention ----------------------------------------------------------------------------

/// One decode step of attention over a contiguous cache.
struct DecodeShape {
  std::int64_t batch = 1, n_heads = 1, n_kv_heads = 1;
  std::int64_t head_dim = 128;  // 64 or 128
  std::int64_t entries = 1;     // attended, the same for every sequence and head
  std::int64_t capacity = 1;    // entries between one head's cache and the next, >= entries
  std::int64_t entries_per_split = 512;  // a multiple of kDecodeTile

  [[nodiscard]] constexpr std::int64_t group() const { return n_heads / n_kv_heads; }
  [[nodiscard]] constexpr std::int64_t splits() const {
    return ceil_div(entries, entries_per_split);
  }
};
inline constexpr std::int64_t kDecodeTile = 64;
inline constexpr std::int64_t kDecodeThreads = 128;
inline constexpr std::int64_t kDecodeMostHeads = 8;  // query heads that share a read of the cache

/// The split kernel and the combining one. Keys and values are read once for every eight query
/// heads of a group. Beyond that: each block's rows of lanes read their queries each; the query
/// heads of a group read an entry's bias each; the partial results of every split are written and
/// read in fp32, with a maximum and a sum.
[[nodiscard]] constexpr KernelTraffic decode_traffic(const DecodeShape& s,
                                                     std::int64_t element_bytes, bool with_bias,
                                                     bool with_logits, bool with_log_sum) {
  const std::int64_t reads = ceil_div(s.group(), kDecodeMostHeads);
  const std::int64_t cache =
      2 * s.batch * s.n_kv_heads * s.entries * s.head_dim * element_bytes * reads;
  const std::int64_t row_bytes = s.head_dim * element_bytes;
  const std::int64_t lane_rows = kDecodeThreads * 16 / row_bytes;
  const std::int64_t queries = s.batch * s.n_heads * s.splits() * lane_rows * row_bytes;
  const std::int64_t bias = with_bias ? 4 * s.batch * s.n_heads * s.entries : 0;
  const std::int64_t logits = with_logits ? 4 * s.batch * s.n_heads * s.entries : 0;
  const std::int64_t partials = 4 * s.batch * s.n_heads * s.splits() * (s.head_dim + 2);
  const std::int64_t out = s.batch * s.n_heads * row_bytes;
  const std::int64_t log_sum = with_log_sum ? 4 * s.batch * s.n_heads : 0;
  return {Bytes{cache + queries + bias + partials}, Bytes{logits + partials + out + log_sum}, 0, 2};
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

// --- scores, selection, compaction ---------------------------------------------------------------

/// scores [rows, stride], probabilities [rows * group, stride]; strides are multiples of 4.
struct ScoreShape {
  std::int64_t rows = 1, group = 1, entries = 1, stride = 4;
};
[[nodiscard]] constexpr KernelTraffic update_scores_traffic(const ScoreShape& s) {
  return {Bytes{4 * s.rows * s.entries * (s.group + 1)}, Bytes{4 * s.rows * s.entries}};
}

/// Rows of scores to choose from.
struct SelectShape {
  std::int64_t rows = 1, entries = 1, stride = 4;
  std::int64_t keep = 1;  // top-C alone: C
};
[[nodiscard]] constexpr KernelTraffic argmin_traffic(const SelectShape& s) {
  return {Bytes{4 * s.rows * s.entries}, Bytes{8 * s.rows}};
}
/// Four passes find the threshold, eight bits each, a fifth writes the positions kept.
[[nodiscard]] constexpr KernelTraffic top_traffic(const SelectShape& s) {
  const std::int64_t kept = s.keep < s.entries ? s.keep : s.entries;
  return {Bytes{5 * 4 * s.rows * s.entries}, Bytes{4 * s.rows * kept}};
}

/// to[row, i, :] = from[row, kept[row, i], :]
struct GatherShape {
  std::int64_t rows = 1;           // (sequence, stored head) pairs
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t capacity_from = 1, capacity_to = 1, kept = 1;
};
/// A position is read once for every 16 bytes of its entry.
[[nodiscard]] constexpr KernelTraffic gather_traffic(const GatherShape& s) {
  const std::int64_t moved = s.rows * s.kept * s.entry_bytes;
  return {Bytes{moved + moved / 16 * 4}, Bytes{moved}};
}

}  // namespace kvsim::kernels
