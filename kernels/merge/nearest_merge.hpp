#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Where an entry that leaves goes to the most similar of those that stay (D2O, KeepKV), and D2O's
// merge of the two. A row is a (sequence, stored head) pair, its keys and values [capacity,
// head_dim] of T: float, kv::Half or kv::BFloat16; arithmetic is fp32. head_dim is a multiple of 16
// bytes and at most 32 times that. Errors: ContractError if it is not, a size is < 1, or a span is
// shorter than its shape.

/// nearest[r] = the entry other than victim[r] whose key has the largest cosine with the victim's,
/// of equals the first; cosine[r] is that. A key of zeros has cosine 0. Of a row the first
/// `entries` >= 2 are there.
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

/// The threshold of row r follows cosine[r]: take it where there was none (-infinity), else
/// keep * threshold + (1 - keep) * cosine. Where the cosine u reaches it, the victim joins entry
/// nearest[r] with weights e^u / (e^u + e) and e / (e^u + e); joined[r] says whether.
/// Source: models/math/merging/cosine_merge.hpp (D2O), one entry leaving a row.
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

/// CaM: the value of entry victim[r] is spread over the entries takers[r, :] (each once; -1 beyond
/// their number m) by chance: with p = clamp(A_victim / mean of A over the takers, 0, 1), where
/// chance[r] < p each taker's value gains 1 / m of the victim's; keys stay. `expected`: each gains
/// p / m instead, whatever the chance. attention [rows, capacity]; spread[r] says whether.
/// Source: models/math/value_spread.hpp.
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
