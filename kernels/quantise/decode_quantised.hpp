#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/decode/decode_attention.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// decode_attention that dequantises keys and values as it reads them; the arguments' keys and
/// values stay empty. Bias, score rows and ragged lengths are as there. T is float, kv::Half or
/// kv::BFloat16. shape.page is 0. Errors: as decode_attention.
template <class T, class Code>
void decode_attention_kivi(Stream stream, const kernels::DecodeShape& shape,
                           const KiviCache<Code>& cache, const KiviResidual<T>& residual,
                           const DecodeAttention<T>& arguments);
template <class T>
void decode_attention_fp8(Stream stream, const kernels::DecodeShape& shape, const Fp8Cache& cache,
                          const DecodeAttention<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
