#pragma once

// The split-K kernel of decode attention, for any cache format. A source that includes this defines
// the cache, a trivially copyable type with
//
//   static constexpr int kPer;                  elements of an entry per lane
//   static constexpr int kAhead;                entries a lane loads before it uses the first
//   using Row;                                  a lane's part of an entry as loaded, see widen()
//   void begin(shape, sequence, kv_head, entries, first, end)   by all threads, before any entry;
//                                               the row attends over `entries`, the block from
//                                               first to end
//   Row key(entry, part), value(entry, part)    elements [part * kPer, …) of an entry
//
// and, if it copies tiles of kTile entries into shared memory before they are used,
//
//   struct Held;                                state that a thread keeps between tiles
//   void fetch(held, first, end)                loads the thread's part of a tile
//   void put(held, first, end)                  stores it in shared memory
//   float key_factor(entry, is_live, x)         by all lanes: factor of a key's logit

#include "kernels/decode/decode_attention.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR::split_k {

using kernels::ceil_div;
using kernels::DecodeShape;
using kernels::kDecodeMaxHeads;
using kernels::kDecodeThreads;
using kernels::kDecodeTile;

constexpr int kTile = static_cast<int>(kDecodeTile);
constexpr int kWarps = static_cast<int>(kDecodeThreads) / 32;

/// Returns of[row], read by one lane of each warp, or `otherwise` if `of` is empty.
KVSIM_DEVICE std::int64_t of_row(Span<const std::int32_t> of, std::int64_t row,
                                 std::int64_t otherwise) {
  if (of.size == 0) return otherwise;
  std::int32_t value = 0;
  if (threadIdx.x % 32 == 0) value = kv::load(of, row);
  return __shfl_sync(kAllLanes, value, 0);
}

KVSIM_DEVICE float minus_infinity() { return __uint_as_float(0xFF800000U); }

/// A row already converted to float.
template <int kPer>
struct WideRow {
  float x[std::size_t{kPer}];
};
template <int kPer>
KVSIM_DEVICE void widen(const WideRow<kPer>& row, float (&x)[std::size_t{kPer}]) {
  KVSIM_UNROLL
  for (int j = 0; j < kPer; ++j) x[j] = row.x[j];
}
template <class T, std::size_t kPer>
KVSIM_DEVICE void widen(const kv::Vec16<T>& row, float (&x)[kPer]) {
  KVSIM_UNROLL
  for (int j = 0; j < kv::Vec16<T>::kSize; ++j) x[j] = kv::to_float(row.v[j]);
}

struct NothingHeld {};
template <class Cache>
struct HeldOf {
  using Type = NothingHeld;
};
template <class Cache>
requires requires { typename Cache::Held; }
struct HeldOf<Cache> {
  using Type = typename Cache::Held;
};

template <int kHeads, int kHeadDim>
struct SplitTile {
  SharedArray<float, kHeads * kTile> weights;  // logits, then exponentials
  SharedArray<float, kHeads> rescale;          // of the sums before this tile
  SharedArray<float, kWarps * kHeads * kHeadDim> sums;
};

