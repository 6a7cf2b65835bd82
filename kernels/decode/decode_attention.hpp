#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Decode attention of one step over a contiguous or paged cache, with its entries split among
/// blocks:
///
///   logit[b,h,e] = scale q[b,h,:] . k[b,h/group,e,:] + bias[b,h/group,e]
///   out[b,h,:]   = sum over e of softmax_e(logit[b,h,:]) v[b,h/group,e,:]
///
/// T is float, kv::Half or kv::BFloat16; sums are fp32.
/// Source: softmax(Q K^T / sqrt(d)) V of Vaswani et al. 2017, eq. (1), its sum over splits by
/// maxima and sums of exponentials as in FlashDecoding (Dao et al. 2023); the bias of entries that
/// represent several (ZeroMerge eq. (8): alpha ln w).
template <class T>
struct DecodeAttention {
  Span<const T> q;             // [batch, n_heads, head_dim]
  Span<const T> keys, values;  // [batch, n_kv_heads, capacity, head_dim]
  Span<const float> bias;      // [batch, n_kv_heads, capacity]; empty: none. -infinity hides an
                               // entry, of which each row must keep one
  float scale = 1;
  Span<T> out;          // [batch, n_heads, head_dim]
  Span<float> logits;   // [batch, n_heads, capacity], bias included; empty: not written
  Span<float> log_sum;  // [batch, n_heads], ln of the sum of exponentials; empty: not written
  Span<float> partial;  // [batch, n_heads, splits, head_dim], scratch
  Span<float> partial_max, partial_sum;  // [batch, n_heads, splits], scratch
  // Paged: keys, values [pages, n_kv_heads, page, head_dim]; page numbers of each sequence
  Span<const std::int32_t> pages{};  // [batch, pages_per_sequence]; empty where shape.page is 0
  // Ragged: entries that each query row attends over, in [0, shape.entries], of none its output is
  // 0 and its log_sum -infinity; empty: shape.entries each
  Span<const std::int32_t> lengths{};  // [batch]
  // Mixed: whose cache, of shape.sequences, each query row reads, so that a prompt's chunk and
  // decodes share a launch; keys, values, bias and pages have sequences in batch's place. Empty:
  // its own
  Span<const std::int32_t> cache_of{};  // [batch]
};

/// Errors: ContractError if the shape is none the kernels have (head_dim 64 or 128, n_heads a
/// multiple of n_kv_heads, sizes >= 1) or a span is shorter than its shape.
template <class T>
void decode_attention(Stream stream, const kernels::DecodeShape& shape,
                      const DecodeAttention<T>& arguments);

/// rows[r, e] = exp(rows[r, e] - log_sum[r]) for the entries of rows of `stride` numbers, a
/// multiple of 4: logits of decode_attention become probabilities.
void normalise_rows(Stream stream, std::int64_t n_rows, std::int64_t entries, std::int64_t stride,
                    Span<const float> log_sum, Span<float> rows);

}  // namespace kvsim::KVSIM_EXECUTOR
