#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/decode/decode_attention.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Keys, or values, of one layer of a pair of layers that share directions: entry e is norms[e]
/// times its direction, or row retained_at[e] of `retained` if that is >= 0. T is float, kv::Half
/// or kv::BFloat16. Source: MiniCache (Liu et al. 2024), eqs. (2), (3).
template <class T>
struct FoldedRows {
  Span<const T> directions;              // [batch, n_kv_heads, capacity, head_dim], shared by the
                                         // pair
  Span<const float> norms;               // [batch, n_kv_heads, capacity], of the layer
  Span<const std::int32_t> retained_at;  // [batch, n_kv_heads, capacity]: a row, or -1
  Span<const T> retained;                // [rows, head_dim], of the layer
};

/// decode_attention that restores rows as it reads them; the arguments' keys, values and bias stay
/// empty. shape.page is 0. Errors: as decode_attention.
template <class T>
void decode_attention_folded(Stream stream, const kernels::DecodeShape& shape,
                             const FoldedRows<T>& keys, const FoldedRows<T>& values,
                             const DecodeAttention<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