/// Each block handles one (split, group of query heads, sequence). A row of lanes holds a key, with
/// kPer elements per lane. Each tile of keys is turned into logits, their exponentials and a part
/// of the output.
template <class Cache, class T, int kHeadDim, int kHeads>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kDecodeThreads, 2)
    split_kernel(DecodeShape shape, Cache cache, DecodeAttention<T> a) {
  constexpr int kPer = Cache::kPer;
  constexpr int kVector = kv::Vec16<T>::kSize;
  constexpr int kRowLanes = kHeadDim / kPer;      // lanes per key
  constexpr int kWarpRows = 32 / kRowLanes;       // keys a warp holds
  constexpr int kBlockRows = kWarps * kWarpRows;  // keys the block holds
  constexpr int kWarpHeads = (kHeads + kWarps - 1) / kWarps;
  constexpr int kAhead = Cache::kAhead;
  constexpr bool kStaged = !std::is_same_v<typename HeldOf<Cache>::Type, NothingHeld>;
  static_assert(kRowLanes <= 32 && kTile % (kBlockRows * kAhead) == 0 && kHeads <= kRowLanes);
  static_assert(kPer % kVector == 0);

  auto& tile = kv::shared<SplitTile<kHeads, kHeadDim>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = lane % kRowLanes;
  const int row = warp * kWarpRows + lane / kRowLanes;

  const std::int64_t group = shape.group();
  const std::int64_t chunks = ceil_div(group, kDecodeMaxHeads);
  const std::int64_t kv_head = blockIdx.y / chunks;
  const std::int64_t chunk = blockIdx.y % chunks;
  const int n = static_cast<int>(smaller(kHeads, group - chunk * kDecodeMaxHeads));
  const std::int64_t query_row = blockIdx.z;
  const std::int64_t entries = of_row(a.lengths, query_row, shape.entries);
  const std::int64_t sequence = of_row(a.cache_of, query_row, query_row);
  const std::int64_t head =
      query_row * shape.n_heads + kv_head * group + chunk * kDecodeMaxHeads;  // first head
  const std::int64_t bias = (sequence * shape.n_kv_heads + kv_head) * shape.capacity;
  const std::int64_t begin = blockIdx.x * shape.entries_per_split;
  const std::int64_t end = smaller(begin + shape.entries_per_split, entries);
  if (begin >= end) return;  // shorter row of a ragged batch: the whole block exits
  cache.begin(shape, sequence, kv_head, entries, begin, end);
  [[maybe_unused]] typename HeldOf<Cache>::Type held;
  if constexpr (kStaged) cache.fetch(held, begin, end);

  float q[std::size_t{kHeads}][std::size_t{kPer}];
  float sums[std::size_t{kHeads}][std::size_t{kPer}];
  KVSIM_UNROLL
  for (int g = 0; g < kHeads; ++g) {
    KVSIM_UNROLL
    for (int first = 0; first < kPer; first += kVector) {
      kv::Vec16<T> raw{};
      if (g < n) raw = kv::load16(a.q, (head + g) * kHeadDim + part * kPer + first);
      KVSIM_UNROLL
      for (int j = 0; j < kVector; ++j) {
        q[g][first + j] = kv::to_float(raw.v[j]);
        sums[g][first + j] = 0;
      }
    }
  }
  float highest[std::size_t{kWarpHeads}];
  float total[std::size_t{kWarpHeads}];
  KVSIM_UNROLL
  for (int i = 0; i < kWarpHeads; ++i) {
    highest[i] = minus_infinity();
    total[i] = 0;
  }

  for (std::int64_t first = begin; first < end; first += kTile) {
    if constexpr (kStaged) {
      cache.put(held, first, end);
      __syncthreads();
      if (first + kTile < end) cache.fetch(held, first + kTile, end);  // in flight during this tile
    }
    for (int from = row; from < kTile; from += kBlockRows * kAhead) {
      typename Cache::Row rows[std::size_t{kAhead}] = {};
      float biases[std::size_t{kAhead}] = {};
      KVSIM_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t entry = first + from + i * kBlockRows;
        if (entry >= end) break;
        rows[i] = cache.key(entry, part);
        if (a.bias.size > 0 && part < n) biases[i] = kv::load(a.bias, bias + entry);
      }
      KVSIM_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int r = from + i * kBlockRows;
        const std::int64_t entry = first + r;
        const bool live = entry < end;
        float key[std::size_t{kPer}] = {};
        if (live) {
          widen(rows[i], key);
          kv::flops(2 * n * kPer);
        }
        float scale = a.scale;
        if constexpr (kStaged) scale *= cache.key_factor(entry, live, key);
        KVSIM_UNROLL
        for (int g = 0; g < kHeads; ++g) {
          if (g >= n) break;
          float dot = 0;
          KVSIM_UNROLL
          for (int j = 0; j < kPer; ++j) dot += q[g][j] * key[j];
          dot = warp_sum(dot, kRowLanes);
          if (part == g) {  // each head's logit is written by a separate lane
            float logit = minus_infinity();
            if (live) {
              logit = dot * scale + biases[i];
              if (a.logits.size > 0) {
                kv::store(a.logits, (head + g) * shape.capacity + entry, logit);
              }
            }
            kv::store(tile.weights, g * kTile + r, logit);
          }
        }
      }
    }
    __syncthreads();
    KVSIM_UNROLL
    for (int i = 0; i < kWarpHeads; ++i) {
      const int g = warp + i * kWarps;
      if (g >= n) break;
      const float x = kv::load(tile.weights, g * kTile + lane);
      const float y = kv::load(tile.weights, g * kTile + 32 + lane);
      const float before = highest[i];
      const float now = fmaxf(before, warp_max(fmaxf(x, y)));
      // All hidden so far: every exponential is 0, and -inf - -inf must not be evaluated.
      const bool any = now > minus_infinity();
      const float ex = any ? expf(x - now) : 0.0F;
      const float ey = any ? expf(y - now) : 0.0F;
      const float rescale = any ? expf(before - now) : 1.0F;
      highest[i] = now;
      total[i] = total[i] * rescale + warp_sum(ex + ey);
      kv::store(tile.weights, g * kTile + lane, ex);
      kv::store(tile.weights, g * kTile + 32 + lane, ey);
      if (lane == 0) kv::store(tile.rescale, g, rescale);
    }
    __syncthreads();
    KVSIM_UNROLL
    for (int g = 0; g < kHeads; ++g) {
      if (g >= n) break;
      const float rescale = kv::load(tile.rescale, g);
      KVSIM_UNROLL
      for (int j = 0; j < kPer; ++j) sums[g][j] *= rescale;
    }
    for (int from = row; from < kTile && first + from < end; from += kBlockRows * kAhead) {
      typename Cache::Row rows[std::size_t{kAhead}] = {};
      KVSIM_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t entry = first + from + i * kBlockRows;
        if (entry < end) rows[i] = cache.value(entry, part);
      }
      KVSIM_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int r = from + i * kBlockRows;
        if (first + r >= end) break;
        float value[std::size_t{kPer}];
        widen(rows[i], value);
        kv::flops(2 * n * kPer);
        KVSIM_UNROLL
        for (int g = 0; g < kHeads; ++g) {
          if (g >= n) break;
          const float weight = kv::load(tile.weights, g * kTile + r);
          KVSIM_UNROLL
          for (int j = 0; j < kPer; ++j) sums[g][j] += weight * value[j];
        }
      }
    }
    __syncthreads();  // the next tile's logits overwrite these weights
  }

  Span<float> block_sums = tile.sums;
  KVSIM_UNROLL
  for (int g = 0; g < kHeads; ++g) {
    if (g >= n) break;
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) {
      float x = sums[g][j];
      for (int distance = kRowLanes; distance < 32; distance *= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
      }
      sums[g][j] = x;
    }
    if (lane < kRowLanes) {
      KVSIM_UNROLL
      for (int j = 0; j < kPer; j += 4) {
        kv::store16(block_sums, (warp * kHeads + g) * kHeadDim + part * kPer + j,
                    kv::Vec16<float>{{sums[g][j], sums[g][j + 1], sums[g][j + 2], sums[g][j + 3]}});
      }
    }
  }
  const std::int64_t splits = shape.splits();
  KVSIM_UNROLL
  for (int i = 0; i < kWarpHeads; ++i) {
    const int g = warp + i * kWarps;
    if (g < n && lane == 0) {
      kv::store(a.partial_max, (head + g) * splits + blockIdx.x, highest[i]);
      kv::store(a.partial_sum, (head + g) * splits + blockIdx.x, total[i]);
    }
  }
  __syncthreads();
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n * kHeadDim; i += 4 * kWarps * 32) {
    auto x = kv::load16(block_sums, i);
    for (int w = 1; w < kWarps; ++w) {
      const auto y = kv::load16(block_sums, w * kHeads * kHeadDim + i);
      for (int j = 0; j < 4; ++j) x.v[j] += y.v[j];
    }
    const std::int64_t g = i / kHeadDim;
    kv::store16(a.partial, ((head + g) * splits + blockIdx.x) * kHeadDim + i % kHeadDim, x);
  }
}

