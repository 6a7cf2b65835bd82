#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

// The kernels of a decode loop besides matrix products and attention. T is float, kv::Half or
// kv::BFloat16; arithmetic is fp32. Errors: ContractError if a size is < 1 or a span is shorter
// than its shape.

namespace kvsim::KVSIM_EXECUTOR {

/// Rotates pair (j, j + head_dim / 2) of each query and key by its angle (half-split style) and
/// copies values. projected [batch, (n_heads + 2 n_kv_heads) head_dim]; turns [head_dim]: the
/// cosines of the step's position, then its sines; q [batch, n_heads, head_dim], keys and values
/// [batch, n_kv_heads, head_dim]. Source: RoFormer (Su et al. 2021), eq. (34), in Hugging Face's
/// order.
template <class T>
void split_and_rotate(Stream stream, const kernels::ProjectedShape& shape, Span<const T> projected,
                      Span<const float> turns, Span<T> q, Span<T> keys, Span<T> values);

/// out[r, i] = silu(both[r, i]) both[r, width + i]. A row is a multiple of 16 bytes.
template <class T>
void gate_product(Stream stream, const kernels::RowsShape& shape, Span<const T> both, Span<T> out);

/// to[i] += x[i], n a multiple of 16 bytes.
template <class T>
void add_rows(Stream stream, std::int64_t n, Span<const T> x, Span<T> to);

/// to[i] = uniform in (low, high), from a counter-based generator: the same on every executor.
template <class T>
void fill_random(Stream stream, std::uint64_t key, float low, float high, Span<T> to);

/// to[i] = from[i]; T may also be std::int32_t. For data that the host uploads in parts.
template <class T>
void copy_values(Stream stream, Span<const T> from, Span<T> to);

/// The slot of row r is victims[r], or `slot` if there are no victims: slots[r] = r capacity +
/// slot, as append_entries expects. In positions and scores [rows, capacity] the slot is set to
/// `position` and 0; both are empty if they are not tracked.
struct OpenSlots {
  Span<const std::int32_t> victims{};  // [rows]
  std::int32_t slot = 0;
  std::int32_t position = 0;
  Span<std::int64_t> slots;  // [rows]
  Span<std::int32_t> positions{};
  Span<float> scores{};
};
void open_slots(Stream stream, const kernels::SlotShape& shape, const OpenSlots& arguments);

/// victims[r] = the entry with the lowest score among the first `entries` of row r, without entries
/// below `pinned` and entries at positions >= `first_recent`; the first of equal ones. Each row
/// must have a candidate. scores, positions [rows, capacity].
struct ChooseVictims {
  std::int64_t entries = 1;
  std::int32_t pinned = 0;
  std::int32_t first_recent = 0;
  Span<const float> scores;
  Span<const std::int32_t> positions;
  Span<std::int32_t> victims;  // [rows]
};
void choose_victims(Stream stream, const kernels::SlotShape& shape, const ChooseVictims& arguments);

/// bias[r, s] = alpha ln counts[r, s] for the first `slots` entries of each row. counts [rows,
/// slots], bias [rows, capacity]. Source: ZeroMerge, eq. (8).
void count_bias(Stream stream, const kernels::SlotShape& shape, std::int64_t slots, float alpha,
                Span<const std::int32_t> counts, Span<float> bias);

}  // namespace kvsim::KVSIM_EXECUTOR
