#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// What methods that merge do to rows [entries, head_dim], T float, kv::Half or kv::BFloat16;
// arithmetic is fp32. A warp takes one merge, so head_dim is a multiple of 16 bytes and at most 32
// times that (slerp_rows: 256 times). Errors: ContractError if it is not, a size is < 1, or a span
// is shorter than its shape.

/// direction[n, :] = the rows' common direction, t of the way from a to b on the sphere; norms of
/// both, and the distance angle / pi between them (an empty span: not written). Rows of zeros, of
/// one direction and of opposite ones as models/math/merging/slerp.hpp says. A row is that of a
/// head, or of all KV heads of a token. Source: MiniCache (Liu et al. 2024), eqs. (3), (4).
template <class T>
void slerp_rows(Stream stream, const kernels::MergeShape& shape, float t, Span<const T> a,
                Span<const T> b, Span<T> direction, Span<float> norm_a, Span<float> norm_b,
                Span<float> distance = {});

/// Entry from[n] joins entry into[n] so that the output under their estimated scores stays: the
/// rule kGuarded of models/math/merging/zip_merge.hpp, without its bound on products. votes and
/// log_scores [entries]; of `into` both change. No entry is in two merges. Source: KeepKV, eqs.
/// (6), (7), (25).
template <class T>
struct ZipPairs {
  Span<const std::int32_t> into, from;  // [merges]
  Span<T> keys, values;                 // [entries, head_dim]
  Span<float> votes, log_scores;        // [entries]
};
template <class T>
void zip_merge_pairs(Stream stream, const kernels::MergeShape& shape, const ZipPairs<T>& arguments);

/// The entry victim[n] of row n is averaged into that residual slot of the row whose key is most
/// like its own by dot product, of equals the first: x += (victim - x) / (count + 1), count += 1.
/// Slots are a row's first `slots` entries; a row has `capacity`. Source: ZeroMerge, eqs. (6), (7).
template <class T>
struct ResidualMerge {
  Span<const std::int32_t> victim;  // [merges], entries of their row, at least `slots`
  Span<T> keys, values;             // [merges, capacity, head_dim]
  Span<std::int32_t> counts;        // [merges, slots]
};
template <class T>
void residual_merge(Stream stream, const kernels::ResidualShape& shape,
                    const ResidualMerge<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
