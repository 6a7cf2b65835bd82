// The simulator itself: results of its operations, its counters, and repeatability of runs.

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cuda_sim/kernel.hpp"
#include "tests/support/check.hpp"

namespace kvsim::on_sim {
namespace {

using cuda_sim::Buffer;
using cuda_sim::Counters;
using cuda_sim::Device;

constexpr std::uint32_t kAll = 0xFFFFFFFFU;

std::vector<float> ramp(std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

// --- indices and counts --------------------------------------------------------------------------

KVSIM_KERNEL write_linear_index(Span<std::int64_t> out) {
  const std::int64_t block =
      (static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const std::int64_t thread =
      (static_cast<std::int64_t>(threadIdx.z) * blockDim.y + threadIdx.y) * blockDim.x +
      threadIdx.x;
  const std::int64_t i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  kv::store(out, i, i);
}

TEST_CASE("every thread of every block runs once under its own indices") {
  Device device;
  const Dim3 grid{3, 2, 2};
  const Dim3 block{5, 4, 3};
  Buffer<std::int64_t> out{device, "out", 12 * 60};
  launch({&device}, "linear", grid, block, 0, write_linear_index, span_of(out));
  const auto values = out.download();
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == static_cast<std::int64_t>(i));
  const Counters& c = device.counters();
  CHECK(c.launches == 1);
  CHECK(c.blocks == 12);
  CHECK(c.threads == 720);
  CHECK(c.stored_bytes == 720 * 8);
  CHECK(c.loaded_bytes == 0);
  CHECK(c.steps == 720);
}

KVSIM_KERNEL copy_with_stride(Span<const float> in, Span<float> out, std::int64_t stride) {
  const std::int64_t i = threadIdx.x * stride;
  kv::store(out, threadIdx.x, kv::load(in, i));
}

TEST_CASE(
    "sectors: a warp's contiguous 128 bytes use 4 sectors and strided accesses one per lane") {
  const auto in = ramp(32 * 64);
  // 32 adjacent floats are 4 sectors of 32 bytes. With a stride of 2 they touch 8 sectors, with a
  // stride of 8 one sector each; beyond that the number stays 32.
  for (const auto& [stride, sectors] :
       {std::pair<std::int64_t, std::int64_t>{1, 4}, {2, 8}, {8, 32}, {64, 32}, {0, 1}}) {
    Device device;
    Buffer<float> from{device, "in", in};
    Buffer<float> to{device, "out", 32};
    launch({&device}, "copy", {1}, {32}, 0, copy_with_stride, span_of(std::as_const(from)),
           span_of(to), stride);
    INFO("stride ", stride);
    CHECK(device.counters().load_sectors == sectors);
    CHECK(device.counters().store_sectors == 4);
    CHECK(device.counters().loaded_bytes == 128);
  }
}

KVSIM_KERNEL loop_of_loads(Span<const float> in, Span<float> out, int n) {
  float sum = 0;
  // Lanes leave the loop at different times.
  for (int k = 0; k < n + static_cast<int>(threadIdx.x % 2); ++k) {
    sum += kv::load(in, k * 32 + static_cast<int>(threadIdx.x));
  }
  kv::store(out, threadIdx.x, sum);
}

TEST_CASE("sectors in a loop: the k-th execution of a line is one access of the warp") {
  Device device;
  const auto values = ramp(32 * 11);
  Buffer<float> in{device, "in", values};
  Buffer<float> out{device, "out", 32};
  launch({&device}, "loop", {1}, {32}, 0, loop_of_loads, span_of(std::as_const(in)), span_of(out),
         10);
  // Ten whole rows of 4 sectors, and one read only by odd lanes: still 4.
  CHECK(device.counters().load_sectors == 44);
  CHECK(device.counters().loaded_bytes == 4 * (320 + 16));
}

KVSIM_KERNEL vector_copy(Span<const kv::Half> in, Span<kv::Half> out) {
  kv::store16(out, threadIdx.x * 8, kv::load16(in, threadIdx.x * 8));
  kv::flops(3);
}

TEST_CASE("16-byte accesses count 16 bytes and one step") {
  Device device;
  std::vector<kv::Half> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  Buffer<kv::Half> in{device, "in", values};
  Buffer<kv::Half> out{device, "out", 256};
  launch({&device}, "vector", {1}, {32}, 0, vector_copy, span_of(std::as_const(in)), span_of(out));
  CHECK(device.counters().loaded_bytes == 512);
  CHECK(device.counters().load_sectors == 16);
  CHECK(device.counters().steps == 64);
  CHECK(device.counters().flops == 96);
  const auto copied = out.download();
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(copied[i].bits == values[i].bits);
}

// --- warps ---------------------------------------------------------------------------------------

KVSIM_KERNEL shuffles(Span<std::int32_t> out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int value = 100 + lane;
  kv::store(out, threadIdx.x, __shfl_sync(kAll, value, lane + 5, 16));
  kv::store(out, 32 + threadIdx.x, __shfl_up_sync(kAll, value, 3));
  kv::store(out, 64 + threadIdx.x, __shfl_down_sync(kAll, value, 3, 8));
  kv::store(out, 96 + threadIdx.x, __shfl_xor_sync(kAll, value, 6));
  kv::store(out, 128 + threadIdx.x, __reduce_add_sync(kAll, lane));
  kv::store(out, 160 + threadIdx.x, __reduce_min_sync(kAll, 5 - lane));
  kv::store(out, 192 + threadIdx.x, static_cast<std::int32_t>(__ballot_sync(kAll, lane % 3 == 0)));
  kv::store(out, 224 + threadIdx.x, __any_sync(kAll, lane == 7) ? 1 : 0);
  kv::store(out, 256 + threadIdx.x, __all_sync(kAll, lane != 7) ? 1 : 0);
  kv::store(out, 288 + threadIdx.x,
            static_cast<std::int32_t>(__reduce_max_sync(kAll, 7U * threadIdx.x)));
}

TEST_CASE("shuffles, votes and reductions follow CUDA's definition") {
  Device device;
  Buffer<std::int32_t> out{device, "out", 320};
  launch({&device}, "shuffles", {1}, {32}, 0, shuffles, span_of(out));
  const auto v = out.download();
  std::int32_t ballot = 0;
  for (int lane = 0; lane < 32; lane += 3) ballot |= static_cast<std::int32_t>(1U << lane);
  for (int lane = 0; lane < 32; ++lane) {
    const auto at = [&](int row) { return v[static_cast<std::size_t>(row * 32 + lane)]; };
    INFO("lane ", lane);
    CHECK(at(0) == 100 + lane / 16 * 16 + (lane + 5) % 16);
    CHECK(at(1) == 100 + (lane >= 3 ? lane - 3 : lane));
    CHECK(at(2) == 100 + (lane % 8 + 3 < 8 ? lane + 3 : lane));
    CHECK(at(3) == 100 + (lane ^ 6));
    CHECK(at(4) == 496);  // 0 + … + 31
    CHECK(at(5) == -26);
    CHECK(at(6) == ballot);
    CHECK(at(7) == 1);
    CHECK(at(8) == 0);
    CHECK(at(9) == 217);
  }
  CHECK(device.counters().warp_ops == 10);
}

KVSIM_KERNEL halves_apart(Span<std::int32_t> out) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = 0;
  if (lane < 16) {
    for (int k = 0; k < 3; ++k) sum += __reduce_add_sync(0x0000FFFFU, lane);
  } else {
    sum = __reduce_add_sync(0xFFFF0000U, lane);
  }
  kv::store(out, lane, sum + __reduce_add_sync(kAll, 1));
}

TEST_CASE("parts of a warp may diverge, each within its mask, and converge again") {
  Device device;
  Buffer<std::int32_t> out{device, "out", 32};
  launch({&device}, "halves", {1}, {32}, 0, halves_apart, span_of(out));
  const auto v = out.download();
  CHECK(v[0] == 3 * 120 + 32);  // 0 + … + 15 = 120
  CHECK(v[31] == 376 + 32);     // 16 + … + 31 = 376
}

// --- shared memory, barriers, atomics ------------------------------------------------------------

struct Reverse {
  SharedArray<float, 257> values;
};

KVSIM_KERNEL reverse(Span<const float> in, Span<float> out) {
  auto& tile = kv::shared<Reverse>();
  const auto n = static_cast<std::int64_t>(blockDim.x);
  const std::int64_t base = blockIdx.x * n;
  kv::store(tile.values, threadIdx.x, kv::load(in, base + threadIdx.x));
  __syncthreads();
  kv::store(out, base + threadIdx.x, kv::load(tile.values, n - 1 - threadIdx.x));
}

TEST_CASE("shared memory and a barrier at any block size, block after block") {
  for (const std::uint32_t n : {1U, 31U, 32U, 33U, 257U}) {
    Device device;
    const auto values = ramp(3 * n);
    Buffer<float> in{device, "in", values};
    Buffer<float> out{device, "out", 3 * n};
    launch({&device}, "reverse", {3}, {n}, 0, reverse, span_of(std::as_const(in)), span_of(out));
    const auto v = out.download();
    INFO("block of ", n);
    for (std::size_t i = 0; i < v.size(); ++i) {
      CHECK(v[i] == values[i / n * n + (n - 1 - i % n)]);
    }
    CHECK(device.counters().barriers == 3);
    CHECK(device.counters().shared_loaded_bytes == 3 * n * 4);
    CHECK(device.counters().shared_stored_bytes == 3 * n * 4);
    CHECK(device.counters().shared_bytes == 1040);  // 257 floats, padded to 16 bytes
  }
}

KVSIM_KERNEL dynamic_rotate(Span<std::uint16_t> out) {
  auto tile = kv::dynamic_shared<std::uint16_t>();
  kv::store(tile, threadIdx.x, static_cast<std::uint16_t>(threadIdx.x));
  __syncthreads();
  kv::store(out, threadIdx.x, kv::load(tile, (threadIdx.x + 1) % blockDim.x));
}

TEST_CASE("dynamic shared memory: accesses to adjacent two-byte elements are not a race") {
  Device device;
  Buffer<std::uint16_t> out{device, "out", 64};
  launch({&device}, "rotate", {2}, {64}, 128, dynamic_rotate, span_of(out));
  const auto v = out.download();
  for (std::size_t i = 0; i < 64; ++i) CHECK(v[i] == (i + 1) % 64);
}

KVSIM_KERNEL histogram(Span<const std::uint32_t> in, Span<std::uint32_t> bins, Span<float> sum,
                       Span<std::uint32_t> extremes) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= in.size) return;
  const std::uint32_t x = kv::load(in, i);
  kv::atomic_add(bins, x % 8, 1U);
  kv::atomic_add(sum, 0, 0.5F);
  kv::atomic_min(extremes, 0, x);
  kv::atomic_max(extremes, 1, x);
  kv::atomic_cas(extremes, 2, 77U, x);
  kv::atomic_exchange(extremes, 3, x);
}

