#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvsim {

/// Returns `requested`, or the number of hardware threads if it is 0.
[[nodiscard]] int thread_count(int requested);

/// Returns the size of this machine's memory in bytes.
[[nodiscard]] std::int64_t machine_memory();

/// Calls task(i) once for each i in [0, count) on up to `threads` threads (0: thread_count). Tasks
/// start in order; they must not access each other's data. If tasks throw, the exception of the
/// lowest i is rethrown after all threads have stopped.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& task);

}  // namespace kvsim
