#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Streaming kernels that measure memory bandwidth. Every span holds n numbers, except `sums`,
/// which holds one per block. Errors: ContractError if a span is shorter, or shape.blocks < 1.

/// sums[block] = sum of the numbers that the block strides over.
void stream_read(Stream stream, const kernels::BandwidthShape& shape, Span<const float> in,
                 Span<float> sums);
/// out[i] = value
void stream_write(Stream stream, const kernels::BandwidthShape& shape, float value,
                  Span<float> out);
/// out[i] = in[i]
void stream_copy(Stream stream, const kernels::BandwidthShape& shape, Span<const float> in,
                 Span<float> out);
/// out[i] = a[i] + factor b[i]
void stream_triad(Stream stream, const kernels::BandwidthShape& shape, Span<const float> a,
                  Span<const float> b, float factor, Span<float> out);

}  // namespace kvsim::KVSIM_EXECUTOR
