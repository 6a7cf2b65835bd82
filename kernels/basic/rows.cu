#include "kernels/basic/rows.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::RowsShape;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kWidestNorm = 12'288;  // a row in 48 KiB

struct Partials {
  SharedArray<float, kWarps> highest, total;
};

/// Combines the maxima and sums of exponentials of two parts of a row.
KVSIM_DEVICE void join(float& highest, float& total, float other, float other_total) {
  const float now = fmaxf(highest, other);
  if (now == __uint_as_float(0xFF800000U)) return;  // both hidden: -inf - -inf
  total = total * expf(highest - now) + other_total * expf(other - now);
  highest = now;
}

/// One block per row: each thread keeps a running maximum and sum of its numbers, then the threads'
/// results are combined.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    softmax_kernel(RowsShape shape, Span<const T> from, Span<float> to) {
  auto& tile = kv::shared<Partials>();
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * shape.width;
  float highest = __uint_as_float(0xFF800000U);
  float total = 0;
  for (std::int64_t i = threadIdx.x; i < shape.width; i += kThreads) {
    join(highest, total, kv::to_float(kv::load(from, base + i)), 1.0F);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, highest, distance);
    const float other_total = __shfl_xor_sync(kAllLanes, total, distance);
    join(highest, total, other, other_total);
  }
  if (threadIdx.x % 32 == 0) {
    kv::store(tile.highest, threadIdx.x / 32, highest);
    kv::store(tile.total, threadIdx.x / 32, total);
  }
  __syncthreads();
  highest = kv::load(tile.highest, 0);
  total = kv::load(tile.total, 0);
  for (int w = 1; w < kWarps; ++w) {
    join(highest, total, kv::load(tile.highest, w), kv::load(tile.total, w));
  }
  const float inverse = 1.0F / total;
  for (std::int64_t i = threadIdx.x; i < shape.width; i += kThreads) {
    kv::store(to, base + i, expf(kv::to_float(kv::load(from, base + i)) - highest) * inverse);
  }
}

struct Sums {
  SharedArray<float, kWarps> warps;
};

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    rms_norm_kernel(RowsShape shape, float epsilon, Span<const T> from, Span<const T> weight,
                    Span<T> to) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  auto& tile = kv::shared<Sums>();
  const auto row = kv::dynamic_shared<float>();  // each thread reads only its own elements
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * shape.width;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kPer;
  float sum = 0;
  for (std::int64_t i = first; i < shape.width; i += kThreads * kPer) {
    const auto raw = kv::load16(from, base + i);
    for (int j = 0; j < kPer; ++j) {
      const float x = kv::to_float(raw.v[j]);
      kv::store(row, i + j, x);
      sum += x * x;
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) kv::store(tile.warps, threadIdx.x / 32, sum);
  __syncthreads();
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += kv::load(tile.warps, w);
  const float factor = 1.0F / sqrtf(sum / static_cast<float>(shape.width) + epsilon);
  for (std::int64_t i = first; i < shape.width; i += kThreads * kPer) {
    const auto w = kv::load16(weight, i);
    kv::Vec16<T> result;
    for (int j = 0; j < kPer; ++j) {
      result.v[j] = kv::from_float<T>(kv::load(row, i + j) * factor * kv::to_float(w.v[j]));
    }
    kv::store16(to, base + i, result);
  }
}

}  // namespace

template <class T>
void softmax_rows(Stream stream, const RowsShape& shape, Span<const T> from, Span<float> to) {
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.width >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(from.size >= shape.rows * shape.width && to.size >= shape.rows * shape.width,
                     "from and to are [rows, width]");
  launch(stream, "softmax_rows", {static_cast<std::uint32_t>(shape.rows)}, {kThreads}, 0,
         softmax_kernel<T>, shape, from, to);
}

template <class T>
void rms_norm_rows(Stream stream, const RowsShape& shape, float epsilon, Span<const T> from,
                   Span<const T> weight, Span<T> to) {
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.width >= 1 && shape.width <= kWidestNorm &&
                         shape.width % kv::Vec16<T>::kSize == 0,
                     "rows of whole 16 bytes, no wider than shared memory");
  KVSIM_LAUNCH_CHECK(from.size >= shape.rows * shape.width && to.size >= shape.rows * shape.width,
                     "from and to are [rows, width]");
  KVSIM_LAUNCH_CHECK(weight.size >= shape.width, "weight is [width]");
  launch(stream, "rms_norm_rows", {static_cast<std::uint32_t>(shape.rows)}, {kThreads},
         4 * shape.width, rms_norm_kernel<T>, shape, epsilon, from, weight, to);
}

#define KVSIM_INSTANTIATE(T)                                                                 \
  template void softmax_rows(Stream, const RowsShape&, Span<const T>, Span<float>);          \
  template void rms_norm_rows(Stream, const RowsShape&, float, Span<const T>, Span<const T>, \
                              Span<T>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
