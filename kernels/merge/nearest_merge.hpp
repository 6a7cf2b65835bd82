#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Search for the kept entry that is most similar to an evicted entry (D2O, KeepKV), and D2O's merge
// of the two. A row is a (sequence, stored head) pair, its keys and values [capacity, head_dim] of
// T: float, kv::Half or kv::BFloat16; arithmetic is fp32. A row is a multiple of 16 bytes and at
// most 32 times that. Errors: ContractError if it is not, a size is < 1, or a span is shorter than
// its shape.

/// nearest[r] = the entry other than victim[r] whose key has the largest cosine with the victim's,
/// the first of equal ones; cosine[r] is this cosine. A key of zeros has cosine 0. The first
/// `entries` >= 2 entries of a row are searched.
template <class T>
struct NearestKeys {
  Span<const T> keys;               // [rows, capacity, head_dim]
  Span<const std::int32_t> victim;  // [rows]
  Span<std::int32_t> nearest;       // [rows]
  Span<float> cosine;               // [rows]
};
template <class T>
void nearest_keys(Stream stream, const kernels::NearestShape& shape,
                  const NearestKeys<T>& arguments);

/// The threshold of row r follows cosine[r]: it becomes the cosine if it was unset (-infinity),
/// else keep * threshold + (1 - keep) * cosine. If the cosine u reaches it, the victim is merged
/// into entry nearest[r] with weights e^u / (e^u + e) and e / (e^u + e); joined[r] states whether.
/// Source: models/math/merging/cosine_merge.hpp (D2O), for one evicted entry per row.
template <class T>
struct CosineMerge {
  Span<const std::int32_t> victim, nearest;  // [rows]
  Span<const float> cosine;                  // [rows]
  float keep = 0.5F;
  Span<float> threshold;      // [rows]
  Span<T> keys, values;       // [rows, capacity, head_dim]
  Span<std::int32_t> joined;  // [rows], 0 or 1
};
template <class T>
void cosine_merge_entries(Stream stream, const kernels::NearestShape& shape,
                          const CosineMerge<T>& arguments);

/// CaM: the value of entry victim[r] is spread at random over the m entries takers[r, :] (distinct,
/// padded with -1). With p = clamp(A_victim / mean of A over the takers, 0, 1), each taker's value
/// gains 1 / m of the victim's if chance[r] < p; keys are unchanged. With `expected` each gains p /
/// m regardless of chance[r]. attention [rows, capacity]; spread[r] states whether the value was
/// spread. Source: models/math/value_spread.hpp.
template <class T>
struct ValueSpread {
  Span<const std::int32_t> victim;  // [rows]
  Span<const std::int32_t> takers;  // [rows, max_takers]
  Span<const float> attention;      // [rows, capacity]
  Span<const float> chance;         // [rows], in [0, 1)
  bool expected = false;
  Span<T> values;             // [rows, capacity, head_dim]
  Span<std::int32_t> spread;  // [rows], 0 or 1
};
template <class T>
void spread_values(Stream stream, const kernels::SpreadShape& shape,
                   const ValueSpread<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
