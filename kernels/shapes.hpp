#pragma once

#include <cstdint>
#include <span>

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
inline constexpr std::int64_t kDecodeMostHeads = 8;  // query heads that share a read of the cache

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
  return ceil_div(s.group(), kDecodeMostHeads);
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
/// A ragged batch: what each query row of `lengths` moves alone, which `alone(DecodeShape)` says of
/// a batch of one, and of those without entries their zeros. Each warp of a split's block reads the
/// row's length, and its cache's number where rows share caches; so does the combining one its
/// length.
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

// --- quantised caches ----------------------------------------------------------------------------

inline constexpr std::int64_t kQuantGroup = 32;   // entries (keys) or channels (values) to a step
inline constexpr std::int64_t kQuantPerLane = 8;  // channels to a word of codes

/// Keys or values of `rows` stored heads to be packed in groups.
struct QuantShape {
  std::int64_t rows = 1, entries = 1;
  std::int64_t capacity = 1;    // entries between one row's memory and the next, both sides
  std::int64_t head_dim = 128;  // a multiple of kQuantGroup
};
/// Keys are read twice: for their range, then for their codes. Step and zero are fp16.
[[nodiscard]] constexpr KernelTraffic quantise_keys_traffic(const QuantShape& s,
                                                            std::int64_t element_bytes,
                                                            std::int64_t bits) {
  const std::int64_t groups = ceil_div(s.entries, kQuantGroup);
  return {Bytes{2 * s.rows * s.entries * s.head_dim * element_bytes},
          Bytes{s.rows * (s.entries * (s.head_dim * bits / 8) + groups * s.head_dim * 4)}};
}
[[nodiscard]] constexpr KernelTraffic quantise_values_traffic(const QuantShape& s,
                                                              std::int64_t element_bytes,
                                                              std::int64_t bits) {
  return {Bytes{s.rows * s.entries * s.head_dim * element_bytes},
          Bytes{s.rows * s.entries * (s.head_dim * bits / 8 + s.head_dim / kQuantGroup * 4)}};
}
[[nodiscard]] constexpr KernelTraffic quantise_fp8_traffic(const QuantShape& s,
                                                           std::int64_t element_bytes) {
  return {Bytes{s.rows * s.entries * s.head_dim * element_bytes},
          Bytes{s.rows * s.entries * s.head_dim}};
}

/// Entries of KIVI's cache that are packed: keys in whole runs of `residual`, values all but the
/// newest `residual`. residual 0: all.
[[nodiscard]] constexpr std::int64_t packed_keys(std::int64_t entries, std::int64_t residual) {
  return residual > 0 ? entries / residual * residual : entries;
}
[[nodiscard]] constexpr std::int64_t packed_values(std::int64_t entries, std::int64_t residual) {
  return entries > residual ? entries - residual : 0;
}
/// Bytes of one stored head of KIVI's cache: codes with a step and a zero, in fp16, of each group,
/// and the residual's whole rows. What models/methods calls its size law.
[[nodiscard]] constexpr std::int64_t kivi_bytes(const DecodeShape& s, std::int64_t bits,
                                                std::int64_t element_bytes, std::int64_t residual) {
  const std::int64_t keys = packed_keys(s.entries, residual);
  const std::int64_t values = packed_values(s.entries, residual);
  return (keys + values) * (s.head_dim * bits / 8) + ceil_div(keys, kQuantGroup) * 4 * s.head_dim +
         values * s.head_dim / kQuantGroup * 4 +
         (2 * s.entries - keys - values) * s.head_dim * element_bytes;
}
/// Scales that the lanes of the kernel read beyond once each: of a group of keys, each row of lanes
/// that meets it reads the steps and zeros; of a value's, each of the four lanes of a group.
[[nodiscard]] constexpr std::int64_t kivi_scale_rereads(const DecodeShape& s,
                                                        std::int64_t residual) {
  const std::int64_t keys = packed_keys(s.entries, residual);
  const std::int64_t lane_rows = kDecodeThreads * kQuantPerLane / s.head_dim;
  const std::int64_t last = keys % kQuantGroup;
  const std::int64_t reads = keys / kQuantGroup * lane_rows + (last < lane_rows ? last : lane_rows);
  const std::int64_t of_keys = (reads - ceil_div(keys, kQuantGroup)) * 4 * s.head_dim;
  constexpr std::int64_t kLanes = kQuantGroup / kQuantPerLane;
  return of_keys +
         packed_values(s.entries, residual) * (s.head_dim / kQuantGroup) * (kLanes - 1) * 4;
}
/// Decode attention over KIVI's cache, the residual's rows read as they are.
[[nodiscard]] constexpr KernelTraffic decode_kivi_traffic(const DecodeShape& s, std::int64_t bits,
                                                          std::int64_t element_bytes,
                                                          std::int64_t residual, bool with_bias,
                                                          bool with_logits, bool with_log_sum) {
  const std::int64_t head =
      kivi_bytes(s, bits, element_bytes, residual) + kivi_scale_rereads(s, residual);
  return split_traffic(s, s.batch * s.n_kv_heads * cache_reads(s) * head, kQuantPerLane,
                       element_bytes, with_bias, with_logits, with_log_sum);
}
/// Over directions that two layers share, of whose entries `retained` keys and values together, of
/// all stored heads, are read whole instead. Each lane of a row reads where the entry is retained,
/// and of one that is not the norm.
[[nodiscard]] constexpr KernelTraffic decode_folded_traffic(const DecodeShape& s,
                                                            std::int64_t retained,
                                                            std::int64_t element_bytes) {
  const std::int64_t all = 2 * s.batch * s.n_kv_heads * s.entries;
  const std::int64_t row = s.head_dim * element_bytes;
  return split_traffic(s, cache_reads(s) * (all * row + row / 16 * 4 * (2 * all - retained)),
                       16 / element_bytes, element_bytes, false, false, false);
}
[[nodiscard]] constexpr KernelTraffic decode_fp8_traffic(const DecodeShape& s,
                                                         std::int64_t element_bytes, bool with_bias,
                                                         bool with_logits, bool with_log_sum) {
  return split_traffic(s, s.batch * s.n_kv_heads * cache_reads(s) * 2 * s.entries * s.head_dim,
                       kQuantPerLane, element_bytes, with_bias, with_logits, with_log_sum);
}

