// Planted bugs, one per kernel: the simulator finds each and names the lines of both accesses.

#include <string>
#include <vector>

#include "kernels/cuda_sim/kernel.hpp"
#include "tests/support/check.hpp"

namespace kvsim::on_sim {
namespace {

using cuda_sim::Buffer;
using cuda_sim::Device;
using cuda_sim::FaultKind;
using cuda_sim::KernelFault;

constexpr std::uint32_t kAll = 0xFFFFFFFFU;

/// A line of this file in the format of messages.
std::string at(int line) { return fmt::format("test_cuda_sim_faults.cpp:{}", line); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns the fault that `run` throws; fails the test if it does not throw.
template <class Run>
KernelFault fault_of(Run run) {
  try {
    run();
  } catch (const KernelFault& fault) {
    return fault;
  }
  FAIL("no fault was found");
  return KernelFault{FaultKind::kLaunch, ""};
}

struct Tile {
  SharedArray<float, 64> values;
};

constexpr int kStoreLine = __LINE__ + 4;
template <bool kBarrier>
void neighbour(Span<float> out) {
  auto& tile = kv::shared<Tile>();
  kv::store(tile.values, threadIdx.x, 1.0F);
  if (kBarrier) __syncthreads();
  kv::store(out, threadIdx.x, kv::load(tile.values, threadIdx.x ^ 1U));
}
constexpr int kLoadLine = __LINE__ - 2;

TEST_CASE("a missing barrier is a race with both lines named") {
  Device device;
  Buffer<float> out{device, "out", 64};
  CHECK_NOTHROW(launch({&device}, "good", {1}, {64}, 0, neighbour<true>, span_of(out)));
  // Thread 0 reads the slot of thread 1, which has not run yet: that is unwritten memory. If the
  // slots were written before, it is reported as a race, as it is on a device.
  const auto first =
      fault_of([&] { launch({&device}, "bad", {1}, {64}, 0, neighbour<false>, span_of(out)); });
  CHECK(first.kind() == FaultKind::kUninitialised);
  CHECK(contains(first.what(), at(kLoadLine)));
}

constexpr int kWriteLine = __LINE__ + 4;
KVSIM_KERNEL neighbour_again(Span<float> out) {
  auto& tile = kv::shared<Tile>();
  for (int round = 0; round < 2; ++round) {
    kv::store(tile.values, threadIdx.x, 1.0F);
    __syncthreads();
    kv::store(out, threadIdx.x, kv::load(tile.values, threadIdx.x ^ 1U));
  }
}
constexpr int kReadLine = __LINE__ - 3;

TEST_CASE("a tile overwritten while other threads read it: kernel, block, threads, lines") {
  Device device;
  Buffer<float> out{device, "out", 64};
  const auto fault =
      fault_of([&] { launch({&device}, "again", {3}, {64}, 0, neighbour_again, span_of(out)); });
  CHECK(fault.kind() == FaultKind::kRace);
  const std::string what = fault.what();
  INFO(what);
  CHECK(contains(what, "kernel \"again\", block (0,0,0)"));
  CHECK(contains(what, "thread (0,0,0)"));
  CHECK(contains(what, "thread (1,0,0)"));
  CHECK(contains(what, at(kWriteLine)));
  CHECK(contains(what, at(kReadLine)));
  CHECK(contains(what, "no barrier between"));
  CHECK(kStoreLine > 0);
}

KVSIM_KERNEL all_write(Span<float> out) { kv::store(out, 5, 1.0F); }
KVSIM_KERNEL atomic_and_plain(Span<float> out) {
  kv::atomic_add(out, 0, 1.0F);
  if (threadIdx.x == 40) kv::load(out, 0);
}
KVSIM_KERNEL read_then_write(Span<float> out) {
  kv::load(out, 0);
  if (threadIdx.x == 63) kv::store(out, 0, 1.0F);
}
KVSIM_KERNEL vector_over_scalar(Span<float> out) {
  if (threadIdx.x == 1) kv::store(out, 3, 2.0F);
  if (threadIdx.x == 2) kv::store16(out, 0, kv::Vec16<float>{});
}
KVSIM_KERNEL syncwarp_is_not_enough(Span<float> out) {
  kv::store(out, threadIdx.x, 1.0F);
  __syncwarp();
  kv::load(out, (threadIdx.x + 32) % 64);
}
KVSIM_KERNEL shuffle_orders_nothing(Span<float> out) {
  kv::store(out, threadIdx.x, 1.0F);
  __shfl_xor_sync(kAll, 1, 1);
  kv::load(out, threadIdx.x ^ 1U);
}

TEST_CASE("races of global memory of every kind") {
  for (const auto kernel : {all_write, atomic_and_plain, read_then_write, vector_over_scalar,
                            syncwarp_is_not_enough, shuffle_orders_nothing}) {
    Device device;
    Buffer<float> out{device, "out", std::vector<float>(64, 0)};
    const auto fault =
        fault_of([&] { launch({&device}, "race", {1}, {64}, 0, kernel, span_of(out)); });
    INFO(fault.what());
    CHECK(fault.kind() == FaultKind::kRace);
    CHECK(contains(fault.what(), "\"out\" at byte "));
  }
}

KVSIM_KERNEL no_races(Span<float> out, Span<float> other) {
  kv::load(out, 0);  // all threads read one element
  kv::store(other, threadIdx.x, kv::load(out, 1 + threadIdx.x));
  __syncthreads();
  kv::store(out, 0 + threadIdx.x, 1.0F);
  kv::load(out, threadIdx.x);  // its own element
  kv::store(out, threadIdx.x, 2.0F);
  __syncthreads();
  kv::load(out, threadIdx.x ^ 33U);
}

TEST_CASE("accesses that are not races are not reported") {
  Device device;
  Buffer<float> out{device, "out", std::vector<float>(65, 0)};
  Buffer<float> other{device, "other", 64};
  CHECK_NOTHROW(launch({&device}, "fine", {4}, {64}, 0, no_races, span_of(out), span_of(other)));
}

KVSIM_KERNEL off_by_one(Span<const float> in, Span<float> out) {
  if (threadIdx.x <= out.size) kv::store(out, threadIdx.x, kv::load(in, threadIdx.x));
}
constexpr int kOffLine = __LINE__ - 2;

TEST_CASE("off by one is out of bounds: element, size, thread and line") {
  Device device;
  Buffer<float> in{device, "in", std::vector<float>(64, 1)};
  Buffer<float> out{device, "out", 31};
  const auto fault = fault_of([&] {
    launch({&device}, "off", {1}, {64}, 0, off_by_one, span_of(std::as_const(in)), span_of(out));
  });
  CHECK(fault.kind() == FaultKind::kOutOfBounds);
  INFO(fault.what());
  CHECK(contains(fault.what(), "element 31 of \"out\", which has 31"));
  CHECK(contains(fault.what(), "thread (31,0,0)"));
  CHECK(contains(fault.what(), at(kOffLine)));
}

KVSIM_KERNEL shared_bounds(Span<float> out) {
  auto& tile = kv::shared<Tile>();
  kv::store(tile.values, threadIdx.x + 1, 1.0F);
  kv::store(out, threadIdx.x, 0.0F);
}
KVSIM_KERNEL vector_past_the_end(Span<float> out) { kv::store16(out, 60 + 4 * threadIdx.x, {}); }
KVSIM_KERNEL before_the_start(Span<float> out) {
  kv::store(out, static_cast<std::int64_t>(threadIdx.x) - 1, 0.0F);
}

TEST_CASE("bounds of shared memory, of vectors, and below zero") {
  for (const auto kernel : {shared_bounds, vector_past_the_end, before_the_start}) {
    Device device;
    Buffer<float> out{device, "out", 64};
    const auto fault =
        fault_of([&] { launch({&device}, "x", {1}, {64}, 0, kernel, span_of(out)); });
    INFO(fault.what());
    CHECK(fault.kind() == FaultKind::kOutOfBounds);
  }
}

KVSIM_KERNEL misaligned(Span<float> out) { kv::store16(out, 4 * threadIdx.x + 1, {}); }

TEST_CASE("a vector access that is not aligned") {
  Device device;
  Buffer<float> out{device, "out", 64};
  const auto fault =
      fault_of([&] { launch({&device}, "x", {1}, {2}, 0, misaligned, span_of(out)); });
  CHECK(fault.kind() == FaultKind::kMisaligned);
  CHECK(contains(fault.what(), "not aligned to 16"));
}

KVSIM_KERNEL skips_one(Span<float> out) {
  if (threadIdx.x != 17) kv::store(out, threadIdx.x, 1.0F);
}
KVSIM_KERNEL sums_all(Span<const float> in, Span<float> out) {
  float sum = 0;
  for (std::int64_t i = 0; i < in.size; ++i) sum += kv::load(in, i);
  kv::store(out, 0, sum);
}

TEST_CASE("an unwritten output: found by the host and by a kernel that reads it") {
  Device device;
  Buffer<float> middle{device, "middle", 64};
  Buffer<float> out{device, "out", 1};
  launch({&device}, "skips", {1}, {64}, 0, skips_one, span_of(middle));
  const auto host = fault_of([&] { (void)middle.download(); });
  CHECK(host.kind() == FaultKind::kUninitialised);
  CHECK(contains(host.what(), "\"middle\" at byte 68 of 256"));
  CHECK_NOTHROW((void)middle.download(0, 17));
  const auto fault = fault_of([&] {
    launch({&device}, "sums", {1}, {1}, 0, sums_all, span_of(std::as_const(middle)), span_of(out));
  });
  CHECK(fault.kind() == FaultKind::kUninitialised);
  CHECK(contains(fault.what(), "\"middle\" at byte 68"));
  middle.poison();
  CHECK_THROWS_AS((void)middle.download(0, 17), KernelFault);
}

struct Once {
  SharedArray<float, 32> values;
};
KVSIM_KERNEL block_zero_writes(Span<float> out) {
  auto& tile = kv::shared<Once>();
  if (blockIdx.x == 0) kv::store(tile.values, threadIdx.x, 1.0F);
  __syncthreads();
  kv::store(out, threadIdx.x, kv::load(tile.values, threadIdx.x));
}

TEST_CASE("shared memory starts unwritten in every block") {
  Device device;
  Buffer<float> out{device, "out", 32};
  const auto fault =
      fault_of([&] { launch({&device}, "x", {2}, {32}, 0, block_zero_writes, span_of(out)); });
  CHECK(fault.kind() == FaultKind::kUninitialised);
  CHECK(contains(fault.what(), "block (1,0,0)"));
}

KVSIM_KERNEL leaves_early(Span<float> out) {
  kv::store(out, threadIdx.x, 1.0F);
  if (threadIdx.x == 50) return;
  __syncthreads();
}
constexpr int kLeftLine = __LINE__ - 4;
constexpr int kBarrierLine = __LINE__ - 3;

KVSIM_KERNEL two_barriers(Span<float> out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  kv::store(out, threadIdx.x, 1.0F);
}

TEST_CASE("a barrier that one thread never reaches: where the others wait and where it exited") {
  Device device;
  Buffer<float> out{device, "out", 64};
  const auto fault =
      fault_of([&] { launch({&device}, "early", {1}, {64}, 0, leaves_early, span_of(out)); });
  CHECK(fault.kind() == FaultKind::kBarrier);
  INFO(fault.what());
  CHECK(contains(fault.what(), "thread (0,0,0) waits at the barrier of " + at(kBarrierLine)));
  CHECK(contains(fault.what(), "thread (50,0,0) left the kernel, last seen at " + at(kLeftLine)));
  const auto apart =
      fault_of([&] { launch({&device}, "apart", {1}, {64}, 0, two_barriers, span_of(out)); });
  CHECK(apart.kind() == FaultKind::kBarrier);
  CHECK(contains(apart.what(), "thread (32,0,0) waits at the barrier of"));
}

KVSIM_KERNEL half_a_warp(Span<float> out) {
  if (threadIdx.x < 16) __shfl_xor_sync(kAll, 1, 1);
  kv::store(out, threadIdx.x, 1.0F);
}
constexpr int kShuffleLine = __LINE__ - 3;
constexpr int kAfterLine = __LINE__ - 3;
KVSIM_KERNEL some_at_a_barrier(Span<float> out) {
  if (threadIdx.x % 2 == 0) __shfl_xor_sync(kAll, 1, 2);
  __syncthreads();
  kv::store(out, threadIdx.x, 1.0F);
}
KVSIM_KERNEL reads_a_lane_outside(Span<float> out) {
  if (threadIdx.x % 32 < 8) __shfl_sync(0xFFU, 1, 9);
  kv::store(out, threadIdx.x, 1.0F);
}
KVSIM_KERNEL not_in_its_own_mask(Span<float> out) {
  __shfl_sync(0xFFU, 1, 0);
  kv::store(out, threadIdx.x, 1.0F);
}

TEST_CASE("divergent shuffles: the calling lane and what the missing lane does instead") {
  for (const auto kernel :
       {half_a_warp, some_at_a_barrier, reads_a_lane_outside, not_in_its_own_mask}) {
    Device device;
    Buffer<float> out{device, "out", 64};
    const auto fault =
        fault_of([&] { launch({&device}, "warp", {1}, {64}, 0, kernel, span_of(out)); });
    INFO(fault.what());
    CHECK(fault.kind() == FaultKind::kDivergentWarp);
  }
  Device device;
  Buffer<float> out{device, "out", 64};
  const auto fault =
      fault_of([&] { launch({&device}, "half", {1}, {64}, 0, half_a_warp, span_of(out)); });
  INFO(fault.what());
  CHECK(contains(fault.what(), "thread (0,0,0) waits at " + at(kShuffleLine)));
  CHECK(contains(fault.what(),
                 "lane 16, thread (16,0,0), left the kernel, last seen at " + at(kAfterLine)));
  // A block of 48 threads has half a second warp.
  const auto short_warp = fault_of(
      [&] { launch({&device}, "short", {1}, {48}, 0, shuffle_orders_nothing, span_of(out)); });
  INFO(short_warp.what());
  CHECK(short_warp.kind() != FaultKind::kLaunch);
}

KVSIM_KERNEL throws_itself(Span<float> out) {
  __syncthreads();
  if (threadIdx.x == 3) throw 42;
  kv::store(out, threadIdx.x, 1.0F);
}

TEST_CASE("an exception in a kernel propagates from the launch and the device stays usable") {
  Device device;
  Buffer<float> out{device, "out", 64};
  for (int i = 0; i < 3; ++i) {
    CHECK_THROWS_AS(launch({&device}, "x", {1}, {64}, 0, throws_itself, span_of(out)), int);
    CHECK_NOTHROW(launch({&device}, "good", {1}, {64}, 0, neighbour<true>, span_of(out)));
  }
}

}  // namespace
}  // namespace kvsim::on_sim
