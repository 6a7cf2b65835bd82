#include "kernels/select/rank_kept.hpp"
#include "kernels/select/select.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::SelectShape;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 256;  // one per 8-bit digit

/// Calls act(entry, score) for the entries of row `row`, 16 bytes per thread, then for up to three
/// remaining entries.
template <class Act>
KVSIM_DEVICE void for_row(const SelectShape& shape, std::int64_t row, Span<const float> scores,
                          Act act) {
  const std::int64_t base = row * shape.stride;
  const std::int64_t whole = shape.entries / 4 * 4;
  for (std::int64_t e = 4 * static_cast<std::int64_t>(threadIdx.x); e < whole; e += 4 * kThreads) {
    const auto x = kv::load16(scores, base + e);
    for (int j = 0; j < 4; ++j) act(e + j, x.v[j]);
  }
  if (const std::int64_t e = whole + threadIdx.x; e < shape.entries) {
    act(e, kv::load(scores, base + e));
  }
}

struct WarpMinima {
  SharedArray<std::uint64_t, kWarps> keys;
};

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    argmin_kernel(SelectShape shape, Span<const float> scores, Span<std::int64_t> position) {
  auto& tile = kv::shared<WarpMinima>();
  // Score in the high half, entry in the low half: the smallest word is the first entry with the
  // lowest score.
  std::uint64_t min = ~std::uint64_t{0};
  for_row(shape, blockIdx.x, scores, [&](std::int64_t e, float x) {
    const std::uint64_t key =
        (static_cast<std::uint64_t>(ordered_bits(x)) << 32U) | static_cast<std::uint64_t>(e);
    min = key < min ? key : min;
  });
  min = warp_min(min);
  if (threadIdx.x % 32 == 0) kv::store(tile.keys, threadIdx.x / 32, min);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) {
      const std::uint64_t key = kv::load(tile.keys, w);
      min = key < min ? key : min;
    }
    kv::store(position, blockIdx.x, static_cast<std::int64_t>(min & 0xFFFFFFFFU));
  }
}

struct RadixTile {
  SharedArray<std::uint32_t, kBins> bins;
  SharedArray<std::uint32_t, 2> digit;            // the chosen digit, and the number of its keys to
                                                  // keep
  SharedArray<std::uint32_t, 2 * kWarps> counts;  // of the two tiles in flight
};

