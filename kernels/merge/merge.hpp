#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Kernels of merging methods over rows [entries, head_dim]. T is float, kv::Half or kv::BFloat16;
// arithmetic is fp32. A warp handles one merge, so a row is a multiple of 16 bytes and at most 32
// times that (slerp_rows: 256 times). Errors: ContractError if it is not, a size is < 1, or a span
// is shorter than its shape.

/// direction[n, :] = the rows' common direction, t of the way from a to b on the sphere; norms of
/// both, and the distance angle / pi between them (an empty span: not written). Zero, parallel and
/// opposite rows are handled as in models/math/merging/slerp.hpp. A row belongs to one head, or to
/// all KV heads of a token. Source: MiniCache (Liu et al. 2024), eqs. (3), (4).
template <class T>
void slerp_rows(Stream stream, const kernels::MergeShape& shape, float t, Span<const T> a,
                Span<const T> b, Span<T> direction, Span<float> norm_a, Span<float> norm_b,
                Span<float> distance = {});

/// Merges entry from[n] into entry into[n] so that the output under their estimated scores is
/// unchanged: the rule kGuarded of models/math/merging/zip_merge.hpp, without its bound on
/// products. votes and log_scores [entries]; both are updated for `into`. No entry is in two
/// merges. Source: KeepKV, eqs. (6), (7), (25).
template <class T>
struct ZipPairs {
  Span<const std::int32_t> into, from;  // [merges]
  Span<T> keys, values;                 // [entries, head_dim]
  Span<float> votes, log_scores;        // [entries]
};
template <class T>
void zip_merge_pairs(Stream stream, const kernels::MergeShape& shape, const ZipPairs<T>& arguments);

/// The entry victim[n] of row n is averaged into the residual slot of the row whose key has the
/// largest dot product with its own, the first of equal ones: x += (victim - x) / (count + 1),
/// count += 1. Slots are a row's first `slots` entries; a row has `capacity`. Source: ZeroMerge,
/// eqs. (6), (7).
template <class T>
struct ResidualMerge {
  Span<const std::int32_t> victim;  // [merges], entry indices within their row, at least `slots`
  Span<T> keys, values;             // [merges, capacity, head_dim]
  Span<std::int32_t> counts;        // [merges, slots]
};
template <class T>
void residual_merge(Stream stream, const kernels::ResidualShape& shape,
                    const ResidualMerge<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
