#pragma once

#include <cstdint>

#include "kernels/shapes/attention.hpp"

// Low-bit caches, and caches of directions shared by two layers.

namespace kvsim::kernels {

inline constexpr std::int64_t kQuantGroup = 32;   // entries (keys) or channels (values) per step
inline constexpr std::int64_t kQuantPerLane = 8;  // channels per word of codes

/// Keys or values of `rows` stored heads, packed in groups.
struct QuantShape {
  std::int64_t rows = 1, entries = 1;
  std::int64_t capacity = 1;    // entries between one row's memory and the next, in source and
                                // codes
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

/// Entries of KIVI's cache that are packed: keys in whole runs of `residual`, values all except the
/// newest `residual`. residual 0: all.
[[nodiscard]] constexpr std::int64_t packed_keys(std::int64_t entries, std::int64_t residual) {
  return residual > 0 ? entries / residual * residual : entries;
}
[[nodiscard]] constexpr std::int64_t packed_values(std::int64_t entries, std::int64_t residual) {
  return entries > residual ? entries - residual : 0;
}
/// Bytes of one stored head of KIVI's cache: codes with an fp16 step and zero per group, and the
/// unpacked rows of the residual. The size law in models/methods.
[[nodiscard]] constexpr std::int64_t kivi_bytes(const DecodeShape& s, std::int64_t bits,
                                                std::int64_t element_bytes, std::int64_t residual) {
  const std::int64_t keys = packed_keys(s.entries, residual);
  const std::int64_t values = packed_values(s.entries, residual);
  return (keys + values) * (s.head_dim * bits / 8) + ceil_div(keys, kQuantGroup) * 4 * s.head_dim +
         values * s.head_dim / kQuantGroup * 4 +
         (2 * s.entries - keys - values) * s.head_dim * element_bytes;
}
/// Number of repeated reads of scales: each row of lanes that processes a group of keys reads its
/// steps and zeros, and each of the four lanes of a value's group reads its step and zero.
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
/// Decode attention over KIVI's cache; the residual's rows are read unpacked.
[[nodiscard]] constexpr KernelTraffic decode_kivi_traffic(const DecodeShape& s, std::int64_t bits,
                                                          std::int64_t element_bytes,
                                                          std::int64_t residual, bool with_bias,
                                                          bool with_logits, bool with_log_sum) {
  const std::int64_t head =
      kivi_bytes(s, bits, element_bytes, residual) + kivi_scale_rereads(s, residual);
  return split_traffic(s, s.batch * s.n_kv_heads * cache_reads(s) * head, kQuantPerLane,
                       element_bytes, with_bias, with_logits, with_log_sum);
}
/// Decode attention over directions shared by two layers. `retained` keys and values in total, over
/// all stored heads, are read unmerged instead. Each lane of a row reads the entry's retained_at,
/// and its norm if the entry is not retained.
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

}  // namespace kvsim::kernels
