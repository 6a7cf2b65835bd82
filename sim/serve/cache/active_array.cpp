#include "sim/serve/cache/active_array.hpp"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace kvsim {

namespace {

#if defined(__linux__)
constexpr bool kHasPages = true;
#else
constexpr bool kHasPages = false;
#endif

}  // namespace

ZeroPages::ZeroPages(std::size_t bytes) : bytes_{bytes}, is_heap_{!kHasPages || bytes < kMinBytes} {
  if (bytes == 0) return;
  if (is_heap_) {
    data_ = static_cast<std::byte*>(std::calloc(bytes, 1));  // NOLINT
    if (data_ == nullptr) throw std::bad_alloc{};
    return;
  }
#if defined(__linux__)
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc{};
  data_ = static_cast<std::byte*>(at);
#endif
}

ZeroPages::~ZeroPages() {
  if (is_heap_) {
    std::free(data_);  // NOLINT
    return;
  }
#if defined(__linux__)
  munmap(data_, bytes_);
#endif
}

void ZeroPages::release([[maybe_unused]] std::size_t first, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  if (is_heap_) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t from = (first + page - 1) / page * page;
  const std::size_t to = (first + bytes) / page * page;
  // Nothing depends on its success: otherwise the pages stay.
  if (to > from) (void)madvise(data_ + from, to - from, MADV_DONTNEED);
#endif
}

}  // namespace kvsim