/// Counts the digits at `shift` of the keys that match `prefix` above it, then sets the digit of
/// the keep-th greatest key and the number of keys with that digit to keep.
KVSIM_DEVICE void choose_digit(RadixTile& tile, const SelectShape& shape, Span<const float> scores,
                               int shift, std::uint32_t& prefix, std::uint32_t& keep) {
  kv::store(tile.bins, threadIdx.x, 0U);
  __syncthreads();
  const std::uint32_t above = shift == 24 ? 0U : ~std::uint32_t{0} << (shift + 8);
  for_row(shape, blockIdx.x, scores, [&](std::int64_t, float x) {
    const std::uint32_t key = ordered_bits(x);
    if ((key & above) == prefix) kv::atomic_add(tile.bins, (key >> shift) & 0xFFU, 1U);
  });
  __syncthreads();
  if (threadIdx.x < 32) {
    // Each lane holds eight digits, the greatest in lane 0.
    constexpr int kPer = kBins / 32;
    const int lane = static_cast<int>(threadIdx.x);
    std::uint32_t counts[kPer];
    std::uint32_t mine = 0;
    for (int i = 0; i < kPer; ++i) {
      counts[i] = kv::load(tile.bins, kBins - 1 - (lane * kPer + i));
      mine += counts[i];
    }
    std::uint32_t upto = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAllLanes, upto, static_cast<unsigned>(distance));
      if (lane >= distance) upto += other;
    }
    std::uint32_t before = upto - mine;
    if (before < keep && keep <= upto) {
      for (int i = 0; i < kPer; ++i) {
        if (keep <= before + counts[i]) {
          kv::store(tile.digit, 0, static_cast<std::uint32_t>(kBins - 1 - (lane * kPer + i)));
          kv::store(tile.digit, 1, keep - before);
          break;
        }
        before += counts[i];
      }
    }
  }
  __syncthreads();
  prefix |= kv::load(tile.digit, 0) << shift;
  keep = kv::load(tile.digit, 1);
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    top_kernel(SelectShape shape, Span<const float> scores, Span<std::int32_t> kept) {
  auto& tile = kv::shared<RadixTile>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t lanes_before = (1U << (threadIdx.x % 32)) - 1U;
  const std::int64_t row = blockIdx.x;
  const std::int64_t n_kept = smaller(shape.keep, shape.entries);
  std::uint32_t threshold = 0;
  auto ties = static_cast<std::uint32_t>(n_kept);  // at the end: number of kept keys equal to the
                                                   // threshold
  for (int shift = 24; shift >= 0; shift -= 8) {
    choose_digit(tile, shape, scores, shift, threshold, ties);
  }
  // In the order of entries: all above the threshold, and the first `ties` equal to it.
  std::int64_t greater_before = 0;
  std::int64_t equal_before = 0;
  int parity = 0;
  for (std::int64_t first = 0; first < shape.entries; first += kThreads, parity ^= 1) {
    const std::int64_t e = first + threadIdx.x;
    bool greater = false;
    bool equal = false;
    if (e < shape.entries) {
      const std::uint32_t key = ordered_bits(kv::load(scores, row * shape.stride + e));
      greater = key > threshold;
      equal = key == threshold;
    }
    const std::uint32_t greater_lanes = __ballot_sync(kAllLanes, greater);
    const std::uint32_t equal_lanes = __ballot_sync(kAllLanes, equal);
    if (threadIdx.x % 32 == 0) {
      kv::store(tile.counts, parity * kWarps + warp,
                static_cast<std::uint32_t>(__popc(greater_lanes)) |
                    (static_cast<std::uint32_t>(__popc(equal_lanes)) << 16U));
    }
    __syncthreads();  // the previous tile's counts are in the other half
    std::int64_t g = greater_before + __popc(greater_lanes & lanes_before);
    std::int64_t q = equal_before + __popc(equal_lanes & lanes_before);
    for (int w = 0; w < kWarps; ++w) {
      const std::uint32_t counts = kv::load(tile.counts, parity * kWarps + w);
      if (w < warp) {
        g += counts & 0xFFFFU;
        q += counts >> 16U;
      }
      greater_before += counts & 0xFFFFU;
      equal_before += counts >> 16U;
    }
    if (greater || (equal && q < ties)) {
      kv::store(kept, row * n_kept + g + smaller(q, ties), static_cast<std::int32_t>(e));
    }
  }
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kRankThreads)
    threshold_kernel(SelectShape shape, float threshold, Span<const float> scores,
                     Span<std::int32_t> kept, Span<std::int32_t> counts) {
  auto& tile = kv::shared<RankTile>();
  const std::int64_t row = blockIdx.x;
  const std::int64_t n = rank_kept(
      tile, shape.entries,
      [&](std::int64_t e) { return kv::load(scores, row * shape.stride + e) >= threshold; },
      [&](std::int64_t e, bool stays, std::int64_t rank) {
        if (stays) kv::store(kept, row * shape.entries + rank, static_cast<std::int32_t>(e));
      });
  if (threadIdx.x == 0) kv::store(counts, row, static_cast<std::int32_t>(n));
}

void check(const SelectShape& shape, std::int64_t n_scores) {
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.entries >= 1 && shape.entries <= 0x7FFFFFFF,
                     "sizes are 1 at least, entries below 2^31");
  KVSIM_LAUNCH_CHECK(shape.stride >= shape.entries && shape.stride % 4 == 0,
                     "rows of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(n_scores >= shape.rows * shape.stride, "scores are [rows, stride]");
}

}  // namespace

void argmin_rows(Stream stream, const SelectShape& shape, Span<const float> scores,
                 Span<std::int64_t> position) {
  check(shape, scores.size);
  KVSIM_LAUNCH_CHECK(position.size >= shape.rows, "a position a row");
  launch(stream, "argmin_rows", {static_cast<std::uint32_t>(shape.rows)}, {kThreads}, 0,
         argmin_kernel, shape, scores, position);
}

void top_rows(Stream stream, const SelectShape& shape, Span<const float> scores,
              Span<std::int32_t> kept) {
  check(shape, scores.size);
  KVSIM_LAUNCH_CHECK(shape.keep >= 1, "one entry at least is kept");
  const std::int64_t n_kept = shape.keep < shape.entries ? shape.keep : shape.entries;
  KVSIM_LAUNCH_CHECK(kept.size >= shape.rows * n_kept, "kept is [rows, min(keep, entries)]");
  launch(stream, "top_rows", {static_cast<std::uint32_t>(shape.rows)}, {kThreads}, 0, top_kernel,
         shape, scores, kept);
}

void threshold_rows(Stream stream, const SelectShape& shape, float threshold,
                    Span<const float> scores, Span<std::int32_t> kept, Span<std::int32_t> counts) {
  check(shape, scores.size);
  KVSIM_LAUNCH_CHECK(kept.size >= shape.rows * shape.entries && counts.size >= shape.rows,
                     "kept is [rows, entries], counts [rows]");
  launch(stream, "threshold_rows", {static_cast<std::uint32_t>(shape.rows)}, {kRankThreads}, 0,
         threshold_kernel, shape, threshold, scores, kept, counts);
}

}  // namespace kvsim::KVSIM_EXECUTOR
