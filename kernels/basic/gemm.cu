#include "kernels/basic/gemm.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::GemmShape;
using kernels::kGemmTile;

constexpr int kTile = static_cast<int>(kGemmTile);
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPerThread = kTile / kWarps;  // rows of the tile summed by a thread, in one column
static_assert(kTile == 32, "a lane is a column of the tile");

/// Rows are padded by one element so that the lanes of a warp read different banks.
struct Tiles {
  SharedArray<float, kTile*(kTile + 1)> a, b;
};

KVSIM_DEVICE float activated(float x, bool gelu) {
  constexpr float kInverseSqrt2 = 0.70710678F;
  return gelu ? 0.5F * x * (1.0F + erff(x * kInverseSqrt2)) : x;
}

/// Loads the tile of `rows` x `k` that starts at (row, step), by all threads, 8 numbers each; zeros
/// out of bounds.
template <class T>
KVSIM_DEVICE void load_tile(Span<const T> from, std::int64_t row, std::int64_t rows,
                            std::int64_t step, std::int64_t k,
                            SharedArray<float, kTile*(kTile + 1)>& to) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  for (int i = static_cast<int>(threadIdx.x) * kPer; i < kTile * kTile; i += kThreads * kPer) {
    const int r = i / kTile;
    const int c = i % kTile;
    kv::Vec16<T> raw{};
    if (row + r < rows && step + c < k) raw = kv::load16(from, (row + r) * k + step + c);
    for (int j = 0; j < kPer; ++j) kv::store(to, r * (kTile + 1) + c + j, kv::to_float(raw.v[j]));
  }
}

template <class A, class B>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) gemm_kernel(GemmShape shape, Gemm<A, B> g) {
  auto& tile = kv::shared<Tiles>();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  float sums[std::size_t{kPerThread}] = {};
  for (std::int64_t step = 0; step < shape.k; step += kTile) {
    load_tile<A>(g.a, row, shape.m, step, shape.k, tile.a);
    load_tile<B>(g.b, column, shape.n, step, shape.k, tile.b);
    __syncthreads();
    for (int j = 0; j < kTile; ++j) {
      const float b = kv::load(tile.b, lane * (kTile + 1) + j);
      KVSIM_UNROLL
      for (int i = 0; i < kPerThread; ++i) {
        sums[i] += kv::load(tile.a, (warp * kPerThread + i) * (kTile + 1) + j) * b;
      }
    }
    __syncthreads();
  }
  const std::int64_t n = column + lane;
  if (n >= shape.n) return;
  const float bias = g.bias.size > 0 ? kv::load(g.bias, n) : 0.0F;
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t m = row + warp * kPerThread + i;
    if (m >= shape.m) break;
    kv::flops(2 * shape.k);
    kv::store(g.out, m * shape.n + n, kv::from_float<B>(activated(sums[i] + bias, g.gelu)));
  }
}

template <class A, class B>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads) gemv_kernel(GemmShape shape, Gemm<A, B> g) {
  constexpr int kPer = 8;
  const std::int64_t n = grid_thread() / 32;
  if (n >= shape.n) return;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32 * kPer; i < shape.k; i += 32 * kPer) {
    float x[std::size_t{kPer}];
    KVSIM_UNROLL
    for (int j = 0; j < kPer; j += kv::Vec16<A>::kSize) {
      const auto raw = kv::load16(g.a, i + j);
      for (int l = 0; l < kv::Vec16<A>::kSize; ++l) x[j + l] = kv::to_float(raw.v[l]);
    }
    KVSIM_UNROLL
    for (int j = 0; j < kPer; j += kv::Vec16<B>::kSize) {
      const auto raw = kv::load16(g.b, n * shape.k + i + j);
      for (int l = 0; l < kv::Vec16<B>::kSize; ++l) sum += x[j + l] * kv::to_float(raw.v[l]);
    }
    kv::flops(2 * kPer);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 != 0) return;
  const float bias = g.bias.size > 0 ? kv::load(g.bias, n) : 0.0F;
  kv::store(g.out, n, kv::from_float<B>(activated(sum + bias, g.gelu)));
}

template <class A, class B>
void check(const GemmShape& s, const Gemm<A, B>& g) {
  KVSIM_LAUNCH_CHECK(s.m >= 1 && s.n >= 1 && s.k >= 8 && s.k % 8 == 0,
                     "sizes are 1 at least, k a multiple of 8");
  KVSIM_LAUNCH_CHECK(g.a.size >= s.m * s.k && g.b.size >= s.n * s.k && g.out.size >= s.m * s.n,
                     "a is [m, k], b [n, k], out [m, n]");
  KVSIM_LAUNCH_CHECK(g.bias.size == 0 || g.bias.size >= s.n, "bias is [n]");
}

}  // namespace

template <class A, class B>
void gemm(Stream stream, const GemmShape& s, const Gemm<A, B>& g) {
  check(s, g);
  launch(stream, "gemm",
         {static_cast<std::uint32_t>(ceil_div(s.n, kTile)),
          static_cast<std::uint32_t>(ceil_div(s.m, kTile))},
         {kThreads}, 0, gemm_kernel<A, B>, s, g);
}

template <class A, class B>
void gemv(Stream stream, const GemmShape& s, const Gemm<A, B>& g) {
  check(s, g);
  KVSIM_LAUNCH_CHECK(s.m == 1, "one row");
  launch(stream, "gemv", {static_cast<std::uint32_t>(ceil_div(s.n, kWarps))}, {kThreads}, 0,
         gemv_kernel<A, B>, s, g);
}

#define KVSIM_INSTANTIATE(A, B)                                    \
  template void gemm(Stream, const GemmShape&, const Gemm<A, B>&); \
  template void gemv(Stream, const GemmShape&, const Gemm<A, B>&);
KVSIM_INSTANTIATE(float, float)
KVSIM_INSTANTIATE(kv::Half, kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16, kv::BFloat16)
KVSIM_INSTANTIATE(kv::Half, float)
KVSIM_INSTANTIATE(kv::BFloat16, float)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
