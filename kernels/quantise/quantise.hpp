#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Caches of few bits. A word of codes holds eight channels of one entry, channel c at bit (c % 8) *
// bits: std::uint16_t for 2 bits, std::uint32_t for 4, std::uint64_t for fp8 (e4m3). Rounding is
// that of models/math/quantise.hpp, bit for bit.

/// Asymmetric groups, x ~ zero + step * code, step and zero in fp16. Source: KIVI (Liu et al.
/// 2024).
template <class Code>
struct KiviCache {
  Span<const Code> key_codes, value_codes;        // [rows, capacity, head_dim / 8]
  Span<const kv::Half> key_steps, key_zeros;      // [rows, ceil(capacity / 32), head_dim]
  Span<const kv::Half> value_steps, value_zeros;  // [rows, capacity, head_dim / 32]
};

/// Keys by channel, in groups of 32 consecutive entries (the last may be shorter). T is float,
/// kv::Half or kv::BFloat16; Code std::uint16_t or std::uint32_t. from [rows, capacity, head_dim].
/// Errors: ContractError if head_dim is not a multiple of 32, or a span is shorter than its shape.
template <class T, class Code>
void kivi_quantise_keys(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                        Span<Code> codes, Span<kv::Half> steps, Span<kv::Half> zeros);
/// Values by token, in groups of 32 neighbouring channels.
template <class T, class Code>
void kivi_quantise_values(Stream stream, const kernels::QuantShape& shape, Span<const T> from,
                          Span<Code> codes, Span<kv::Half> steps, Span<kv::Half> zeros);

/// codes = e4m3(from / scale), saturating. Errors: as above, and ContractError unless scale > 0.
template <class T>
void quantise_fp8(Stream stream, const kernels::QuantShape& shape, float scale, Span<const T> from,
                  Span<std::uint64_t> codes);

struct Fp8Cache {
  Span<const std::uint64_t> key_codes, value_codes;  // [rows, capacity, head_dim / 8]
  float key_scale = 1, value_scale = 1;
};

/// The entries that KIVI keeps in full precision: of n entries the last n % length keys and the
/// last length values (all if there are fewer), each stored from the start of its row. length is a
/// multiple of 32; 0: none, and keys and values are empty.
template <class T>
struct KiviResidual {
  Span<const T> keys{}, values{};  // [rows, length, head_dim]
  std::int64_t length = 0;
};

}  // namespace kvsim::KVSIM_EXECUTOR
