// Encoders of rows with one scale each, and the rotation of rows.

#include "kernels/quantise/formats.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/lanes.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::QuantShape;

constexpr float kMinStep = 1e-6F;

template <class T, ByteCode kCode>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    token_head_kernel(QuantShape shape, Span<const T> from, Span<std::uint64_t> codes,
                      Span<float> scales) {
  const RowLane lane = row_lane(shape);
  if (!lane.is_stored) return;
  float x[std::size_t{kLaneChannels}];
  load_row(from, lane, x);
  constexpr float kMaxCode = kCode == ByteCode::kInt8 ? 127.0F : 448.0F;
  const float step = fmaxf(row_abs_max(x, lane.lanes) / kMaxCode, kMinStep);
  const float inverse = 1 / step;
  std::uint64_t word = 0;
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) {
    std::uint32_t code = 0;
    if constexpr (kCode == ByteCode::kInt8) {
      const float rounded = rintf(fminf(fmaxf(x[j] * inverse, -128.0F), 127.0F));
      code = static_cast<std::uint32_t>(static_cast<std::int32_t>(rounded)) & 0xFFU;
    } else {
      code = to_e4m3(x[j] / step);
    }
    word |= static_cast<std::uint64_t>(code) << (8 * j);
  }
  kv::store(codes, lane.at * lane.lanes + lane.part, word);
  if (lane.part == 0) kv::store(scales, lane.at, lane.is_live ? step : 0.0F);
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    int4_rotated_kernel(QuantShape shape, Span<const T> from, Span<std::uint32_t> codes,
                        Span<std::uint32_t> scales) {
  const RowLane lane = row_lane(shape);
  if (!lane.is_stored) return;
  float x[std::size_t{kLaneChannels}];
  load_row(from, lane, x);
  hadamard_lanes(x, lane.lanes);
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) x[j] = kv::to_float(kv::from_float<T>(x[j]));
  const float low = row_min(x, lane.lanes);
  const float step = fmaxf((row_max(x, lane.lanes) - low) / 15.0F, kMinStep);
  const float zero = fminf(fmaxf(roundf(-low / step), 0.0F), 15.0F);
  const float inverse = 1 / step;
  std::uint32_t word = 0;
  KVSIM_UNROLL
  for (int j = 0; j < kLaneChannels; ++j) {
    const float code = roundf(kv::product(x[j], inverse) + zero);
    word |= static_cast<std::uint32_t>(fminf(fmaxf(code, 0.0F), 15.0F)) << (4 * j);
  }
  kv::store(codes, lane.at * lane.lanes + lane.part, lane.is_live ? word : 0U);
  if (lane.part == 0) {
    const std::uint32_t scale = (__float_as_uint(step) & ~15U) | static_cast<std::uint32_t>(zero);
    kv::store(scales, lane.at, lane.is_live ? scale : 0U);
  }
}

template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    rotate_kernel(std::int64_t rows, int lanes, float factor, Span<const T> from, Span<T> to) {
  constexpr int kVector = kv::Vec16<T>::kSize;
  const std::int64_t row = grid_thread() / lanes;
  const bool is_live = row < rows;
  const std::int64_t first = grid_thread() * kLaneChannels;
  float x[std::size_t{kLaneChannels}] = {};
  if (is_live) load8(from, first, x);
  hadamard_lanes(x, lanes);
  if (!is_live) return;
  KVSIM_UNROLL
  for (int of = 0; of < kLaneChannels; of += kVector) {
    kv::Vec16<T> raw;
    KVSIM_UNROLL
    for (int j = 0; j < kVector; ++j) raw.v[j] = kv::from_float<T>(x[of + j] * factor);
    kv::store16(to, first + of, raw);
  }
}

}  // namespace

template <class T, ByteCode kCode>
void quantise_token_head(Stream stream, const QuantShape& shape, Span<const T> from,
                         Span<std::uint64_t> codes, Span<float> scales) {
  check_rows_of_lanes(shape, from, codes, 8);
  KVSIM_LAUNCH_CHECK(scales.size >= shape.rows * shape.capacity, "scales are [rows, capacity]");
  launch(stream, "quantise_token_head", encode_grid(shape, kLaneChannels), kEncodeBlock, 0,
         token_head_kernel<T, kCode>, shape, from, codes, scales);
}

template <class T>
void quantise_int4_rotated(Stream stream, const QuantShape& shape, Span<const T> from,
                           Span<std::uint32_t> codes, Span<std::uint32_t> scales) {
  check_rows_of_lanes(shape, from, codes, 4);
  KVSIM_LAUNCH_CHECK(scales.size >= shape.rows * shape.capacity, "scales are [rows, capacity]");
  launch(stream, "quantise_int4_rotated", encode_grid(shape, kLaneChannels), kEncodeBlock, 0,
         int4_rotated_kernel<T>, shape, from, codes, scales);
}

template <class T>
void rotate_rows(Stream stream, std::int64_t rows, std::int64_t head_dim, float factor,
                 Span<const T> from, Span<T> to) {
  KVSIM_LAUNCH_CHECK(rows >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(head_dim == 64 || head_dim == 128, "head_dim is 64 or 128");
  KVSIM_LAUNCH_CHECK(from.size >= rows * head_dim && to.size >= rows * head_dim,
                     "from and to are [rows, head_dim]");
  const std::int64_t lanes = head_dim / kLaneChannels;
  launch(stream, "rotate_rows",
         {static_cast<std::uint32_t>(kernels::ceil_div(rows * lanes, kEncodeThreads))},
         kEncodeBlock, 0, rotate_kernel<T>, rows, static_cast<int>(lanes), factor, from, to);
}

#define KVSIM_INSTANTIATE(T)                                                                      \
  template void quantise_token_head<T, ByteCode::kInt8>(Stream, const QuantShape&, Span<const T>, \
                                                        Span<std::uint64_t>, Span<float>);        \
  template void quantise_token_head<T, ByteCode::kE4m3>(Stream, const QuantShape&, Span<const T>, \
                                                        Span<std::uint64_t>, Span<float>);        \
  template void quantise_int4_rotated(Stream, const QuantShape&, Span<const T>,                   \
                                      Span<std::uint32_t>, Span<std::uint32_t>);                  \
  template void rotate_rows(Stream, std::int64_t, std::int64_t, float, Span<const T>, Span<T>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
