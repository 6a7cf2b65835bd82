#include <algorithm>

#include "kernels/decode/decode_steps.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::ProjectedShape;
using kernels::RowsShape;
using kernels::SlotShape;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

Dim3 grid_of(std::int64_t threads) {
  return {static_cast<std::uint32_t>(ceil_div(threads, kThreads))};
}

/// Each thread rotates the pairs whose first halves fit in 16 bytes.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    rotate_kernel(ProjectedShape shape, Span<const T> projected, Span<const float> turns, Span<T> q,
                  Span<T> keys, Span<T> values) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  const std::int64_t half = shape.head_dim / 2;
  const std::int64_t parts = half / kPer;
  const std::int64_t heads = shape.n_heads + 2 * shape.n_kv_heads;
  const std::int64_t i = grid_thread();
  if (i >= shape.batch * heads * parts) return;
  const std::int64_t pair = i % parts * kPer;
  const std::int64_t head = i / parts % heads;
  const std::int64_t row = i / parts / heads;
  const std::int64_t from = (row * heads + head) * shape.head_dim + pair;
  auto x = kv::load16(projected, from);
  auto y = kv::load16(projected, from + half);
  if (head >= shape.n_heads + shape.n_kv_heads) {
    const std::int64_t stored = head - shape.n_heads - shape.n_kv_heads;
    const std::int64_t to = (row * shape.n_kv_heads + stored) * shape.head_dim + pair;
    kv::store16(values, to, x);
    kv::store16(values, to + half, y);
    return;
  }
  KVSIM_UNROLL
  for (int first = 0; first < kPer; first += 4) {
    const auto cosine = kv::load16(turns, pair + first);
    const auto sine = kv::load16(turns, half + pair + first);
    KVSIM_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float a = kv::to_float(x.v[first + j]);
      const float b = kv::to_float(y.v[first + j]);
      x.v[first + j] = kv::from_float<T>(a * cosine.v[j] - b * sine.v[j]);
      y.v[first + j] = kv::from_float<T>(b * cosine.v[j] + a * sine.v[j]);
    }
  }
  kv::flops(6 * kPer);
  if (head < shape.n_heads) {
    const std::int64_t to = (row * shape.n_heads + head) * shape.head_dim + pair;
    kv::store16(q, to, x);
    kv::store16(q, to + half, y);
  } else {
    const std::int64_t stored = head - shape.n_heads;
    const std::int64_t to = (row * shape.n_kv_heads + stored) * shape.head_dim + pair;
    kv::store16(keys, to, x);
    kv::store16(keys, to + half, y);
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    gate_kernel(RowsShape shape, Span<const T> both, Span<T> out) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  const std::int64_t i = grid_thread() * kPer;
  if (i >= shape.rows * shape.width) return;
  const std::int64_t from = i / shape.width * 2 * shape.width + i % shape.width;
  const auto gate = kv::load16(both, from);
  auto up = kv::load16(both, from + shape.width);
  for (int j = 0; j < kPer; ++j) {
    const float x = kv::to_float(gate.v[j]);
    up.v[j] = kv::from_float<T>(x / (1.0F + expf(-x)) * kv::to_float(up.v[j]));
  }
  kv::store16(out, i, up);
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) add_kernel(std::int64_t n, Span<const T> x, Span<T> to) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  const std::int64_t i = grid_thread() * kPer;
  if (i >= n) return;
  const auto more = kv::load16(x, i);
  auto sum = kv::load16(to, i);
  for (int j = 0; j < kPer; ++j) {
    sum.v[j] = kv::from_float<T>(kv::to_float(sum.v[j]) + kv::to_float(more.v[j]));
  }
  kv::store16(to, i, sum);
}

