#pragma once

// Rows held by lanes of eight channels each: head_dim / 8 neighbouring lanes of a warp hold a row,
// and lane `part` holds channels 8 part to 8 part + 7. Encoders process rows in this form.

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {

inline constexpr int kLaneChannels = static_cast<int>(kernels::kQuantPerLane);

/// Loads the eight channels that start at element `i`.
template <class T>
KVSIM_DEVICE void load8(Span<const T> from, std::int64_t i,
                        float (&x)[std::size_t{kLaneChannels}]) {
  constexpr int kVector = kv::Vec16<T>::kSize;
  KVSIM_UNROLL
  for (int first = 0; first < kLaneChannels; first += kVector) {
    const auto raw = kv::load16(from, i + first);
    KVSIM_UNROLL
    for (int j = 0; j < kVector; ++j) x[first + j] = kv::to_float(raw.v[j]);
  }
}

/// The running thread's part of a row. Grids consist of whole warps.
struct RowLane {
  int lanes = 1, part = 0;
  std::int64_t at = 0;     // the row, of [rows, capacity]
  bool is_stored = false;  // false: beyond the padded rows; uniform within a warp
  bool is_live = false;    // false: padding, which is stored as zeros
};
KVSIM_DEVICE RowLane row_lane(const kernels::QuantShape& shape) {
  RowLane lane;
  lane.lanes = static_cast<int>(shape.head_dim) / kLaneChannels;
  const std::int64_t entry = grid_thread() / lane.lanes;
  lane.part = static_cast<int>(grid_thread() % lane.lanes);
  lane.at = blockIdx.y * shape.capacity + entry;
  lane.is_stored = entry < kernels::padded_entries(shape.entries);
  lane.is_live = entry < shape.entries;
  return lane;
}
template <class T>
KVSIM_DEVICE void load_row(Span<const T> from, const RowLane& lane,
                           float (&x)[std::size_t{kLaneChannels}]) {
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) x[j] = 0;
  if (lane.is_live) load8(from, (lane.at * lane.lanes + lane.part) * kLaneChannels, x);
}

/// Maximum and minimum of a row, in each of its lanes.
KVSIM_DEVICE float row_max(const float (&x)[std::size_t{kLaneChannels}], int lanes) {
  float max = x[0];
  KVSIM_UNROLL
  for (int j = 1; j < kLaneChannels; ++j) max = fmaxf(max, x[j]);
  return warp_max(max, lanes);
}
KVSIM_DEVICE float row_min(const float (&x)[std::size_t{kLaneChannels}], int lanes) {
  float min = x[0];
  KVSIM_UNROLL
  for (int j = 1; j < kLaneChannels; ++j) min = fminf(min, x[j]);
  return -warp_max(-min, lanes);
}
KVSIM_DEVICE float row_abs_max(const float (&x)[std::size_t{kLaneChannels}], int lanes) {
  return fmaxf(row_max(x, lanes), -row_min(x, lanes));
}

/// The row times the Sylvester Hadamard matrix, not normalised: models/math/low_float.hpp, with the
/// same sums in the same order.
KVSIM_DEVICE void hadamard_lanes(float (&x)[std::size_t{kLaneChannels}], int lanes) {
  KVSIM_UNROLL
  for (int half = 1; half < kLaneChannels; half *= 2) {
    KVSIM_UNROLL
    for (int i = 0; i < kLaneChannels; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i];
      const float b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  for (int distance = 1; distance < lanes; distance *= 2) {
    const bool upper = (static_cast<int>(threadIdx.x) & distance) != 0;
    KVSIM_UNROLL
    for (int j = 0; j < kLaneChannels; ++j) {
      const float other = __shfl_xor_sync(kAllLanes, x[j], distance);
      x[j] = upper ? other - x[j] : x[j] + other;
    }
  }
}

/// Checks the requirements of encoders with codes of `bits` per channel. Errors: ContractError.
template <class T, class Word>
void check_rows_of_lanes(const kernels::QuantShape& s, Span<const T> from, Span<Word> codes,
                         std::int64_t bits) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.entries >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.rows <= 65'535, "rows are the second dimension of a grid, 65,535 at most");
  KVSIM_LAUNCH_CHECK(s.head_dim == 64 || s.head_dim == 128, "head_dim is 64 or 128");
  KVSIM_LAUNCH_CHECK(s.capacity >= s.entries && s.capacity % kernels::kPadEntries == 0,
                     "capacity holds the entries and is a multiple of 8");
  const std::int64_t elements = s.rows * s.capacity * s.head_dim;
  KVSIM_LAUNCH_CHECK(from.size >= elements, "from is [rows, capacity, head_dim]");
  KVSIM_LAUNCH_CHECK(codes.size * static_cast<std::int64_t>(sizeof(Word)) * 8 >= elements * bits,
                     "codes are [rows, capacity, head_dim]");
}

inline constexpr std::int64_t kEncodeThreads = 256;
/// One thread for each `channels` channels of the padded rows.
inline Dim3 encode_grid(const kernels::QuantShape& s, std::int64_t channels) {
  const std::int64_t threads = kernels::padded_entries(s.entries) * s.head_dim / channels;
  return {static_cast<std::uint32_t>(kernels::ceil_div(threads, kEncodeThreads)),
          static_cast<std::uint32_t>(s.rows)};
}
inline constexpr Dim3 kEncodeBlock{static_cast<std::uint32_t>(kEncodeThreads)};

}  // namespace kvsim::KVSIM_EXECUTOR