TEST_CASE("atomics: sums, extremes, exchange, and no race between atomics") {
  Device device;
  std::vector<std::uint32_t> values(257);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint32_t>(i * 7 % 257 + 3);
  }
  Buffer<std::uint32_t> in{device, "in", values};
  Buffer<std::uint32_t> bins{device, "bins", std::vector<std::uint32_t>(8, 0)};
  Buffer<float> sum{device, "sum", std::vector<float>(1, 0)};
  Buffer<std::uint32_t> extremes{device, "extremes", std::vector<std::uint32_t>{999, 0, 77, 5}};
  launch({&device}, "histogram", {3}, {96}, 0, histogram, span_of(std::as_const(in)), span_of(bins),
         span_of(sum), span_of(extremes));
  std::vector<std::uint32_t> expected(8, 0);
  for (const std::uint32_t x : values) ++expected[x % 8];
  CHECK(bins.download() == expected);
  CHECK(sum.download().front() == 128.5F);
  const auto e = extremes.download();
  CHECK(e[0] == 3);
  CHECK(e[1] == 259);
  CHECK(e[2] == values[0]);    // the first thread in order finds 77, no other does
  CHECK(e[3] == values[256]);  // the last thread in order
  CHECK(device.counters().atomics == 6 * 257);
  CHECK(device.counters().loaded_bytes == 4 * 257);
}