/// The finaliser of splitmix64 over key and index.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    fill_kernel(std::uint64_t key, float low, float high, Span<T> to) {
  for (std::int64_t i = grid_thread(); i < to.size; i += grid_threads()) {
    std::uint64_t z = key + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    z ^= z >> 31U;
    const float unit = (static_cast<float>(z >> 40U) + 0.5F) * 0x1p-24F;
    kv::store(to, i, kv::from_float<T>(low + (high - low) * unit));
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) copy_kernel(Span<const T> from, Span<T> to) {
  for (std::int64_t i = grid_thread(); i < to.size; i += grid_threads()) {
    kv::store(to, i, kv::load(from, i));
  }
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) open_kernel(SlotShape shape, OpenSlots a) {
  const std::int64_t row = grid_thread();
  if (row >= shape.rows) return;
  const std::int64_t slot = a.victims.size > 0 ? kv::load(a.victims, row) : a.slot;
  const std::int64_t at = row * shape.capacity + slot;
  kv::store(a.slots, row, at);
  if (a.positions.size > 0) {
    kv::store(a.positions, at, a.position);
    kv::store(a.scores, at, 0.0F);
  }
}

struct WarpMinima {
  SharedArray<std::uint64_t, kWarps> keys;
};

/// One block per row. A word holds the score in the high half and the entry in the low half, so the
/// smallest word is the first entry with the lowest score.
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) choose_kernel(SlotShape shape, ChooseVictims a) {
  auto& tile = kv::shared<WarpMinima>();
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * shape.capacity;
  std::uint64_t min = ~std::uint64_t{0};
  for (std::int64_t e = threadIdx.x; e < a.entries; e += kThreads) {
    const std::uint64_t score = ordered_bits(kv::load(a.scores, base + e));
    const bool stays = e < a.pinned || kv::load(a.positions, base + e) >= a.first_recent;
    const std::uint64_t key = (score << 32U) | static_cast<std::uint64_t>(e);
    if (!stays && key < min) min = key;
  }
  min = warp_min(min);
  if (threadIdx.x % 32 == 0) kv::store(tile.keys, threadIdx.x / 32, min);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) {
      const std::uint64_t key = kv::load(tile.keys, w);
      min = key < min ? key : min;
    }
    kv::store(a.victims, blockIdx.x, static_cast<std::int32_t>(min & 0xFFFFFFFFU));
  }
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    bias_kernel(SlotShape shape, std::int64_t slots, float alpha, Span<const std::int32_t> counts,
                Span<float> bias) {
  const std::int64_t i = grid_thread();
  if (i >= shape.rows * slots) return;
  const std::int64_t to = i / slots * shape.capacity + i % slots;
  kv::store(bias, to, alpha * logf(static_cast<float>(kv::load(counts, i))));
}

}  // namespace

template <class T>
void split_and_rotate(Stream stream, const ProjectedShape& s, Span<const T> projected,
                      Span<const float> turns, Span<T> q, Span<T> keys, Span<T> values) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  KVSIM_LAUNCH_CHECK(s.batch >= 1 && s.n_heads >= 1 && s.n_kv_heads >= 1 && s.head_dim >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.head_dim % (2 * kPer) == 0, "half a head is whole 16 bytes");
  const std::int64_t stored = s.batch * s.n_kv_heads * s.head_dim;
  KVSIM_LAUNCH_CHECK(projected.size >= s.batch * s.width() && turns.size >= s.head_dim,
                     "projected is [batch, n_heads + 2 n_kv_heads, head_dim], turns [head_dim]");
  KVSIM_LAUNCH_CHECK(
      q.size >= s.batch * s.n_heads * s.head_dim && keys.size >= stored && values.size >= stored,
      "an output is shorter than its rows");
  launch(stream, "split_and_rotate", grid_of(s.batch * s.width() / 2 / kPer), {kThreads}, 0,
         rotate_kernel<T>, s, projected, turns, q, keys, values);
}

template <class T>
void gate_product(Stream stream, const RowsShape& s, Span<const T> both, Span<T> out) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.width >= 1 && s.width % kPer == 0, "rows of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(both.size >= 2 * s.rows * s.width && out.size >= s.rows * s.width,
                     "both is [rows, 2 width], out [rows, width]");
  launch(stream, "gate_product", grid_of(s.rows * s.width / kPer), {kThreads}, 0, gate_kernel<T>, s,
         both, out);
}