/// Each block is one warp and handles one query head: it weights the splits by their maxima and
/// sums.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(32) combine_kernel(DecodeShape shape, DecodeAttention<T> a) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  const auto weights = kv::dynamic_shared<float>();  // [splits]
  const std::int64_t stride = shape.splits();
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * shape.n_heads + blockIdx.x;
  const std::int64_t splits =
      ceil_div(of_row(a.lengths, blockIdx.y, shape.entries), shape.entries_per_split);
  float highest = minus_infinity();
  for (std::int64_t s = threadIdx.x; s < splits; s += 32) {
    const float x = kv::load(a.partial_max, head * stride + s);
    kv::store(weights, s, x);
    highest = fmaxf(highest, x);
  }
  highest = warp_max(highest);
  float total = 0;
  for (std::int64_t s = threadIdx.x; s < splits; s += 32) {
    const float weight = expf(kv::load(weights, s) - highest);
    kv::store(weights, s, weight);
    total += weight * kv::load(a.partial_sum, head * stride + s);
  }
  total = warp_sum(total);
  __syncwarp();
  const float inverse = splits > 0 ? 1.0F / total : 0.0F;  // without entries: zeros
  for (std::int64_t at = threadIdx.x * kPer; at < shape.head_dim; at += 32 * kPer) {
    float sums[std::size_t{kPer}] = {};
    for (std::int64_t s = 0; s < splits; ++s) {
      const float weight = kv::load(weights, s);
      KVSIM_UNROLL
      for (int j = 0; j < kPer; j += 4) {
        const auto x = kv::load16(a.partial, (head * stride + s) * shape.head_dim + at + j);
        for (int i = 0; i < 4; ++i) sums[j + i] += weight * x.v[i];
      }
    }
    kv::Vec16<T> result;
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) result.v[j] = kv::from_float<T>(sums[j] * inverse);
    kv::store16(a.out, head * shape.head_dim + at, result);
  }
  if (threadIdx.x == 0 && a.log_sum.size > 0) {
    kv::store(a.log_sum, head, splits > 0 ? highest + logf(total) : minus_infinity());
  }
}

