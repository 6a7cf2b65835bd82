#pragma once

#include <cstdint>

namespace kvsim::test {

/// Calls of operator new in this program so far, and the bytes requested; link support/heap.cpp.
[[nodiscard]] std::int64_t heap_allocations();
[[nodiscard]] std::int64_t heap_bytes();

}  // namespace kvsim::test
