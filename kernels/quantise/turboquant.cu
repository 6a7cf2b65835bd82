// Encoders of TurboQuant's keys and values.

#include "kernels/quantise/formats.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/lanes.hpp"
#include "kernels/quantise/levels.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::QuantShape;

/// Stores eight codes per lane as a bit stream; must be called by all lanes of a warp. With 3 bits,
/// four neighbouring lanes share three words.
template <int kBits>
KVSIM_DEVICE void store_codes(Span<std::uint32_t> codes, const RowLane& lane, std::uint32_t word) {
  if constexpr (kBits == 4) {
    kv::store(codes, lane.at * lane.lanes + lane.part, word);
  } else {
    const std::uint32_t next = __shfl_down_sync(kAllLanes, word, 1);
    const int i = lane.part % 4;
    if (i == 3) return;
    const std::int64_t at = lane.at * lane.lanes * 3 / 4 + lane.part / 4 * 3 + i;
    kv::store(codes, at, (word >> (8 * i)) | (next << (24 - 8 * i)));
  }
}

template <class T, int kBits>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    keys_kernel(QuantShape shape, Span<const T> from, Span<std::uint32_t> codes,
                Span<kv::Half> norms) {
  const RowLane lane = row_lane(shape);
  if (!lane.is_stored) return;
  float x[std::size_t{kLaneChannels}];
  load_row(from, lane, x);
  float squares = 0;
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) squares += kv::product(x[j], x[j]);
  const float norm = sqrtf(warp_sum(squares, lane.lanes));
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) x[j] /= norm + 1e-8F;
  hadamard_lanes(x, lane.lanes);
  const float root = sqrtf(static_cast<float>(shape.head_dim));
  const float scale = 1 / root;
  std::uint32_t word = 0;
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) {
    const float y = kv::product(x[j], scale);
    std::uint32_t code = 0;  // number of midpoints <= y
    KVSIM_UNROLL
    for (int c = 0; c + 1 < (1 << kBits); ++c) {
      const float middle = (gaussian_level<kBits>(c) + gaussian_level<kBits>(c + 1)) / 2;
      code += middle * scale <= y ? 1U : 0U;
    }
    word |= code << (kBits * j);
  }
  store_codes<kBits>(codes, lane, lane.is_live ? word : 0U);
  if (lane.part == 0) {
    kv::store(norms, lane.at, kv::from_float<kv::Half>(lane.is_live ? norm : 0.0F));
  }
}

template <class T, int kBits>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    values_kernel(QuantShape shape, Span<const T> from, Span<std::uint32_t> codes,
                  Span<kv::Half> scales) {
  const RowLane lane = row_lane(shape);
  if (!lane.is_stored) return;
  float x[std::size_t{kLaneChannels}];
  load_row(from, lane, x);
  constexpr float kLevels = (1 << kBits) - 1;
  const float low = row_min(x, lane.lanes);
  const float step = fmaxf((row_max(x, lane.lanes) - low) / kLevels, 1e-8F);
  std::uint32_t word = 0;
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) {
    const float code = fminf(floorf((x[j] - low) / step + 0.5F), kLevels);
    word |= static_cast<std::uint32_t>(code) << (kBits * j);
  }
  store_codes<kBits>(codes, lane, lane.is_live ? word : 0U);
  if (lane.part == 0) {
    kv::store(scales, 2 * lane.at, kv::from_float<kv::Half>(lane.is_live ? step : 0.0F));
    kv::store(scales, 2 * lane.at + 1, kv::from_float<kv::Half>(lane.is_live ? low : 0.0F));
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    bytes_kernel(QuantShape shape, Span<const T> from, Span<std::uint32_t> codes) {
  const RowLane lane = row_lane(shape);
  if (!lane.is_stored) return;
  float x[std::size_t{kLaneChannels}];
  load_row(from, lane, x);
  KVSIM_UNROLL
  for (int w = 0; w < 2; ++w) {
    std::uint32_t word = 0;
    KVSIM_UNROLL
    for (int j = 0; j < 4; ++j) word |= to_e4m3(x[4 * w + j]) << (8 * j);
    kv::store(codes, (lane.at * lane.lanes + lane.part) * 2 + w, word);
  }
}

}  // namespace

template <class T, int kBits>
void quantise_turboquant_keys(Stream stream, const QuantShape& shape, Span<const T> from,
                              Span<std::uint32_t> codes, Span<kv::Half> norms) {
  check_rows_of_lanes(shape, from, codes, kBits);
  KVSIM_LAUNCH_CHECK(norms.size >= shape.rows * shape.capacity, "norms are [rows, capacity]");
  launch(stream, "quantise_turboquant_keys", encode_grid(shape, kLaneChannels), kEncodeBlock, 0,
         keys_kernel<T, kBits>, shape, from, codes, norms);
}

template <class T, int kBits>
void quantise_turboquant_values(Stream stream, const QuantShape& shape, Span<const T> from,
                                Span<std::uint32_t> codes, Span<kv::Half> scales) {
  check_rows_of_lanes(shape, from, codes, kBits);
  KVSIM_LAUNCH_CHECK(scales.size >= 2 * shape.rows * shape.capacity,
                     "scales are [rows, capacity, 2]");
  launch(stream, "quantise_turboquant_values", encode_grid(shape, kLaneChannels), kEncodeBlock, 0,
         values_kernel<T, kBits>, shape, from, codes, scales);
}

template <class T>
void quantise_turboquant_bytes(Stream stream, const QuantShape& shape, Span<const T> from,
                               Span<std::uint32_t> codes) {
  check_rows_of_lanes(shape, from, codes, 8);
  launch(stream, "quantise_turboquant_bytes", encode_grid(shape, kLaneChannels), kEncodeBlock, 0,
         bytes_kernel<T>, shape, from, codes);
}

#define KVSIM_INSTANTIATE(T)                                                               \
  template void quantise_turboquant_keys<T, 3>(Stream, const QuantShape&, Span<const T>,   \
                                               Span<std::uint32_t>, Span<kv::Half>);       \
  template void quantise_turboquant_keys<T, 4>(Stream, const QuantShape&, Span<const T>,   \
                                               Span<std::uint32_t>, Span<kv::Half>);       \
  template void quantise_turboquant_values<T, 3>(Stream, const QuantShape&, Span<const T>, \
                                                 Span<std::uint32_t>, Span<kv::Half>);     \
  template void quantise_turboquant_values<T, 4>(Stream, const QuantShape&, Span<const T>, \
                                                 Span<std::uint32_t>, Span<kv::Half>);     \
  template void quantise_turboquant_bytes(Stream, const QuantShape&, Span<const T>,        \
                                          Span<std::uint32_t>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
