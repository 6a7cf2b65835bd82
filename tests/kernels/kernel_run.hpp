#pragma once

// Shared by the tests of kernels: inputs drawn by counter, rounding to storage types, error norms
// by dtype, and comparison of counts with formulas.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"
#include "models/math/counter_random.hpp"
#include "tests/support/check.hpp"

namespace kvsim::test {

using cuda_sim::Buffer;
using cuda_sim::Counters;
using cuda_sim::Device;
using on_sim::Span;

/// Uniform in (low, high).
inline std::vector<float> draw(std::uint64_t seed, std::int64_t n, double low = -1,
                               double high = 1) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(low + (high - low) * counter_uniform(seed, i));
  }
  return values;
}

template <class T>
std::vector<T> stored(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float x : values) result.push_back(on_sim::kv::from_float<T>(x));
  return result;
}
template <class T>
std::vector<float> read_back(const std::vector<T>& values) {
  std::vector<float> result;
  for (const T x : values) result.push_back(on_sim::kv::to_float(x));
  return result;
}

/// Half an ulp of T relative to 1, plus the rounding of fp32 sums.
template <class T>
constexpr double kRounding = std::is_same_v<T, float>              ? 0x1p-24
                             : std::is_same_v<T, on_sim::kv::Half> ? 0x1p-11
                                                                   : 0x1p-8;

/// max |a - b| / max |b|
template <class A>
double max_error(const std::vector<A>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double error = 0;
  double size = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(static_cast<double>(a[i])));
    error = std::max(error, std::abs(static_cast<double>(a[i]) - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  return error / size;
}

inline void check_traffic(const Counters& counted, const kernels::KernelTraffic& formula) {
  CHECK(counted.loaded_bytes == formula.loaded.count());
  CHECK(counted.stored_bytes == formula.stored.count());
  CHECK(counted.atomics == formula.atomics);
  CHECK(counted.launches == formula.launches);
}

template <class T>
Span<const T> in(const Buffer<T>& buffer) {
  return on_sim::span_of(buffer);
}
template <class T>
Span<T> out(Buffer<T>& buffer) {
  return on_sim::span_of(buffer);
}

}  // namespace kvsim::test