/// Checks the parameters shared by all cache formats.
template <class T>
void check_common(const DecodeShape& s, const DecodeAttention<T>& a) {
  KVSIM_LAUNCH_CHECK(s.batch >= 1 && s.n_kv_heads >= 1 && s.n_heads >= 1 && s.entries >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.n_heads % s.n_kv_heads == 0, "n_heads is a multiple of n_kv_heads");
  KVSIM_LAUNCH_CHECK(s.head_dim == 64 || s.head_dim == 128, "head_dim is 64 or 128");
  KVSIM_LAUNCH_CHECK(s.capacity >= s.entries, "capacity holds the entries");
  KVSIM_LAUNCH_CHECK(s.entries_per_split >= kDecodeTile && s.entries_per_split % kDecodeTile == 0,
                     "entries_per_split is a multiple of the tile");
  const std::int64_t rows = s.batch * s.n_heads;
  const std::int64_t entries = s.caches() * s.n_kv_heads * s.capacity;
  KVSIM_LAUNCH_CHECK(a.lengths.size == 0 || a.lengths.size >= s.batch, "lengths are [batch]");
  KVSIM_LAUNCH_CHECK(a.cache_of.size == 0 ? s.sequences == 0 : a.cache_of.size >= s.batch,
                     "cache_of is [batch] where rows share caches, which sequences counts");
  KVSIM_LAUNCH_CHECK(a.q.size >= rows * s.head_dim && a.out.size >= rows * s.head_dim,
                     "q and out are [batch, n_heads, head_dim]");
  KVSIM_LAUNCH_CHECK(a.bias.size == 0 || a.bias.size >= entries,
                     "bias is [sequences, n_kv_heads, capacity]");
  KVSIM_LAUNCH_CHECK(a.logits.size == 0 || a.logits.size >= rows * s.capacity,
                     "logits are [batch, n_heads, capacity]");
  KVSIM_LAUNCH_CHECK(a.log_sum.size == 0 || a.log_sum.size >= rows, "log_sum is [batch, n_heads]");
  KVSIM_LAUNCH_CHECK(a.partial.size >= rows * s.splits() * s.head_dim,
                     "partial is [batch, n_heads, splits, head_dim]");
  KVSIM_LAUNCH_CHECK(
      a.partial_max.size >= rows * s.splits() && a.partial_sum.size >= rows * s.splits(),
      "partial_max and partial_sum are [batch, n_heads, splits]");
}

template <class T, int kHeadDim, int kHeads, class Cache>
void launch_split(Stream stream, const DecodeShape& shape, const Cache& cache,
                  const DecodeAttention<T>& a, std::int64_t shared_bytes) {
  const std::int64_t chunks = ceil_div(shape.group(), kDecodeMaxHeads);
  launch(stream, "decode_attention_split",
         {static_cast<std::uint32_t>(shape.splits()),
          static_cast<std::uint32_t>(shape.n_kv_heads * chunks),
          static_cast<std::uint32_t>(shape.batch)},
         {static_cast<std::uint32_t>(kDecodeThreads)}, shared_bytes,
         split_kernel<Cache, T, kHeadDim, kHeads>, shape, cache, a);
}

/// Combines the partial results of launch_split.
template <class T>
void launch_combine(Stream stream, const DecodeShape& shape, const DecodeAttention<T>& a) {
  launch(stream, "decode_attention_combine",
         {static_cast<std::uint32_t>(shape.n_heads), static_cast<std::uint32_t>(shape.batch)}, {32},
         4 * shape.splits(), combine_kernel<T>, shape, a);
}

}  // namespace kvsim::KVSIM_EXECUTOR::split_k
