// Prints the time of an allocation and a release of the caching allocator on this machine. Not a
// test.

#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "sim/memory/caching_allocator.hpp"

namespace {

using namespace kvsim;  // NOLINT

/// Decode steps of a model of 32 layers whose cache grows by concatenation: 12 activations and two
/// longer copies per layer.
double nanos_per_operation(const AllocatorConfig& config) {
  CachingAllocator allocator{{.total = 80_GiB}, config};
  const auto owner = allocator.owner("x");
  std::vector<CachingAllocator::BlockId> caches;
  for (int i = 0; i < 64; ++i) caches.push_back(allocator.malloc(16_MiB, owner).value());
  constexpr int kSteps = 2000;
  std::int64_t operations = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) {
    for (std::size_t layer = 0; layer < 32; ++layer) {
      std::vector<CachingAllocator::BlockId> activations;
      for (int i = 0; i < 12; ++i) {
        activations.push_back(allocator.malloc(Bytes{8192 + 1024 * i}, owner).value());
      }
      for (const std::size_t part : {2 * layer, 2 * layer + 1}) {
        const auto next = allocator.malloc(16_MiB + Bytes{8192 * step}, owner).value();
        allocator.free(caches[part]);
        caches[part] = next;
      }
      for (const auto id : activations) allocator.free(id);
      operations += 28;
    }
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(operations);
}

}  // namespace

int main() {
  fmt::print("plain      {:5.0f} ns an operation\n", nanos_per_operation({}));
  fmt::print("expandable {:5.0f} ns an operation\n",
             nanos_per_operation({.expandable_segments = true}));
  return 0;
}
