// The encoder of NVFP4.

#include "kernels/quantise/formats.hpp"
#include "kernels/quantise/fp4.hpp"
#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/lanes.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::QuantShape;

constexpr int kGroup = 16;  // channels per scale
constexpr int kWords = kGroup / kLaneChannels;

/// A group's scale and codes, and its squared error.
struct Group {
  std::uint32_t scale;
  std::uint32_t codes[std::size_t{kWords}];
  float error;
};
KVSIM_DEVICE Group group_of(const float (&x)[std::size_t{kWords}][std::size_t{kLaneChannels}],
                            float max, float target, float global) {
  Group group;
  group.scale = to_e4m3(max / kv::product(target, global));
  group.error = 0;
  const float scale = from_e4m3(group.scale);
  const float step = kv::product(scale, global);
  KVSIM_UNROLL
  for (int w = 0; w < kWords; ++w) {
    group.codes[w] = 0;
    KVSIM_UNROLL
    for (int j = 0; j < kLaneChannels; ++j) {
      const std::uint32_t code = step == 0 ? 0U : to_e2m1(x[w][j] / step);
      group.codes[w] |= code << (4 * j);
      const float error = x[w][j] - kv::product(kv::product(from_e2m1(code), scale), global);
      group.error += kv::product(error, error);
    }
  }
  return group;
}

/// One thread per group of an entry.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kEncodeThreads)
    nvfp4_kernel(QuantShape shape, float global, bool four_over_six, Span<const T> from,
                 Span<std::uint32_t> codes, Span<std::uint8_t> scales) {
  const std::int64_t groups = shape.head_dim / kGroup;
  const std::int64_t entry = grid_thread() / groups;
  if (entry >= kernels::padded_entries(shape.entries)) return;
  const std::int64_t at = (blockIdx.y * shape.capacity + entry) * groups + grid_thread() % groups;
  float x[std::size_t{kWords}][std::size_t{kLaneChannels}] = {};
  float max = 0;
  KVSIM_UNROLL
  for (int w = 0; w < kWords; ++w) {
    if (entry < shape.entries) load8(from, at * kGroup + w * kLaneChannels, x[w]);
    KVSIM_UNROLL
    for (int j = 0; j < kLaneChannels; ++j) max = fmaxf(max, fmaxf(x[w][j], -x[w][j]));
  }
  Group best = group_of(x, max, 6, global);
  if (four_over_six) {
    const Group four = group_of(x, max, 4, global);
    if (four.error < best.error) best = four;
  }
  KVSIM_UNROLL
  for (int w = 0; w < kWords; ++w) kv::store(codes, at * kWords + w, best.codes[w]);
  kv::store(scales, at, static_cast<std::uint8_t>(best.scale));
}

}  // namespace

template <class T>
void quantise_nvfp4(Stream stream, const QuantShape& shape, float global, bool four_over_six,
                    Span<const T> from, Span<std::uint32_t> codes, Span<std::uint8_t> scales) {
  check_rows_of_lanes(shape, from, codes, 4);
  KVSIM_LAUNCH_CHECK(global > 0, "a scale is above 0");
  KVSIM_LAUNCH_CHECK(scales.size >= shape.rows * shape.capacity * shape.head_dim / kGroup,
                     "scales are [rows, capacity, head_dim / 16]");
  launch(stream, "quantise_nvfp4", encode_grid(shape, kGroup), kEncodeBlock, 0, nvfp4_kernel<T>,
         shape, global, four_over_six, from, codes, scales);
}

#define KVSIM_INSTANTIATE(T)                                                          \
  template void quantise_nvfp4(Stream, const QuantShape&, float, bool, Span<const T>, \
                               Span<std::uint32_t>, Span<std::uint8_t>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
