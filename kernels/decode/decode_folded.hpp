#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/decode/decode_attention.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Keys, or values, of one layer of a pair that share directions: entry e is norms[e] times its
/// direction, or, where retained_at[e] >= 0, that row of `retained` as it is. T is float,
/// kv::Half or kv::BFloat16. Source: MiniCache (Liu et al. 2024), eqs. (2), (3).
template <class T>
struct FoldedRows {
  Span<const T> directions;              // [batch, n_kv_heads, capacity, head_dim], of the pair
  Span<const float> norms;               // [batch, n_kv_heads, capacity], of the layer
  Span<const std::int32_t> retained_at;  // [batch, n_kv_heads, capacity]: a row, or -1
  Span<const T> retained;                // [rows, head_dim], of the layer
};

/// decode_attention, rows restored as they are read (its own keys and values, and its bias, stay
/// empty). shape.page is 0. Errors: as decode_attention.
template <class T>
void decode_attention_folded(Stream stream, const kernels::DecodeShape& shape,
                             const FoldedRows<T>& keys, const FoldedRows<T>& values,
                             const DecodeAttention<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