// --- score pass of a prompt ----------------------------------------------------------------------

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

// --- scores, selection, compaction ---------------------------------------------------------------

/// scores [rows, stride], probabilities [rows * group, stride]; strides are multiples of 4.
struct ScoreShape {
  std::int64_t rows = 1, group = 1, entries = 1, stride = 4;
};
[[nodiscard]] constexpr KernelTraffic update_scores_traffic(const ScoreShape& s) {
  return {Bytes{4 * s.rows * s.entries * (s.group + 1)}, Bytes{4 * s.rows * s.entries}};
}

/// Logits of the group, and the average, once.
[[nodiscard]] constexpr KernelTraffic log_average_traffic(const ScoreShape& s) {
  return update_scores_traffic(s);
}

/// A ring of `window` steps' scores beside them.
struct WindowShape {
  ScoreShape scores;
  std::int64_t window = 1;
};
/// The group's rows and those of the window but the newest are read; it and their fusion written.
[[nodiscard]] constexpr KernelTraffic fuse_window_traffic(const WindowShape& s) {
  const std::int64_t row = 4 * s.scores.rows * s.scores.entries;
  return {Bytes{row * (s.scores.group + s.window - 1)}, Bytes{2 * row}};
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

// --- copies into a cache -------------------------------------------------------------------------

/// to[slots[row], :] = fresh[row, :]
struct AppendShape {
  std::int64_t rows = 1;           // (sequence, stored head) pairs
  std::int64_t entry_bytes = 256;  // a multiple of 16
  std::int64_t slots = 1;          // entries of the whole cache
};
/// A slot's number is read once for every 16 bytes of its entry.
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
/// Both slots' numbers are read once for every 16 bytes of an entry.
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

/// Entries that leave a paged cache.
struct LazyPageShape {
  std::int64_t rows = 1, most_leaving = 1;
  std::int64_t page = 16;               // entries
  std::int64_t pages_per_sequence = 1;  // of the table
  std::int64_t n_pages = 1;
};
/// Each entry's number; of the `leaving` that are there their page's, and a bias. A count an entry
/// and one more a page freed are atomic.
[[nodiscard]] constexpr KernelTraffic lazy_page_traffic(const LazyPageShape& s,
                                                        std::int64_t leaving, std::int64_t freed) {
  return {Bytes{4 * s.rows * s.most_leaving + 4 * leaving}, Bytes{4 * leaving + 4 * freed},
          leaving + freed};
}

// --- merges, surrogates --------------------------------------------------------------------------

struct MergeShape {
  std::int64_t merges = 1;
  std::int64_t entries = 1;  // rows that pairs are chosen from; slerp: no matter
  std::int64_t head_dim = 128;
};
[[nodiscard]] constexpr KernelTraffic slerp_traffic(const MergeShape& s,
                                                    std::int64_t element_bytes) {
  const std::int64_t rows = s.merges * s.head_dim * element_bytes;
  return {Bytes{2 * rows}, Bytes{rows + 8 * s.merges}};
}
/// Both entries' keys and values, with two positions, votes and scores; one of each is written.
[[nodiscard]] constexpr KernelTraffic zip_merge_traffic(const MergeShape& s,
                                                        std::int64_t element_bytes) {
  const std::int64_t rows = s.merges * s.head_dim * element_bytes;
  return {Bytes{4 * rows + 24 * s.merges}, Bytes{2 * rows + 8 * s.merges}};
}

struct ResidualShape {
  std::int64_t merges = 1;    // rows of a cache, each with one merge
  std::int64_t slots = 1;     // residual ones of a row
  std::int64_t capacity = 2;  // entries of a row
  std::int64_t head_dim = 128;
};
/// The victim's key and value, the keys of all slots, the value of one, its count and the victim's
/// position.
[[nodiscard]] constexpr KernelTraffic residual_traffic(const ResidualShape& s,
                                                       std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.merges * ((3 + s.slots) * row + 8)}, Bytes{s.merges * (2 * row + 4)}};
}

