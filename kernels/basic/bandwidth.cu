#include "kernels/basic/bandwidth.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::BandwidthShape;
using kernels::kBandwidthThreads;

constexpr int kWarps = static_cast<int>(kBandwidthThreads) / 32;

struct BlockSum {
  SharedArray<float, kWarps> warps;
};

/// Calls vector(i) for full groups of four numbers and scalar(i) for the rest, distributed over the
/// grid.
template <class Vector, class Scalar>
KVSIM_DEVICE void for_stream(std::int64_t n, Vector vector, Scalar scalar) {
  const std::int64_t whole = n / 4;
  for (std::int64_t i = grid_thread(); i < whole; i += grid_threads()) vector(4 * i);
  if (const std::int64_t i = 4 * whole + grid_thread(); i < n) scalar(i);
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kBandwidthThreads)
    read_kernel(std::int64_t n, Span<const float> in, Span<float> sums) {
  auto& tile = kv::shared<BlockSum>();
  float sum = 0;
  for_stream(
      n,
      [&](std::int64_t i) {
        const auto x = kv::load16(in, i);
        sum += (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
        kv::flops(4);
      },
      [&](std::int64_t i) {
        sum += kv::load(in, i);
        kv::flops(1);
      });
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) kv::store(tile.warps, threadIdx.x / 32, sum);
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += kv::load(tile.warps, w);
    kv::store(sums, blockIdx.x, total);
  }
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kBandwidthThreads)
    write_kernel(std::int64_t n, float value, Span<float> out) {
  for_stream(
      n,
      [&](std::int64_t i) {
        kv::store16(out, i, kv::Vec16<float>{{value, value, value, value}});
      },
      [&](std::int64_t i) { kv::store(out, i, value); });
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kBandwidthThreads)
    copy_kernel(std::int64_t n, Span<const float> in, Span<float> out) {
  for_stream(
      n, [&](std::int64_t i) { kv::store16(out, i, kv::load16(in, i)); },
      [&](std::int64_t i) { kv::store(out, i, kv::load(in, i)); });
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kBandwidthThreads)
    triad_kernel(std::int64_t n, Span<const float> a, Span<const float> b, float factor,
                 Span<float> out) {
  for_stream(
      n,
      [&](std::int64_t i) {
        auto x = kv::load16(a, i);
        const auto y = kv::load16(b, i);
        for (int k = 0; k < 4; ++k) x.v[k] += factor * y.v[k];
        kv::flops(8);
        kv::store16(out, i, x);
      },
      [&](std::int64_t i) {
        kv::flops(2);
        kv::store(out, i, kv::load(a, i) + factor * kv::load(b, i));
      });
}

/// Errors: ContractError if the grid is too small for the tail, or a span is shorter than the
/// shape.
void check(const BandwidthShape& shape, std::int64_t shortest) {
  KVSIM_LAUNCH_CHECK(shape.n >= 1 && shape.blocks >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(shortest >= shape.n, "a span is shorter than n");
}

Dim3 grid_of(const BandwidthShape& shape) { return {static_cast<std::uint32_t>(shape.blocks)}; }

constexpr Dim3 kBlock{static_cast<std::uint32_t>(kBandwidthThreads)};

}  // namespace

void stream_read(Stream stream, const BandwidthShape& shape, Span<const float> in,
                 Span<float> sums) {
  check(shape, in.size);
  KVSIM_LAUNCH_CHECK(sums.size >= shape.blocks, "one sum a block");
  launch(stream, "stream_read", grid_of(shape), kBlock, 0, read_kernel, shape.n, in, sums);
}

void stream_write(Stream stream, const BandwidthShape& shape, float value, Span<float> out) {
  check(shape, out.size);
  launch(stream, "stream_write", grid_of(shape), kBlock, 0, write_kernel, shape.n, value, out);
}

void stream_copy(Stream stream, const BandwidthShape& shape, Span<const float> in,
                 Span<float> out) {
  check(shape, in.size < out.size ? in.size : out.size);
  launch(stream, "stream_copy", grid_of(shape), kBlock, 0, copy_kernel, shape.n, in, out);
}

void stream_triad(Stream stream, const BandwidthShape& shape, Span<const float> a,
                  Span<const float> b, float factor, Span<float> out) {
  const std::int64_t inputs = a.size < b.size ? a.size : b.size;
  check(shape, inputs < out.size ? inputs : out.size);
  launch(stream, "stream_triad", grid_of(shape), kBlock, 0, triad_kernel, shape.n, a, b, factor,
         out);
}

}  // namespace kvsim::KVSIM_EXECUTOR
