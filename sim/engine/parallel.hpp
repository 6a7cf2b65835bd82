#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvsim {

/// Threads to use if `requested` is 0: as many as the machine has.
[[nodiscard]] int thread_count(int requested);

/// Bytes of this machine's memory.
[[nodiscard]] std::int64_t machine_memory();

/// Calls task(i) once for each i in [0, count), on up to `threads` threads (0: thread_count). Tasks
/// are handed out in order; they must not touch each other's data. If tasks throw, the exception of
/// the lowest i is rethrown after all threads have stopped.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& task);

}  // namespace kvsim
