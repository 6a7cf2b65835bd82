#include "kernels/merge/retention.hpp"
#include "kernels/select/rank_kept.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::SelectShape;

struct RetainTile {
  RankTile ranks;
  SharedArray<float, kRankWarps> lowest, highest;
};

/// One block per row: finds the range of its distances, then selects the tokens at the requested
/// end.
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kRankThreads) retain_kernel(SelectShape shape, RetainRows a) {
  auto& tile = kv::shared<RetainTile>();
  const std::int64_t row = blockIdx.x;
  const std::int64_t base = row * shape.stride;
  float low = __uint_as_float(0x7F800000U);
  float high = -low;
  for (std::int64_t e = threadIdx.x; e < shape.entries; e += kRankThreads) {
    const float x = kv::load(a.distance, base + e);
    low = fminf(low, x);
    high = fmaxf(high, x);
  }
  low = -warp_max(-low);
  high = warp_max(high);
  if (threadIdx.x % 32 == 0) {
    kv::store(tile.lowest, threadIdx.x / 32, low);
    kv::store(tile.highest, threadIdx.x / 32, high);
  }
  __syncthreads();
  for (int w = 0; w < kRankWarps; ++w) {
    low = fminf(low, kv::load(tile.lowest, w));
    high = fmaxf(high, kv::load(tile.highest, w));
  }
  const float reach = a.gamma * (high - low);
  const float bound = a.near_end ? low + reach : high - reach;
  const std::int64_t n = rank_kept(
      tile.ranks, shape.entries,
      [&](std::int64_t e) {
        const float x = kv::load(a.distance, base + e);
        return a.near_end ? x < bound : x > bound;
      },
      [&](std::int64_t e, bool stays, std::int64_t rank) {
        stays = stays && rank < a.room;
        const std::int64_t to = row * a.room + rank;
        kv::store(a.retained_at, base + e, stays ? static_cast<std::int32_t>(to) : -1);
        if (stays) kv::store(a.kept, to, static_cast<std::int32_t>(e));
      });
  if (threadIdx.x == 0) {
    kv::store(a.counts, row, static_cast<std::int32_t>(smaller(n, a.room)));
  }
}

}  // namespace

void retain_rows(Stream stream, const SelectShape& s, const RetainRows& a) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.entries >= 1 && s.stride >= s.entries && a.room >= 1,
                     "sizes are 1 at least, a stride holds the entries");
  KVSIM_LAUNCH_CHECK(s.rows * a.room <= 0x7FFFFFFF, "numbers of retained rows below 2^31");
  KVSIM_LAUNCH_CHECK(a.gamma >= 0 && a.gamma <= 1, "gamma is in [0, 1]");
  KVSIM_LAUNCH_CHECK(
      a.distance.size >= s.rows * s.stride && a.retained_at.size >= s.rows * s.stride,
      "distance and retained_at are [rows, stride]");
  KVSIM_LAUNCH_CHECK(a.kept.size >= s.rows * a.room && a.counts.size >= s.rows,
                     "kept is [rows, room], counts [rows]");
  launch(stream, "retain_rows", {static_cast<std::uint32_t>(s.rows)}, {kRankThreads}, 0,
         retain_kernel, s, a);
}

}  // namespace kvsim::KVSIM_EXECUTOR
