#include "kernels/score/prefill_scores.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::kPrefillTile;
using kernels::PrefillScoreShape;

constexpr int kTile = static_cast<int>(kPrefillTile);  // queries, and keys, of a tile
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpQueries = kTile / kWarps;
static_assert(kTile == 32, "a lane is a key of the tile");

/// Rows are padded by one element so that the lanes of a warp read different banks.
template <int kHeadDim>
struct Tiles {
  SharedArray<float, kTile*(kHeadDim + 1)> q, k;
  SharedArray<float, kWarps * kTile> sums;
};

/// Loads rows [first, first + kTile) of a head's matrix of `tokens` rows, up to `end`, by all
/// threads.
template <class T, int kHeadDim>
KVSIM_DEVICE void load_tile(Span<const T> from, std::int64_t head, std::int64_t tokens,
                            std::int64_t first, std::int64_t end,
                            SharedArray<float, kTile*(kHeadDim + 1)>& to) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  constexpr int kParts = kHeadDim / kPer;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kParts; i += kThreads) {
    const std::int64_t row = first + i / kParts;
    if (row >= end) continue;
    const auto raw = kv::load16(from, (head * tokens + row) * kHeadDim + i % kParts * kPer);
    for (int j = 0; j < kPer; ++j) {
      kv::store(to, i / kParts * (kHeadDim + 1) + i % kParts * kPer + j, kv::to_float(raw.v[j]));
    }
  }
}

template <int kHeadDim>
KVSIM_DEVICE float dot_of(Tiles<kHeadDim>& tile, int query, int key) {
  float dot = 0;
  for (int j = 0; j < kHeadDim; ++j) {
    dot +=
        kv::load(tile.q, query * (kHeadDim + 1) + j) * kv::load(tile.k, key * (kHeadDim + 1) + j);
  }
  kv::flops(2 * kHeadDim);
  return dot;
}

/// Each block handles a tile of queries of one head; each warp keeps the running maximum and sum of
/// four queries.
template <class T, int kHeadDim>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    log_sum_kernel(PrefillScoreShape shape, PrefillScores<T> a) {
  auto& tile = kv::shared<Tiles<kHeadDim>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t head = blockIdx.y;
  const std::int64_t first = shape.first + static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t last = smaller(first + kTile, shape.tokens) - 1;
  float highest[std::size_t{kWarpQueries}];
  float total[std::size_t{kWarpQueries}];
  for (int i = 0; i < kWarpQueries; ++i) {
    highest[i] = __uint_as_float(0xFF800000U);
    total[i] = 0;
  }
  load_tile<T, kHeadDim>(a.q, head, shape.tokens, first, last + 1, tile.q);
  for (std::int64_t from = 0; from <= last; from += kTile) {
    load_tile<T, kHeadDim>(a.keys, head / shape.group(), shape.tokens, from, last + 1, tile.k);
    // Keys beyond the last query are not loaded; they are masked for all queries of the tile.
    __syncthreads();
    for (int i = 0; i < kWarpQueries; ++i) {
      const std::int64_t t = first + warp * kWarpQueries + i;
      if (t > last) break;
      const bool seen = from + lane <= t;
      const float logit = seen ? a.scale * dot_of<kHeadDim>(tile, warp * kWarpQueries + i, lane)
                               : __uint_as_float(0xFF800000U);
      const float now = fmaxf(highest[i], warp_max(logit));  // every query attends to the first
                                                             // key: no -inf
      if (now == __uint_as_float(0xFF800000U)) continue;
      total[i] = total[i] * expf(highest[i] - now) + warp_sum(expf(logit - now));
      highest[i] = now;
    }
    __syncthreads();
  }
  for (int i = 0; i < kWarpQueries; ++i) {
    const std::int64_t t = first + warp * kWarpQueries + i;
    if (t <= last && lane == 0) {
      kv::store(a.log_sum, head * shape.tokens + t, highest[i] + logf(total[i]));
    }
  }
}

