#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Decode attention of one step over a contiguous or paged cache, whose entries are split among
/// blocks:
///
///   logit[b,h,e] = scale q[b,h,:] . k[b,h/group,e,:] + bias[b,h/group,e]
///   out[b,h,:]   = sum over e of softmax_e(logit[b,h,:]) v[b,h/group,e,:]
///
/// T is float, kv::Half or kv::BFloat16; sums are fp32. Source: softmax(Q K^T / sqrt(d)) V of
/// Vaswani et al. 2017, eq. (1); splits are combined by maxima and sums of exponentials as in
/// FlashDecoding (Dao et al. 2023); the bias of entries that represent several tokens is
/// ZeroMerge's eq. (8), alpha ln w.
template <class T>
struct DecodeAttention {
  Span<const T> q;             // [batch, n_heads, head_dim]
  Span<const T> keys, values;  // [batch, n_kv_heads, capacity, head_dim]
  Span<const float> bias;      // [batch, n_kv_heads, capacity]; empty: none. -infinity hides an
                               // entry; each row must keep at least one visible
  float scale = 1;
  Span<T> out;          // [batch, n_heads, head_dim]
  Span<float> logits;   // [batch, n_heads, capacity], bias included; empty: not written
  Span<float> log_sum;  // [batch, n_heads], log of the sum of exponentials; empty: not written
  Span<float> partial;  // [batch, n_heads, splits, head_dim], scratch
  Span<float> partial_max, partial_sum;  // [batch, n_heads, splits], scratch
  // Paged: keys, values [pages, n_kv_heads, page, head_dim]; page numbers of each sequence
  Span<const std::int32_t> pages{};  // [batch, pages_per_sequence]; empty if shape.page is 0
  // Ragged: number of entries that each query row attends to, in [0, shape.entries]. A row of
  // length 0 has output 0 and log_sum -infinity. Empty: shape.entries for each row
  Span<const std::int32_t> lengths{};  // [batch]
  // Mixed: index of the cache, of shape.sequences, that each query row reads, so that a prompt
  // chunk and decodes share a launch; in keys, values, bias and pages the batch dimension is
  // replaced by sequences. Empty: each row reads its own cache
  Span<const std::int32_t> cache_of{};  // [batch]
};

/// Errors: ContractError if the kernels do not support the shape (head_dim must be 64 or 128,
/// n_heads a multiple of n_kv_heads, sizes >= 1) or a span is shorter than its shape.
template <class T>
void decode_attention(Stream stream, const kernels::DecodeShape& shape,
                      const DecodeAttention<T>& arguments);

/// rows[r, e] = exp(rows[r, e] - log_sum[r]) for the entries of rows of `stride` numbers, a
/// multiple of 4: converts the logits of decode_attention to probabilities.
void normalise_rows(Stream stream, std::int64_t n_rows, std::int64_t entries, std::int64_t stride,
                    Span<const float> log_sum, Span<float> rows);

}  // namespace kvsim::KVSIM_EXECUTOR
