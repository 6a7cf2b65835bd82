// Counts the program's heap allocations. A separate file: if the compiler sees new and free
// together, it reports a mismatch.

#include "tests/support/heap.hpp"

#include <cstdlib>
#include <new>

namespace {
std::int64_t count = 0;
std::int64_t bytes = 0;
}  // namespace

void* operator new(std::size_t size) {
  ++count;
  bytes += static_cast<std::int64_t>(size);
  if (void* p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc{};
}
// Standard algorithms request their buffers this way and return them with the usual delete.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++count;
  bytes += static_cast<std::int64_t>(size);
  return std::malloc(size > 0 ? size : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace kvsim::test {
std::int64_t heap_allocations() { return count; }
std::int64_t heap_bytes() { return bytes; }
}  // namespace kvsim::test
