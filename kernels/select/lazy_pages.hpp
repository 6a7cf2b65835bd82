#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Lazy eviction from a paged cache: dropped entries stay in place, hidden by a bias of -infinity,
/// and their page is freed with its last entry. Entry e of sequence s is on page pages[s, e /
/// page], which has live[page] live entries. leaving[r, i]: the entries of sequence r to drop, each
/// listed once; -1: none.
struct LazyPages {
  Span<const std::int32_t> leaving;  // [rows, max_leaving]
  Span<const std::int32_t> pages;    // [rows, pages_per_sequence]
  Span<std::int32_t> live;           // [n_pages]
  Span<float> bias;                  // [rows, pages_per_sequence * page]
  Span<std::int32_t> freed;          // [n_pages]: freed pages at the front, in unspecified order
  Span<std::int32_t> n_freed;        // [1]: number of freed pages; must be 0 before the first call
};
/// Errors: ContractError if a size is < 1 or a span is shorter than its shape.
void evict_lazily(Stream stream, const kernels::LazyPageShape& shape, const LazyPages& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
