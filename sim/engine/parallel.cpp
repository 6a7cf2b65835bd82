#include "sim/engine/parallel.hpp"

// WebAssembly without threads, as in browsers: the caller does all the work.
#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)

namespace kvsim {

int thread_count(int) { return 1; }

std::int64_t machine_memory() { return std::int64_t{4} << 30; }  // maximum for 32-bit addresses

void parallel_for(std::size_t count, int, const std::function<void(std::size_t)>& task) {
  for (std::size_t i = 0; i < count; ++i) task(i);
}

}  // namespace kvsim

#else

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

namespace kvsim {

std::int64_t machine_memory() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
}

int thread_count(int requested) {
  if (requested > 0) return requested;
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& task) {
  const auto workers = std::min(count, static_cast<std::size_t>(thread_count(threads)));
  if (workers <= 1) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::mutex guard;
  std::size_t failed_at = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        task(i);
      } catch (...) {
        const std::scoped_lock lock{guard};
        if (i < failed_at) {
          failed_at = i;
          failure = std::current_exception();
        }
        next.store(count);  // no further tasks begin
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    pool.reserve(workers - 1);
    for (std::size_t w = 1; w < workers; ++w) pool.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace kvsim

#endif