/// Rows whose entries are searched for the key most like that of one that leaves.
struct NearestShape {
  std::int64_t rows = 1;
  std::int64_t entries = 2, capacity = 2;
  std::int64_t head_dim = 128;
};
inline constexpr std::int64_t kNearestWarps = 8;  // of a row's block
/// Every other key once; the victim's key and number by each warp of its row's block.
[[nodiscard]] constexpr KernelTraffic nearest_traffic(const NearestShape& s,
                                                      std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.rows * ((s.entries - 1) * row + kNearestWarps * (row + 4))}, Bytes{8 * s.rows}};
}
/// Two numbers, a cosine and a threshold a row; of those where the entry joins, both entries' keys
/// and values are read and one of each is written.
[[nodiscard]] constexpr KernelTraffic cosine_merge_traffic(const NearestShape& s,
                                                           std::int64_t joined,
                                                           std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{16 * s.rows + 4 * joined * row}, Bytes{8 * s.rows + 2 * joined * row}};
}

/// Rows in which an entry's value may be spread over others'.
struct SpreadShape {
  std::int64_t rows = 1;
  std::int64_t most_takers = 1;
  std::int64_t capacity = 2;
  std::int64_t head_dim = 128;
};
/// `takers` of all rows together, `spread_rows` rows that spread, to `spread_takers`. Takers'
/// numbers are read for the probability and again where the value is spread.
[[nodiscard]] constexpr KernelTraffic spread_traffic(const SpreadShape& s, std::int64_t takers,
                                                     std::int64_t spread_rows,
                                                     std::int64_t spread_takers,
                                                     std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.rows * (12 + 4 * s.most_takers) + 4 * takers +
                spread_rows * (4 * s.most_takers + row) + spread_takers * row},
          Bytes{4 * s.rows + spread_takers * row}};
}

struct SurrogateShape {
  std::int64_t tokens = 1, heads = 1;
  std::int64_t inputs = 8;  // d_model, a multiple of 8
};
/// Each head reads every hidden state, each token every head's weights.
[[nodiscard]] constexpr KernelTraffic linear_score_traffic(const SurrogateShape& s,
                                                           std::int64_t element_bytes) {
  const std::int64_t pairs = s.tokens * s.heads;
  return {Bytes{pairs * (s.inputs * (element_bytes + 4) + 4)}, Bytes{pairs * 8}};
}

/// A linear layer: m rows of k inputs, n outputs.
struct GemmShape {
  std::int64_t m = 1, n = 1;
  std::int64_t k = 8;  // a multiple of 8
};
inline constexpr std::int64_t kGemmTile = 32;  // rows, and outputs, that a block holds
/// Rows once for every tile of outputs, weights for every tile of rows; each warp of a block reads
/// the biases of its outputs.
[[nodiscard]] constexpr KernelTraffic gemm_traffic(const GemmShape& s, std::int64_t a_bytes,
                                                   std::int64_t b_bytes, bool with_bias) {
  const std::int64_t tiles_m = ceil_div(s.m, kGemmTile);
  const std::int64_t tiles_n = ceil_div(s.n, kGemmTile);
  constexpr std::int64_t kWarps = 8;
  return {Bytes{tiles_n * s.m * s.k * a_bytes + tiles_m * s.n * s.k * b_bytes +
                (with_bias ? 4 * kWarps * tiles_m * s.n : 0)},
          Bytes{s.m * s.n * b_bytes}};
}
/// Weights once, the row for every output.
[[nodiscard]] constexpr KernelTraffic gemv_traffic(const GemmShape& s, std::int64_t a_bytes,
                                                   std::int64_t b_bytes, bool with_bias) {
  return {Bytes{s.n * (s.k * (a_bytes + b_bytes) + (with_bias ? 4 : 0))}, Bytes{s.n * b_bytes}};
}

// --- rows of activations -------------------------------------------------------------------------

struct RowsShape {
  std::int64_t rows = 1, width = 1;
};
/// A row's maximum and sum in one pass, its probabilities in a second.
[[nodiscard]] constexpr KernelTraffic softmax_traffic(const RowsShape& s, std::int64_t from_bytes,
                                                      std::int64_t to_bytes) {
  return {Bytes{2 * s.rows * s.width * from_bytes}, Bytes{s.rows * s.width * to_bytes}};
}
/// A row stays in shared memory; each reads the weights.
[[nodiscard]] constexpr KernelTraffic rms_norm_traffic(const RowsShape& s,
                                                       std::int64_t element_bytes) {
  const std::int64_t row = s.width * element_bytes;
  return {Bytes{2 * s.rows * row}, Bytes{s.rows * row}};
}

}  // namespace kvsim::kernels
