#pragma once

#include <cstdint>

namespace kvsim::cuda_sim {

/// Counts of a kernel's work. Bytes are payload: the bytes requested by threads; each access is
/// counted, even if a cache would serve it.
struct Counters {
  std::int64_t launches = 0, blocks = 0, threads = 0;
  std::int64_t loaded_bytes = 0, stored_bytes = 0;  // global memory, atomics not included
  /// 32-byte sectors touched by the lanes of a warp, summed over warp accesses. A warp access is
  /// the k-th execution of one line by the lanes of a warp between two convergence points.
  std::int64_t load_sectors = 0, store_sectors = 0;
  std::int64_t shared_loaded_bytes = 0, shared_stored_bytes = 0;
  std::int64_t shared_bytes = 0;  // largest shared memory of a block, static and dynamic
  std::int64_t atomics = 0, shared_atomics = 0;
  std::int64_t barriers = 0;  // of blocks, not of threads
  std::int64_t warp_ops = 0;  // shuffles, votes, reductions, __syncwarp: of warps, not of threads
  std::int64_t flops = 0;     // as kernels annotate them
  /// Thread-steps: an access, an atomic, a barrier or a warp operation of one thread.
  std::int64_t steps = 0;

  friend bool operator==(const Counters&, const Counters&) = default;
};

/// Returns `after` minus `before`; `shared_bytes`, a maximum, is taken from `after`.
[[nodiscard]] constexpr Counters difference(const Counters& after, const Counters& before) {
  Counters d;
  d.launches = after.launches - before.launches;
  d.blocks = after.blocks - before.blocks;
  d.threads = after.threads - before.threads;
  d.loaded_bytes = after.loaded_bytes - before.loaded_bytes;
  d.stored_bytes = after.stored_bytes - before.stored_bytes;
  d.load_sectors = after.load_sectors - before.load_sectors;
  d.store_sectors = after.store_sectors - before.store_sectors;
  d.shared_loaded_bytes = after.shared_loaded_bytes - before.shared_loaded_bytes;
  d.shared_stored_bytes = after.shared_stored_bytes - before.shared_stored_bytes;
  d.shared_bytes = after.shared_bytes;
  d.atomics = after.atomics - before.atomics;
  d.shared_atomics = after.shared_atomics - before.shared_atomics;
  d.barriers = after.barriers - before.barriers;
  d.warp_ops = after.warp_ops - before.warp_ops;
  d.flops = after.flops - before.flops;
  d.steps = after.steps - before.steps;
  return d;
}

}  // namespace kvsim::cuda_sim
