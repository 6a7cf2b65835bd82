#include "kernels/quantise/fp8.hpp"
#include "kernels/quantise/lanes.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ceil_div;
using kernels::kQuantGroup;
using kernels::QuantShape;

constexpr std::int64_t kThreads = 256;
constexpr int kPer = kLaneChannels;
constexpr int kGroup = static_cast<int>(kQuantGroup);

template <class Code>
constexpr int kBits = static_cast<int>(sizeof(Code));  // per channel: a word holds eight

/// Step and zero of a range, as stored and as read back.
struct Range {
  kv::Half step, zero;
  float step_read, zero_read;
};
KVSIM_DEVICE Range range_of(float low, float high, int levels) {
  Range r;
  r.step = kv::from_float<kv::Half>((high - low) / static_cast<float>(levels));
  r.zero = kv::from_float<kv::Half>(low);
  r.step_read = kv::to_float(r.step);
  r.zero_read = kv::to_float(r.zero);
  return r;
}
KVSIM_DEVICE std::uint32_t code_of(float x, const Range& r, int levels) {
  if (r.step_read == 0) return 0;
  const float code = rintf((x - r.zero_read) / r.step_read);
  return static_cast<std::uint32_t>(fminf(fmaxf(code, 0.0F), static_cast<float>(levels)));
}

/// One thread per eight channels of a group of entries.
template <class T, class Code>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    keys_kernel(QuantShape shape, Span<const T> from, Span<Code> codes, Span<kv::Half> steps,
                Span<kv::Half> zeros) {
  constexpr int kLevels = (1 << kBits<Code>)-1;
  const std::int64_t words = shape.head_dim / kPer;
  const std::int64_t row = blockIdx.y;
  const std::int64_t group = grid_thread() / words;
  const std::int64_t word = grid_thread() % words;
  const std::int64_t first = group * kGroup;
  if (first >= shape.entries) return;
  const std::int64_t end = smaller(first + kGroup, shape.entries);
  const std::int64_t base = row * shape.capacity;
  float low[std::size_t{kPer}];
  float high[std::size_t{kPer}];
  for (std::int64_t e = first; e < end; ++e) {
    float x[std::size_t{kPer}];
    load8(from, (base + e) * shape.head_dim + word * kPer, x);
    for (int j = 0; j < kPer; ++j) {
      low[j] = e == first ? x[j] : fminf(low[j], x[j]);
      high[j] = e == first ? x[j] : fmaxf(high[j], x[j]);
    }
  }
  Range ranges[std::size_t{kPer}];
  kv::Vec16<kv::Half> step;
  kv::Vec16<kv::Half> zero;
  for (int j = 0; j < kPer; ++j) {
    ranges[j] = range_of(low[j], high[j], kLevels);
    step.v[j] = ranges[j].step;
    zero.v[j] = ranges[j].zero;
  }
  const std::int64_t groups = ceil_div(shape.capacity, kQuantGroup);
  kv::store16(steps, (row * groups + group) * shape.head_dim + word * kPer, step);
  kv::store16(zeros, (row * groups + group) * shape.head_dim + word * kPer, zero);
  for (std::int64_t e = first; e < end; ++e) {
    float x[std::size_t{kPer}];
    load8(from, (base + e) * shape.head_dim + word * kPer, x);
    std::uint32_t packed = 0;
    for (int j = 0; j < kPer; ++j) packed |= code_of(x[j], ranges[j], kLevels) << (j * kBits<Code>);
    kv::store(codes, (base + e) * words + word, static_cast<Code>(packed));
  }
}

/// One thread per group of channels of an entry.
template <class T, class Code>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    values_kernel(QuantShape shape, Span<const T> from, Span<Code> codes, Span<kv::Half> steps,
                  Span<kv::Half> zeros) {
  constexpr int kLevels = (1 << kBits<Code>)-1;
  constexpr int kWords = kGroup / kPer;
  const std::int64_t groups = shape.head_dim / kGroup;
  const std::int64_t entry = grid_thread() / groups;
  const std::int64_t group = grid_thread() % groups;
  if (entry >= shape.entries) return;
  const std::int64_t at = blockIdx.y * shape.capacity + entry;
  float x[std::size_t{kWords}][std::size_t{kPer}];
  float low = 0;
  float high = 0;
  for (int w = 0; w < kWords; ++w) {
    load8(from, at * shape.head_dim + group * kGroup + w * kPer, x[w]);
    for (int j = 0; j < kPer; ++j) {
      low = w + j == 0 ? x[w][j] : fminf(low, x[w][j]);
      high = w + j == 0 ? x[w][j] : fmaxf(high, x[w][j]);
    }
  }
  const Range range = range_of(low, high, kLevels);
  kv::store(steps, at * groups + group, range.step);
  kv::store(zeros, at * groups + group, range.zero);
  for (int w = 0; w < kWords; ++w) {
    std::uint32_t packed = 0;
    for (int j = 0; j < kPer; ++j) packed |= code_of(x[w][j], range, kLevels) << (j * kBits<Code>);
    kv::store(codes, at * (shape.head_dim / kPer) + group * kWords + w, static_cast<Code>(packed));
  }
}

