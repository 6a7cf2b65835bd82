#pragma once

#include <cstdint>

namespace kvsim::test {

/// Calls of operator new in this program so far; link support/heap.cpp.
[[nodiscard]] std::int64_t heap_allocations();

}  // namespace kvsim::test
