#include "sim/serve/cache/active_array.hpp"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace kvsim {

#if defined(__linux__)

ZeroPages::ZeroPages(std::size_t bytes) : bytes_{bytes} {
  if (bytes == 0) return;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc{};
  data_ = static_cast<std::byte*>(at);
}

ZeroPages::~ZeroPages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void ZeroPages::release(std::size_t first, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t from = (first + page - 1) / page * page;
  const std::size_t to = (first + bytes) / page * page;
  // Nothing depends on its success: the pages then stay.
  if (to > from) (void)madvise(data_ + from, to - from, MADV_DONTNEED);
}

#else

ZeroPages::ZeroPages(std::size_t bytes) : bytes_{bytes} {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(std::calloc(bytes, 1));  // NOLINT
  if (data_ == nullptr) throw std::bad_alloc{};
}

ZeroPages::~ZeroPages() { std::free(data_); }  // NOLINT

void ZeroPages::release(std::size_t /*first*/, std::size_t /*bytes*/) {}

#endif

}  // namespace kvsim
