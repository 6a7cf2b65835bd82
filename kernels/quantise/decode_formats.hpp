#pragma once

#include "kernels/decode/decode_attention.hpp"
#include "kernels/quantise/formats.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// decode_attention over the cache formats of engines, dequantised in the kernel; arguments.keys
/// and .values stay empty. T is kv::Half or kv::BFloat16. shape.page: 0, or 8 to 64, a power of
/// two. Contiguous rows have a capacity that is a multiple of 8; the memory of entries up to the
/// next multiple of 8 must be readable. Errors: as decode_attention.
template <class T, ByteCode kCode>
void decode_attention_token_head(Stream stream, const kernels::DecodeShape& shape,
                                 const TokenHeadCache& cache, const DecodeAttention<T>& arguments);
/// q is multiplied by the Hadamard matrix (rotate_rows with factor 1) and scale is divided by
/// head_dim. out must be rotated back with factor 1 / head_dim.
template <class T>
void decode_attention_int4(Stream stream, const kernels::DecodeShape& shape, const Int4Cache& cache,
                           const DecodeAttention<T>& arguments);
template <class T>
void decode_attention_nvfp4(Stream stream, const kernels::DecodeShape& shape,
                            const Nvfp4Cache& cache, const DecodeAttention<T>& arguments);
/// Bits of keys and values: 8 and 4, 4 and 4, 3 and 4, 3 and 3. q is rotated by the normalised
/// matrix (rotate_rows with 1 / sqrt(head_dim)) unless keys have 8 bits. A key's levels are scaled
/// to its norm, as in the presets that end in _nc.
template <class T, int kKeyBits, int kValueBits>
void decode_attention_turboquant(Stream stream, const kernels::DecodeShape& shape,
                                 const TurboQuantCache& cache, const DecodeAttention<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
