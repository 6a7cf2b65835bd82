#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Copies of new entries into a cache. T is the element: float, kv::Half, kv::BFloat16. Errors:
// ContractError if entry_bytes is not a multiple of 16, or a span is shorter than its shape.

/// to[slots[row], :] = fresh[row, :]. Slots index entries of the whole cache, in any layout: after
/// a row's last entry, a ring's oldest entry, the entry that eviction frees (swap), or an entry of
/// a page. No two rows share a slot.
template <class T>
void append_entries(Stream stream, const kernels::AppendShape& shape, Span<const T> fresh,
                    Span<const std::int64_t> slots, Span<T> to);

/// cache[to[n], :] = cache[from[n], :]: for example, a ring's oldest entry moves to a slot that a
/// merge freed. No slot is in two moves.
template <class T>
void move_entries(Stream stream, const kernels::MoveShape& shape, Span<const std::int64_t> from,
                  Span<const std::int64_t> to, Span<T> cache);

/// longer [rows, before + 1, entry] = old [rows, before, entry] followed by fresh [rows, entry]:
/// the copy made by a cache that grows by concatenation. The spans must not overlap.
template <class T>
void concat_entries(Stream stream, const kernels::ConcatShape& shape, Span<const T> old,
                    Span<const T> fresh, Span<T> longer);

}  // namespace kvsim::KVSIM_EXECUTOR