struct PerWarp {
  SharedArray<std::int32_t, 64> values;
};

KVSIM_KERNEL warps_exchange(Span<std::int32_t> out) {
  auto& tile = kv::shared<PerWarp>();
  const int t = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    kv::store(tile.values, t, t + round);
    __syncwarp();
    // The thread stores its own element first. This must not make its write newer than the
    // __syncwarp.
    const int other = kv::load(tile.values, t) - t - round + kv::load(tile.values, t ^ 1);
    __syncwarp();
    if (round == 2) kv::store(out, t, other);
  }
}

TEST_CASE("__syncwarp orders a warp's shared accesses") {
  Device device;
  Buffer<std::int32_t> out{device, "out", 64};
  launch({&device}, "warps", {1}, {64}, 0, warps_exchange, span_of(out));
  const auto v = out.download();
  for (int t = 0; t < 64; ++t) CHECK(v[static_cast<std::size_t>(t)] == (t ^ 1) + 2);
}

// --- types ---------------------------------------------------------------------------------------

TEST_CASE("half and bfloat16 convert like models/math for every pattern in both directions") {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float h = kv::to_float(kv::Half{pattern});
    const float b = kv::to_float(kv::BFloat16{pattern});
    if (std::isnan(h)) {
      CHECK(std::isnan(kv::to_float(kv::from_float<kv::Half>(h))));
    } else if (kv::from_float<kv::Half>(h).bits != pattern) {
      FAIL_CHECK("half ", bits);
    }
    if (!std::isnan(b) && kv::from_float<kv::BFloat16>(b).bits != pattern) {
      FAIL_CHECK("bfloat16 ", bits);
    }
  }
  CHECK(kv::from_float<kv::Half>(1.0F + 0x1p-11F).bits == 0x3C00);  // ties to even: down
  CHECK(kv::from_float<kv::Half>(1.0F + 0x3p-11F).bits == 0x3C02);  // and up
  CHECK(kv::from_float<kv::BFloat16>(1.0F + 0x1p-8F).bits == 0x3F80);
}

