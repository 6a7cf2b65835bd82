#pragma once

// Numbering of the kept entries of a row, in order, by one block.

#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {

constexpr int kRankThreads = 256;
constexpr int kRankWarps = kRankThreads / 32;

struct RankTile {
  SharedArray<std::uint32_t, 2 * kRankWarps> counts;  // of the two tiles in flight
};

/// Calls emit(entry, stays, rank) for each entry below `entries`, in tiles of the block: `stays` is
/// keeps(entry), `rank` the number of kept entries before it. Returns the number of kept entries in
/// every thread. Must be called by all kRankThreads threads of a block.
template <class Keeps, class Emit>
KVSIM_DEVICE std::int64_t rank_kept(RankTile& tile, std::int64_t entries, Keeps keeps, Emit emit) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t lanes_before = (1U << (threadIdx.x % 32)) - 1U;
  std::int64_t before = 0;
  int parity = 0;
  for (std::int64_t first = 0; first < entries; first += kRankThreads, parity ^= 1) {
    const std::int64_t e = first + threadIdx.x;
    const bool stays = e < entries && keeps(e);
    const std::uint32_t lanes = __ballot_sync(kAllLanes, stays);
    if (threadIdx.x % 32 == 0) {
      kv::store(tile.counts, parity * kRankWarps + warp, static_cast<std::uint32_t>(__popc(lanes)));
    }
    __syncthreads();  // the previous tile's counts are in the other half
    std::int64_t rank = before + __popc(lanes & lanes_before);
    for (int w = 0; w < kRankWarps; ++w) {
      const std::uint32_t count = kv::load(tile.counts, parity * kRankWarps + w);
      if (w < warp) rank += count;
      before += count;
    }
    if (e < entries) emit(e, stays, rank);
  }
  return before;
}

}  // namespace kvsim::KVSIM_EXECUTOR
