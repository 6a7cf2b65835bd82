#include "kernels/decode/row_part.hpp"
#include "kernels/merge/nearest_merge.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::NearestShape;
using kernels::SpreadShape;

constexpr int kSearchWarps = static_cast<int>(kernels::kNearestWarps);
constexpr int kSearchThreads = 32 * kSearchWarps;
constexpr int kMergeWarps = 4;
constexpr int kMergeThreads = 32 * kMergeWarps;

KVSIM_DEVICE float minus_infinity() { return __uint_as_float(0xFF800000U); }

/// Inverse of ordered_bits.
KVSIM_DEVICE float from_ordered_bits(std::uint32_t bits) {
  return __uint_as_float((bits & 0x80000000U) != 0 ? bits & 0x7FFFFFFFU : ~bits);
}

struct WarpBest {
  SharedArray<std::uint64_t, kSearchWarps> keys;
};

/// One block per row; its warps process entries in turn.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kSearchThreads)
    nearest_kernel(NearestShape shape, NearestKeys<T> a) {
  auto& tile = kv::shared<WarpBest>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = blockIdx.x;
  std::int32_t victim = 0;
  if (threadIdx.x % 32 == 0) victim = kv::load(a.victim, row);
  victim = __shfl_sync(kAllLanes, victim, 0);
  Part<T> mine;
  mine.load(a.keys, row * shape.capacity + victim, shape.head_dim);
  const float length = sqrtf(mine.dot(mine));
  // Reversed cosine in the high half, entry in the low half: the smallest word is the first entry
  // with the largest cosine.
  std::uint64_t best = ~std::uint64_t{0};
  for (std::int64_t e = warp; e < shape.entries; e += kSearchWarps) {
    if (e == victim) continue;
    Part<T> other;
    other.load(a.keys, row * shape.capacity + e, shape.head_dim);
    const float product = mine.dot(other);
    const float lengths = length * sqrtf(other.dot(other));
    const float cosine = lengths > 0 ? product / lengths : 0.0F;
    const std::uint64_t key =
        (static_cast<std::uint64_t>(~ordered_bits(cosine)) << 32U) | static_cast<std::uint64_t>(e);
    best = key < best ? key : best;
  }
  if (threadIdx.x % 32 == 0) kv::store(tile.keys, warp, best);
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kSearchWarps; ++w) {
    const std::uint64_t key = kv::load(tile.keys, w);
    best = key < best ? key : best;
  }
  kv::store(a.nearest, row, static_cast<std::int32_t>(best & 0xFFFFFFFFU));
  kv::store(a.cosine, row, from_ordered_bits(~static_cast<std::uint32_t>(best >> 32U)));
}

/// One warp per row.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kMergeThreads)
    cosine_merge_kernel(NearestShape shape, CosineMerge<T> a) {
  const std::int64_t row = grid_warp();
  if (row >= shape.rows) return;
  const bool leads = threadIdx.x % 32 == 0;
  std::int32_t victim = 0;
  std::int32_t into = 0;
  float cosine = 0;
  float threshold = 0;
  if (leads) {
    victim = kv::load(a.victim, row);
    into = kv::load(a.nearest, row);
    cosine = kv::load(a.cosine, row);
    threshold = kv::load(a.threshold, row);
    threshold = threshold == minus_infinity() ? cosine : a.keep * threshold + (1 - a.keep) * cosine;
    kv::store(a.threshold, row, threshold);
    kv::store(a.joined, row, cosine >= threshold ? 1 : 0);
  }
  victim = __shfl_sync(kAllLanes, victim, 0);
  into = __shfl_sync(kAllLanes, into, 0);
  cosine = __shfl_sync(kAllLanes, cosine, 0);
  threshold = __shfl_sync(kAllLanes, threshold, 0);
  if (!(cosine >= threshold)) return;
  const float weight = 1 / (1 + expf(1 - cosine));  // e^u / (e^u + e)
  const std::int64_t base = row * shape.capacity;
  const auto merge = [&](Span<T> rows) {
    Part<T> kept;
    Part<T> gone;
    kept.load(rows, base + into, shape.head_dim);
    gone.load(rows, base + victim, shape.head_dim);
    kept.mix(1 - weight, weight, gone);
    kept.store(rows, base + into, shape.head_dim);
  };
  merge(a.keys);
  merge(a.values);
}