// --- determinism ---------------------------------------------------------------------------------

KVSIM_KERNEL mixed(Span<const float> in, Span<float> out) {
  auto& tile = kv::shared<Reverse>();
  float x = kv::load(in, threadIdx.x);
  kv::store(tile.values, threadIdx.x, x);
  __syncthreads();
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  x += kv::load(tile.values, (threadIdx.x * 7) % blockDim.x);
  kv::atomic_add(out, 0, x * 1e-3F);
}

TEST_CASE("repeated runs give the same counts and bits, on new memory and after a fault") {
  const auto run = [](Device& device, int padding) {
    std::vector<float> values(256);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0F / static_cast<float>(i + 3);
    }
    const Buffer<char> elsewhere{device, "padding", padding};
    Buffer<float> in{device, "in", values};
    Buffer<float> out{device, "out", std::vector<float>(1, 0)};
    const Counters before = device.counters();
    launch({&device}, "mixed", {5}, {256}, 0, mixed, span_of(std::as_const(in)), span_of(out));
    return std::pair{difference(device.counters(), before), out.download()};
  };
  Device one;
  const auto first = run(one, 0);
  CHECK(first.first.steps == 5 * 256 * 10);  // load, store, barrier, five shuffles, load, atomic
  CHECK(run(one, 100'000).first == first.first);
  CHECK(run(one, 3).second == first.second);
  Buffer<float> small{one, "small", std::vector<float>(3, 0)};
  CHECK_THROWS_AS(
      launch({&one}, "mixed", {1}, {256}, 0, mixed, span_of(std::as_const(small)), span_of(small)),
      cuda_sim::KernelFault);
  CHECK(run(one, 7).second == first.second);
  CHECK(run(one, 7).first == first.first);
  Device two;
  CHECK(run(two, 5000) == first);
  // Separate devices run in parallel.
  std::array<std::pair<Counters, std::vector<float>>, 3> results;
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back([&result, &run] {
        Device mine;
        for (int i = 0; i < 20; ++i) result = run(mine, 64);
      });
    }
  }
  for (const auto& result : results) CHECK(result == first);
}

TEST_CASE("a launch beyond the limits of every device is refused") {
  Device device;
  Buffer<std::int64_t> out{device, "out", 1};
  for (const auto& [grid, block, shared] : {std::tuple<Dim3, Dim3, std::int64_t>{{1}, {1025}, 0},
                                            {{1}, {0}, 0},
                                            {{1}, {1, 1, 65}, 0},
                                            {{1, 65536}, {1}, 0},
                                            {{0}, {1}, 0},
                                            {{1}, {1}, 300'000}}) {
    CHECK_THROWS_AS(launch({&device}, "x", grid, block, shared, write_linear_index, span_of(out)),
                    cuda_sim::KernelFault);
  }
}

}  // namespace
}  // namespace kvsim::on_sim
