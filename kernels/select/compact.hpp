#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// to[row, i, :] = from[row, kept[row, i], :], entries of shape.entry_bytes bytes. T is the element
/// type: float, kv::Half or kv::BFloat16. `from` is [rows, capacity_from, entry], `to` [rows,
/// capacity_to, entry], `kept` [rows, kept] with positions in [0, capacity_from); the two must not
/// overlap. Errors: ContractError if entry_bytes is not a multiple of 16, or a span is shorter than
/// its shape.
template <class T>
void gather_entries(Stream stream, const kernels::GatherShape& shape, Span<const T> from,
                    Span<const std::int32_t> kept, Span<T> to);

}  // namespace kvsim::KVSIM_EXECUTOR
