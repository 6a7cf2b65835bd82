#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Rows of activations [rows, width], T float, kv::Half or kv::BFloat16; sums are fp32.
// Errors: ContractError if a size is < 1, or a span is shorter than its shape.

/// to[r, :] = softmax(from[r, :]); logits of -infinity get probability 0, and each row must have at
/// least one finite logit. Any width.
template <class T>
void softmax_rows(Stream stream, const kernels::RowsShape& shape, Span<const T> from,
                  Span<float> to);

/// to[r, i] = from[r, i] weight[i] / sqrt(mean over j of from[r, j]^2 + epsilon). A row is a
/// multiple of 16 bytes and has at most 12288 elements. Source: RMSNorm (Zhang and Sennrich 2019),
/// eq. (4), with epsilon as in Llama.
template <class T>
void rms_norm_rows(Stream stream, const kernels::RowsShape& shape, float epsilon,
                   Span<const T> from, Span<const T> weight, Span<T> to);

}  // namespace kvsim::KVSIM_EXECUTOR