/// One warp per row; its lanes hold 32 takers at a time.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kMergeThreads) spread_kernel(SpreadShape shape, ValueSpread<T> a) {
  const std::int64_t row = grid_warp();
  if (row >= shape.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t base = row * shape.capacity;
  const auto taker = [&](std::int64_t first) {
    return first + lane < shape.max_takers
               ? kv::load(a.takers, row * shape.max_takers + first + lane)
               : -1;
  };
  float sum = 0;
  int takers = 0;
  for (std::int64_t first = 0; first < shape.max_takers; first += 32) {
    const std::int32_t mine = taker(first);
    if (mine >= 0) sum += kv::load(a.attention, base + mine);
    takers += __popc(__ballot_sync(kAllLanes, mine >= 0));
  }
  sum = warp_sum(sum);
  std::int32_t victim = 0;
  float share = 0;
  if (lane == 0) {
    victim = kv::load(a.victim, row);
    const float own = kv::load(a.attention, base + victim);
    const float chance = kv::load(a.chance, row);
    float p = 0;
    if (takers > 0 && own > 0) {
      p = sum > 0 ? fminf(own / (sum / static_cast<float>(takers)), 1.0F) : 1.0F;
    }
    share = a.expected ? p : (chance < p ? 1.0F : 0.0F);
    kv::store(a.spread, row, share > 0 ? 1 : 0);
  }
  victim = __shfl_sync(kAllLanes, victim, 0);
  share = __shfl_sync(kAllLanes, share, 0);
  if (!(share > 0)) return;
  const float part = share / static_cast<float>(takers);
  Part<T> gone;
  gone.load(a.values, base + victim, shape.head_dim);
  for (std::int64_t first = 0; first < shape.max_takers; first += 32) {
    const std::int32_t mine = taker(first);
    for (int i = 0; i < 32; ++i) {
      const std::int32_t to = __shfl_sync(kAllLanes, mine, i);
      if (to < 0) continue;
      Part<T> value;
      value.load(a.values, base + to, shape.head_dim);
      value.mix(1, part, gone);
      value.store(a.values, base + to, shape.head_dim);
    }
  }
}

Dim3 grid_of_warps(std::int64_t rows) {
  return {static_cast<std::uint32_t>(ceil_div(rows, kMergeWarps))};
}

template <class T>
void check(const NearestShape& s, std::int64_t n_keys) {
  check_rows<T>(s.rows, s.head_dim);
  KVSIM_LAUNCH_CHECK(s.entries >= 2 && s.capacity >= s.entries,
                     "two entries at least, and room for them");
  KVSIM_LAUNCH_CHECK(n_keys >= s.rows * s.capacity * s.head_dim,
                     "keys are [rows, capacity, head_dim]");
}

}  // namespace

template <class T>
void nearest_keys(Stream stream, const NearestShape& s, const NearestKeys<T>& a) {
  check<T>(s, a.keys.size);
  KVSIM_LAUNCH_CHECK(a.victim.size >= s.rows && a.nearest.size >= s.rows && a.cosine.size >= s.rows,
                     "victim, nearest and cosine are [rows]");
  launch(stream, "nearest_keys", {static_cast<std::uint32_t>(s.rows)}, {kSearchThreads}, 0,
         nearest_kernel<T>, s, a);
}

template <class T>
void cosine_merge_entries(Stream stream, const NearestShape& s, const CosineMerge<T>& a) {
  check<T>(s, a.keys.size < a.values.size ? a.keys.size : a.values.size);
  KVSIM_LAUNCH_CHECK(a.keep >= 0 && a.keep <= 1, "keep is in [0, 1]");
  KVSIM_LAUNCH_CHECK(a.victim.size >= s.rows && a.nearest.size >= s.rows &&
                         a.cosine.size >= s.rows && a.threshold.size >= s.rows &&
                         a.joined.size >= s.rows,
                     "victim, nearest, cosine, threshold and joined are [rows]");
  launch(stream, "cosine_merge_entries", grid_of_warps(s.rows), {kMergeThreads}, 0,
         cosine_merge_kernel<T>, s, a);
}

template <class T>
void spread_values(Stream stream, const SpreadShape& s, const ValueSpread<T>& a) {
  check_rows<T>(s.rows, s.head_dim);
  KVSIM_LAUNCH_CHECK(s.max_takers >= 1 && s.capacity >= 2, "a taker and a victim at least");
  KVSIM_LAUNCH_CHECK(
      a.values.size >= s.rows * s.capacity * s.head_dim && a.attention.size >= s.rows * s.capacity,
      "values are [rows, capacity, head_dim], attention [rows, capacity]");
  KVSIM_LAUNCH_CHECK(a.victim.size >= s.rows && a.chance.size >= s.rows &&
                         a.spread.size >= s.rows && a.takers.size >= s.rows * s.max_takers,
                     "victim, chance and spread are [rows], takers [rows, max_takers]");
  launch(stream, "spread_values", grid_of_warps(s.rows), {kMergeThreads}, 0, spread_kernel<T>, s,
         a);
}

#define KVSIM_INSTANTIATE(T)                                                              \
  template void nearest_keys(Stream, const NearestShape&, const NearestKeys<T>&);         \
  template void cosine_merge_entries(Stream, const NearestShape&, const CosineMerge<T>&); \
  template void spread_values(Stream, const SpreadShape&, const ValueSpread<T>&);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
