#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/suite/bench/timing.hpp"
#include "kernels/suite/decode_loop.hpp"
#include "kernels/suite/loop_measure.hpp"

#define KVSIM_MEASURE(call) on_gpu::check_cuda((call), #call, __FILE__, __LINE__)

namespace kvsim::kernels {
namespace {

using Loop = on_gpu::DecodeLoop<on_gpu::kv::BFloat16>;

struct DeviceMemory {
  std::size_t free = 0, total = 0;
  DeviceMemory() { KVSIM_MEASURE(cudaMemGetInfo(&free, &total)); }
  [[nodiscard]] Bytes used() const { return Bytes{static_cast<std::int64_t>(total - free)}; }
};

/// Whether a loop for sequences of `tokens` tokens can be created and completes its last step.
bool fits(const LoopSpec& base, std::int64_t tokens) {
  LoopSpec spec = base;
  spec.prompt = tokens - 1;
  spec.steps = 1;
  try {
    on_gpu::Machine machine;
    Loop loop{machine, spec};
    loop.step();
    KVSIM_MEASURE(cudaDeviceSynchronize());
    return true;
  } catch (const std::runtime_error& error) {
    if (std::string_view{error.what()}.find("cudaErrorMemoryAllocation") ==
        std::string_view::npos) {
      throw;
    }
    (void)cudaGetLastError();
    return false;
  }
}

void find_longest(const LoopSpec& spec, LoopMeasurement& out) {
  const auto tried = [&](std::int64_t tokens) {
    ++out.tries;
    return fits(spec, tokens);
  };
  std::int64_t max = kLongestStep;
  if (!tried(max)) {
    out.longest = 0;
    return;
  }
  while (max < kMaxLongest && tried(2 * max)) max *= 2;
  if (max >= kMaxLongest) return;
  for (std::int64_t step = max / 2; step >= kLongestStep; step /= 2) {
    if (tried(max + step)) max += step;
  }
  out.longest = max;
}

}  // namespace

LoopMeasurement measure_loop(const LoopSpec& spec, std::int64_t rounds, bool longest) {
  KVSIM_MEASURE(cudaSetDevice(0));
  LoopMeasurement out;
  {
    const DeviceMemory before;  // creates the context
    out.used_before = before.used();
    out.total = Bytes{static_cast<std::int64_t>(before.total)};
    on_gpu::Machine machine;
    Loop loop{machine, spec};
    loop.rewind();
    for (std::int64_t i = 0; i < spec.steps; ++i) loop.step();
    KVSIM_MEASURE(cudaDeviceSynchronize());
    out.launches_per_step = static_cast<double>(loop.launches()) / static_cast<double>(spec.steps);
    out.used = DeviceMemory{}.used();

    std::vector<double> us;
    for (std::int64_t round = 0; round < rounds; ++round) {
      loop.rewind();
      std::vector<std::unique_ptr<on_gpu::Event>> marks;
      for (std::int64_t i = 0; i <= spec.steps; ++i) {
        marks.push_back(std::make_unique<on_gpu::Event>());
      }
      marks.front()->record();
      for (std::int64_t i = 0; i < spec.steps; ++i) {
        loop.step();
        marks[static_cast<std::size_t>(i + 1)]->record();
      }
      KVSIM_MEASURE(cudaDeviceSynchronize());
      for (std::size_t i = 1; i < marks.size(); ++i)
        us.push_back(marks[i]->us_since(*marks[i - 1]));
    }
    out.used = std::max(out.used, DeviceMemory{}.used());
    std::sort(us.begin(), us.end());
    out.samples = static_cast<std::int32_t>(us.size());
    out.step_us = us[us.size() / 2];
    out.spread = (us[3 * us.size() / 4] - us[us.size() / 4]) / 2 / out.step_us;
  }
  if (longest && spec.method == LoopMethod::kFull) find_longest(spec, out);
  return out;
}

}  // namespace kvsim::kernels
