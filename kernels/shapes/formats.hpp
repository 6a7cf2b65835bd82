#pragma once

#include <cstdint>

#include "kernels/shapes/attention.hpp"
#include "kernels/shapes/quantised.hpp"

// Cache formats of engines: low-bit codes with scales in separate arrays, so that both are read 16
// bytes at a time.

namespace kvsim::kernels {

/// Encoders fill entries up to a multiple of this number with zeros, because attention reads whole
/// 16-byte words.
inline constexpr std::int64_t kPadEntries = 8;
[[nodiscard]] constexpr std::int64_t padded_entries(std::int64_t entries) {
  return ceil_div(entries, kPadEntries) * kPadEntries;
}

/// Bytes of one entry of one KV head.
struct CodeFormat {
  std::int64_t key_codes = 0, value_codes = 0;
  std::int64_t key_scales = 0, value_scales = 0;

  [[nodiscard]] constexpr std::int64_t bytes() const {
    return key_codes + value_codes + key_scales + value_scales;
  }
};
/// One fp32 scale per row: vLLM's int8, fp8 and int4 per token-head.
[[nodiscard]] constexpr CodeFormat token_head_format(std::int64_t head_dim, std::int64_t bits) {
  return {head_dim * bits / 8, head_dim * bits / 8, 4, 4};
}
/// E4M3 codes with one scale per layer.
[[nodiscard]] constexpr CodeFormat fp8_format(std::int64_t head_dim) {
  return {head_dim, head_dim, 0, 0};
}
/// One E4M3 scale per 16 channels.
[[nodiscard]] constexpr CodeFormat nvfp4_format(std::int64_t head_dim) {
  return {head_dim / 2, head_dim / 2, head_dim / 16, head_dim / 16};
}
/// Keys with an fp16 norm (none for 8 bits), values with an fp16 step and minimum. key_bits: 3, 4
/// or 8; value_bits: 3 or 4.
[[nodiscard]] constexpr CodeFormat turboquant_format(std::int64_t head_dim, std::int64_t key_bits,
                                                     std::int64_t value_bits) {
  return {head_dim * key_bits / 8, head_dim * value_bits / 8, key_bits == 8 ? 0 : 2, 4};
}

/// Encodes one side of a cache from rows of 16-bit or 32-bit elements.
[[nodiscard]] constexpr KernelTraffic encode_traffic(const QuantShape& s,
                                                     std::int64_t element_bytes,
                                                     std::int64_t row_bytes) {
  return {Bytes{s.rows * s.entries * s.head_dim * element_bytes},
          Bytes{s.rows * padded_entries(s.entries) * row_bytes}};
}
/// Rows rotated by the Hadamard matrix.
[[nodiscard]] constexpr KernelTraffic rotate_rows_traffic(std::int64_t rows, std::int64_t head_dim,
                                                          std::int64_t element_bytes) {
  return {Bytes{rows * head_dim * element_bytes}, Bytes{rows * head_dim * element_bytes}};
}

/// Bytes of one stored head as read by attention, each array rounded up to 16 bytes.
[[nodiscard]] constexpr std::int64_t staged_bytes(const CodeFormat& f, std::int64_t entries) {
  const auto whole = [&](std::int64_t per_entry) { return ceil_div(entries * per_entry, 16) * 16; };
  return whole(f.key_codes) + whole(f.value_codes) + whole(f.key_scales) + whole(f.value_scales);
}
/// Attention over codes that a block copies into shared memory, tile by tile. Page numbers are read
/// once per read of the cache.
[[nodiscard]] constexpr KernelTraffic decode_codes_traffic(const DecodeShape& s,
                                                           const CodeFormat& format,
                                                           std::int64_t element_bytes,
                                                           bool with_bias, bool with_logits,
                                                           bool with_log_sum) {
  const std::int64_t pages = s.page > 0 ? 4 * ceil_div(s.entries, s.page) : 0;
  const std::int64_t head = staged_bytes(format, s.entries) + pages;
  return split_traffic(s, s.batch * s.n_kv_heads * cache_reads(s) * head, kQuantPerLane,
                       element_bytes, with_bias, with_logits, with_log_sum);
}

}  // namespace kvsim::kernels
