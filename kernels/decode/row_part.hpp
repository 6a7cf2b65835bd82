#pragma once

// Rows of up to 32 times 16 bytes, with one warp per row and 16 bytes per lane. Wider rows are
// handled in pieces of that size.

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {

KVSIM_DEVICE std::int64_t grid_warp() { return grid_thread() / 32; }

/// A lane's 16 bytes of a row, or of its piece that starts at element `skip`; lanes beyond the
/// row's end hold zeros.
template <class T>
struct Part {
  static constexpr int kPer = kv::Vec16<T>::kSize;
  float x[std::size_t{kPer}];

  KVSIM_DEVICE static std::int64_t mine(std::int64_t skip) {
    return skip + static_cast<std::int64_t>(threadIdx.x % 32) * kPer;
  }
  template <class From>
  KVSIM_DEVICE void load(From from, std::int64_t row, std::int64_t head_dim,
                         std::int64_t skip = 0) {
    for (int j = 0; j < kPer; ++j) x[j] = 0;
    if (mine(skip) >= head_dim) return;
    const auto raw = kv::load16(from, row * head_dim + mine(skip));
    for (int j = 0; j < kPer; ++j) x[j] = kv::to_float(raw.v[j]);
  }
  KVSIM_DEVICE void store(Span<T> to, std::int64_t row, std::int64_t head_dim,
                          std::int64_t skip = 0) const {
    if (mine(skip) >= head_dim) return;
    kv::Vec16<T> raw;
    for (int j = 0; j < kPer; ++j) raw.v[j] = kv::from_float<T>(x[j]);
    kv::store16(to, row * head_dim + mine(skip), raw);
  }
  /// Returns the dot product of the whole rows in every lane.
  KVSIM_DEVICE float dot(const Part& other) const {
    float sum = 0;
    for (int j = 0; j < kPer; ++j) sum += x[j] * other.x[j];
    return warp_sum(sum);
  }
  /// a x + b other
  KVSIM_DEVICE void mix(float a, float b, const Part& other) {
    for (int j = 0; j < kPer; ++j) x[j] = a * x[j] + b * other.x[j];
  }
};

/// Errors: ContractError unless a row is a multiple of 16 bytes, with at most 16 bytes per lane.
template <class T>
void check_rows(std::int64_t rows, std::int64_t head_dim) {
  KVSIM_LAUNCH_CHECK(rows >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(
      head_dim >= 1 && head_dim % kv::Vec16<T>::kSize == 0 && head_dim <= 32 * kv::Vec16<T>::kSize,
      "a row is whole 16 bytes, one a lane at most");
}

}  // namespace kvsim::KVSIM_EXECUTOR