/// One thread per eight channels of an entry.
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    fp8_kernel(QuantShape shape, float scale, Span<const T> from, Span<std::uint64_t> codes) {
  const std::int64_t words = shape.head_dim / kPer;
  if (grid_thread() >= shape.entries * words) return;
  const std::int64_t word = blockIdx.y * shape.capacity * words + grid_thread();
  float x[std::size_t{kPer}];
  load8(from, word * kPer, x);
  std::uint64_t packed = 0;
  for (int j = 0; j < kPer; ++j) {
    packed |= static_cast<std::uint64_t>(to_e4m3(x[j] / scale)) << (8 * j);
  }
  kv::store(codes, word, packed);
}

void check(const QuantShape& s, std::int64_t n_from, std::int64_t n_codes) {
  KVSIM_LAUNCH_CHECK(s.rows >= 1 && s.entries >= 1 && s.capacity >= s.entries,
                     "sizes are 1 at least, capacity holds the entries");
  KVSIM_LAUNCH_CHECK(s.head_dim >= kQuantGroup && s.head_dim % kQuantGroup == 0,
                     "head_dim is a multiple of the group");
  KVSIM_LAUNCH_CHECK(n_from >= s.rows * s.capacity * s.head_dim,
                     "from is [rows, capacity, head_dim]");
  KVSIM_LAUNCH_CHECK(n_codes >= s.rows * s.capacity * s.head_dim / kPer,
                     "codes are [rows, capacity, head_dim / 8]");
}

Dim3 grid_of(std::int64_t threads, const QuantShape& s) {
  return {static_cast<std::uint32_t>(ceil_div(threads, kThreads)),
          static_cast<std::uint32_t>(s.rows)};
}

constexpr Dim3 kBlock{static_cast<std::uint32_t>(kThreads)};

}  // namespace

template <class T, class Code>
void kivi_quantise_keys(Stream stream, const QuantShape& shape, Span<const T> from,
                        Span<Code> codes, Span<kv::Half> steps, Span<kv::Half> zeros) {
  check(shape, from.size, codes.size);
  const std::int64_t scales = shape.rows * ceil_div(shape.capacity, kQuantGroup) * shape.head_dim;
  KVSIM_LAUNCH_CHECK(steps.size >= scales && zeros.size >= scales,
                     "steps and zeros are [rows, ceil(capacity / 32), head_dim]");
  launch(stream, "kivi_quantise_keys",
         grid_of(ceil_div(shape.entries, kQuantGroup) * (shape.head_dim / kPer), shape), kBlock, 0,
         keys_kernel<T, Code>, shape, from, codes, steps, zeros);
}

template <class T, class Code>
void kivi_quantise_values(Stream stream, const QuantShape& shape, Span<const T> from,
                          Span<Code> codes, Span<kv::Half> steps, Span<kv::Half> zeros) {
  check(shape, from.size, codes.size);
  const std::int64_t scales = shape.rows * shape.capacity * shape.head_dim / kQuantGroup;
  KVSIM_LAUNCH_CHECK(steps.size >= scales && zeros.size >= scales,
                     "steps and zeros are [rows, capacity, head_dim / 32]");
  launch(stream, "kivi_quantise_values",
         grid_of(shape.entries * (shape.head_dim / kQuantGroup), shape), kBlock, 0,
         values_kernel<T, Code>, shape, from, codes, steps, zeros);
}

template <class T>
void quantise_fp8(Stream stream, const QuantShape& shape, float scale, Span<const T> from,
                  Span<std::uint64_t> codes) {
  check(shape, from.size, codes.size);
  KVSIM_LAUNCH_CHECK(scale > 0, "a scale is above 0");
  launch(stream, "quantise_fp8", grid_of(shape.entries * (shape.head_dim / kPer), shape), kBlock, 0,
         fp8_kernel<T>, shape, scale, from, codes);
}

#define KVSIM_INSTANTIATE(T)                                                                      \
  template void kivi_quantise_keys(Stream, const QuantShape&, Span<const T>, Span<std::uint16_t>, \
                                   Span<kv::Half>, Span<kv::Half>);                               \
  template void kivi_quantise_keys(Stream, const QuantShape&, Span<const T>, Span<std::uint32_t>, \
                                   Span<kv::Half>, Span<kv::Half>);                               \
  template void kivi_quantise_values(Stream, const QuantShape&, Span<const T>,                    \
                                     Span<std::uint16_t>, Span<kv::Half>, Span<kv::Half>);        \
  template void kivi_quantise_values(Stream, const QuantShape&, Span<const T>,                    \
                                     Span<std::uint32_t>, Span<kv::Half>, Span<kv::Half>);        \
  template void quantise_fp8(Stream, const QuantShape&, float, Span<const T>, Span<std::uint64_t>);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
