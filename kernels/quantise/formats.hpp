#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Cache formats of engines, with codes and scales in separate arrays. Rounding is that of
// models/math (low_float.hpp, low_int.hpp, turboquant.hpp), bit for bit. T is float, kv::Half or
// kv::BFloat16; from is [rows, capacity, head_dim], capacity a multiple of 8. Encoders write
// shape.entries entries per row, and zeros up to a multiple of 8. Rows may be pages: attention then
// reads [pages, n_kv_heads, page, ...]. Errors of all: ContractError if head_dim is neither 64 nor
// 128, or a span is shorter than its shape.

/// Eight bits per channel and a scale per row. A word of codes holds eight channels, the first in
/// the lowest bits. Source: vLLM pull request 38378.
struct TokenHeadCache {
  Span<const std::uint64_t> key_codes, value_codes;  // [rows, capacity, head_dim / 8]
  Span<const float> key_scales, value_scales;        // [rows, capacity]
};
enum class ByteCode : std::uint8_t { kInt8, kE4m3 };
/// scale = max(max |x| / 127 or 448, 1e-6).
template <class T, ByteCode kCode>
void quantise_token_head(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                         Span<std::uint64_t> codes, Span<float> scales);

/// Four bits per channel of a rotated row, and a word with its step and zero point.
/// Source: vLLM vllm/v1/attention/ops/int4_per_token_head.py.
struct Int4Cache {
  Span<const std::uint32_t> key_codes, value_codes;    // [rows, capacity, head_dim / 8]
  Span<const std::uint32_t> key_scales, value_scales;  // [rows, capacity]: fp32 step whose 4 lowest
                                                       // bits are the zero point
};
template <class T>
void quantise_int4_rotated(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                           Span<std::uint32_t> codes, Span<std::uint32_t> scales);

/// E2M1 codes, an E4M3 scale per 16 channels and an fp32 scale per side.
/// Source: vLLM csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu; 4over6: vLLM pull request 45187.
struct Nvfp4Cache {
  Span<const std::uint32_t> key_codes, value_codes;   // [rows, capacity, head_dim / 8]
  Span<const std::uint8_t> key_scales, value_scales;  // [rows, capacity, head_dim / 16]
  float key_global = 1, value_global = 1;
};
/// four_over_six: a group's largest magnitude is mapped to 4 instead of 6 if that reduces the
/// squared error. Errors: ContractError unless global > 0.
template <class T>
void quantise_nvfp4(Stream stream, const kernels::QuantShape& shape, float global,
                    bool four_over_six, Span<const T> from, Span<std::uint32_t> codes,
                    Span<std::uint8_t> scales);

/// Keys as norm and codes of a rotated direction, or E4M3 without a scale; values as step, minimum
/// and codes. Codes form a bit stream that starts at the lowest bit of the first word. Source: vLLM
/// vllm/v1/attention/ops/triton_turboquant_store.py and triton_turboquant_decode.py.
struct TurboQuantCache {
  Span<const std::uint32_t> key_codes, value_codes;  // [rows, capacity, head_dim * bits / 32]
  Span<const kv::Half> key_norms;                    // [rows, capacity]; empty for 8 bits
  Span<const kv::Half> value_scales;                 // [rows, capacity, 2]: step, minimum
};
/// kBits: 3 or 4; levels are those computed by vLLM.
template <class T, int kBits>
void quantise_turboquant_keys(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                              Span<std::uint32_t> codes, Span<kv::Half> norms);
template <class T, int kBits>
void quantise_turboquant_values(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                                Span<std::uint32_t> codes, Span<kv::Half> scales);
/// The keys of preset k8v4: E4M3, saturating.
template <class T>
void quantise_turboquant_bytes(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                               Span<std::uint32_t> codes);

/// to = factor * from times the Hadamard matrix, [rows, head_dim]: queries before attention over
/// rotated keys, outputs after attention over rotated values.
template <class T>
void rotate_rows(Stream stream, std::int64_t rows, std::int64_t head_dim, float factor,
                 Span<const T> from, Span<T> to);

}  // namespace kvsim::KVSIM_EXECUTOR