/// Each block handles a tile of keys of one stored head; each lane keeps the sum of one key.
template <class T, int kHeadDim>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads, 4)
    mass_kernel(PrefillScoreShape shape, PrefillScores<T> a) {
  auto& tile = kv::shared<Tiles<kHeadDim>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t kv_head = blockIdx.y;
  const std::int64_t from = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const float log_decay = logf(a.decay);
  load_tile<T, kHeadDim>(a.keys, kv_head, shape.tokens, from, shape.tokens, tile.k);
  float sum = 0;
  for (std::int64_t g = 0; g < shape.group(); ++g) {
    const std::int64_t head = kv_head * shape.group() + g;
    for (std::int64_t first = shape.first_seeing(from); first < shape.tokens; first += kTile) {
      load_tile<T, kHeadDim>(a.q, head, shape.tokens, first, shape.tokens, tile.q);
      __syncthreads();
      for (int i = 0; i < kWarpQueries; ++i) {
        const std::int64_t t = first + warp * kWarpQueries + i;
        if (t >= shape.tokens) break;
        if (from + lane > t) continue;
        const float log_sum = kv::load(a.log_sum, head * shape.tokens + t);
        const float logit = a.scale * dot_of<kHeadDim>(tile, warp * kWarpQueries + i, lane);
        sum += expf(logit - log_sum + static_cast<float>(shape.tokens - 1 - t) * log_decay);
      }
      __syncthreads();
    }
  }
  kv::store(tile.sums, warp * kTile + lane, sum);
  __syncthreads();
  if (warp == 0 && from + lane < shape.tokens) {
    for (int w = 1; w < kWarps; ++w) sum += kv::load(tile.sums, w * kTile + lane);
    kv::store(a.mass, kv_head * shape.tokens + from + lane, sum);
  }
}

template <class T, int kHeadDim>
void launch_both(Stream stream, const PrefillScoreShape& shape, const PrefillScores<T>& a) {
  launch(stream, "prefill_log_sums",
         {static_cast<std::uint32_t>(ceil_div(shape.tokens - shape.first, kPrefillTile)),
          static_cast<std::uint32_t>(shape.n_heads)},
         {kThreads}, 0, log_sum_kernel<T, kHeadDim>, shape, a);
  launch(stream, "prefill_mass",
         {static_cast<std::uint32_t>(ceil_div(shape.tokens, kPrefillTile)),
          static_cast<std::uint32_t>(shape.n_kv_heads)},
         {kThreads}, 0, mass_kernel<T, kHeadDim>, shape, a);
}

}  // namespace

template <class T>
void prefill_scores(Stream stream, const PrefillScoreShape& s, const PrefillScores<T>& a) {
  KVSIM_LAUNCH_CHECK(s.n_heads >= 1 && s.n_kv_heads >= 1 && s.tokens >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.n_heads % s.n_kv_heads == 0, "n_heads is a multiple of n_kv_heads");
  KVSIM_LAUNCH_CHECK(s.head_dim == 64 || s.head_dim == 128, "head_dim is 64 or 128");
  KVSIM_LAUNCH_CHECK(s.first >= 0 && s.first < s.tokens, "first is a token");
  KVSIM_LAUNCH_CHECK(a.decay > 0 && a.decay <= 1, "decay is in (0, 1]");
  KVSIM_LAUNCH_CHECK(a.q.size >= s.n_heads * s.tokens * s.head_dim,
                     "q is [n_heads, tokens, head_dim]");
  KVSIM_LAUNCH_CHECK(a.keys.size >= s.n_kv_heads * s.tokens * s.head_dim,
                     "keys are [n_kv_heads, tokens, head_dim]");
  KVSIM_LAUNCH_CHECK(
      a.log_sum.size >= s.n_heads * s.tokens && a.mass.size >= s.n_kv_heads * s.tokens,
      "log_sum is [n_heads, tokens], mass [n_kv_heads, tokens]");
  if (s.head_dim == 64) {
    launch_both<T, 64>(stream, s, a);
  } else {
    launch_both<T, 128>(stream, s, a);
  }
}

template void prefill_scores(Stream, const PrefillScoreShape&, const PrefillScores<float>&);
template void prefill_scores(Stream, const PrefillScoreShape&, const PrefillScores<kv::Half>&);
template void prefill_scores(Stream, const PrefillScoreShape&, const PrefillScores<kv::BFloat16>&);

}  // namespace kvsim::KVSIM_EXECUTOR
