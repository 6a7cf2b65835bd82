#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Attention mass of each key of a prompt from its last queries, in two passes that do not store
/// the score matrix:
///
///   log_sum[h, t] = ln of the sum over i <= t of e^(scale q[h,t,:] . k[h/group,i,:])
///   mass[h/group, i] = sum over the group's heads h and over t >= max(i, first) of
///                      decay^(tokens-1-t) e^(scale q[h,t,:] . k[h/group,i,:] - log_sum[h,t])
///
/// first = 0 and decay = 1 yield H2O's accumulated score, decay < 1 ZeroMerge's, and first = tokens
/// - window SnapKV's last window. q [n_heads, tokens, head_dim], keys [n_kv_heads, tokens,
/// head_dim], T float, kv::Half or kv::BFloat16; log_sum [n_heads, tokens] (only t >= first is
/// written), mass [n_kv_heads, tokens]; sums are fp32. Errors: ContractError if head_dim is not 64
/// or 128, n_heads is not a multiple of n_kv_heads, first is outside [0, tokens), decay is outside
/// (0, 1], or a span is shorter than its shape.
template <class T>
struct PrefillScores {
  Span<const T> q, keys;
  float scale = 1, decay = 1;
  Span<float> log_sum, mass;
};
template <class T>
void prefill_scores(Stream stream, const kernels::PrefillScoreShape& shape,
                    const PrefillScores<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