template <class T>
void add_rows(Stream stream, std::int64_t n, Span<const T> x, Span<T> to) {
  constexpr std::int64_t kPer = kv::Vec16<T>::kSize;
  KVSIM_LAUNCH_CHECK(n >= 1 && n % kPer == 0, "whole 16 bytes");
  KVSIM_LAUNCH_CHECK(x.size >= n && to.size >= n, "a span is shorter than n");
  launch(stream, "add_rows", grid_of(n / kPer), {kThreads}, 0, add_kernel<T>, n, x, to);
}

template <class T>
void fill_random(Stream stream, std::uint64_t key, float low, float high, Span<T> to) {
  KVSIM_LAUNCH_CHECK(to.size >= 1, "nothing to fill");
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(to.size, kThreads), 4096);
  launch(stream, "fill_random", {static_cast<std::uint32_t>(blocks)}, {kThreads}, 0, fill_kernel<T>,
         key, low, high, to);
}

template <class T>
void copy_values(Stream stream, Span<const T> from, Span<T> to) {
  KVSIM_LAUNCH_CHECK(from.size >= 1 && from.size == to.size, "as many numbers on both sides");
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(to.size, kThreads), 4096);
  launch(stream, "copy_values", {static_cast<std::uint32_t>(blocks)}, {kThreads}, 0, copy_kernel<T>,
         from, to);
}

void open_slots(Stream stream, const SlotShape& s, const OpenSlots& a) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.capacity >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(a.slots.size >= s.rows && (a.victims.size == 0 || a.victims.size >= s.rows),
                     "slots and victims are [rows]");
  KVSIM_LAUNCH_CHECK(a.victims.size > 0 || (a.slot >= 0 && a.slot < s.capacity),
                     "the slot lies in its row");
  KVSIM_LAUNCH_CHECK(a.positions.size == a.scores.size &&
                         (a.positions.size == 0 || a.positions.size >= s.rows * s.capacity),
                     "positions and scores are [rows, capacity], or both empty");
  launch(stream, "open_slots", grid_of(s.rows), {kThreads}, 0, open_kernel, s, a);
}

void choose_victims(Stream stream, const SlotShape& s, const ChooseVictims& a) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && a.entries >= 1 && a.entries <= s.capacity,
                     "entries lie in their row");
  KVSIM_LAUNCH_CHECK(
      a.scores.size >= s.rows * s.capacity && a.positions.size >= s.rows * s.capacity,
      "scores and positions are [rows, capacity]");
  KVSIM_LAUNCH_CHECK(a.victims.size >= s.rows, "a victim a row");
  launch(stream, "choose_victims", {static_cast<std::uint32_t>(s.rows)}, {kThreads}, 0,
         choose_kernel, s, a);
}

void count_bias(Stream stream, const SlotShape& s, std::int64_t slots, float alpha,
                Span<const std::int32_t> counts, Span<float> bias) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && slots >= 1 && slots <= s.capacity, "slots lie in their row");
  KVSIM_LAUNCH_CHECK(counts.size >= s.rows * slots && bias.size >= s.rows * s.capacity,
                     "counts are [rows, slots], bias [rows, capacity]");
  launch(stream, "count_bias", grid_of(s.rows * slots), {kThreads}, 0, bias_kernel, s, slots, alpha,
         counts, bias);
}

#define KVSIM_INSTANTIATE(T)                                                                      \
  template void split_and_rotate(Stream, const ProjectedShape&, Span<const T>, Span<const float>, \
                                 Span<T>, Span<T>, Span<T>);                                      \
  template void gate_product(Stream, const RowsShape&, Span<const T>, Span<T>);                   \
  template void add_rows(Stream, std::int64_t, Span<const T>, Span<T>);                           \
  template void fill_random(Stream, std::uint64_t, float, float, Span<T>);                        \
  template void copy_values(Stream, Span<const T>, Span<T>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE
template void copy_values(Stream, Span<const std::int32_t>, Span<std::int32_t>);

}  // namespace kvsim::KVSIM_EXECUTOR
