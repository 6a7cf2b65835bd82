#include "kernels/score/scores.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

constexpr std::int64_t kThreads = 256;

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    update_kernel(kernels::ScoreShape shape, float decay, Span<const float> probabilities,
                  Span<float> scores) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t whole = shape.entries / 4;
  const std::int64_t i = grid_thread();
  if (i < whole) {
    kv::Vec16<float> sum{};
    for (std::int64_t g = 0; g < shape.group; ++g) {
      const auto p = kv::load16(probabilities, (row * shape.group + g) * shape.stride + 4 * i);
      for (int j = 0; j < 4; ++j) sum.v[j] += p.v[j];
    }
    auto score = kv::load16(scores, row * shape.stride + 4 * i);
    for (int j = 0; j < 4; ++j) score.v[j] = decay * score.v[j] + sum.v[j];
    kv::flops(4 * (shape.group + 2));
    kv::store16(scores, row * shape.stride + 4 * i, score);
  } else if (const std::int64_t e = 4 * whole + (i - whole); e < shape.entries) {
    float sum = 0;
    for (std::int64_t g = 0; g < shape.group; ++g) {
      sum += kv::load(probabilities, (row * shape.group + g) * shape.stride + e);
    }
    const float score = kv::load(scores, row * shape.stride + e);
    kv::flops(shape.group + 2);
    kv::store(scores, row * shape.stride + e, decay * score + sum);
  }
}

KVSIM_DEVICE float minus_infinity() { return __uint_as_float(0xFF800000U); }

/// ln(e^a + e^b)
KVSIM_DEVICE float log_add(float a, float b) {
  const float high = fmaxf(a, b);
  return high == minus_infinity() ? high : high + logf(expf(a - high) + expf(b - high));
}

/// One thread per entry.
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    log_average_kernel(kernels::ScoreShape shape, float log_keep, float log_take,
                       Span<const float> logits, Span<float> log_average) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t e = grid_thread();
  if (e >= shape.entries) return;
  float sample = minus_infinity();
  for (std::int64_t g = 0; g < shape.group; ++g) {
    sample = log_add(sample, kv::load(logits, (row * shape.group + g) * shape.stride + e));
  }
  const float before = kv::load(log_average, row * shape.stride + e);
  kv::store(log_average, row * shape.stride + e, log_add(before + log_keep, sample + log_take));
}

KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(kThreads)
    fuse_kernel(kernels::WindowShape shape, std::int64_t slot, bool maximum,
                Span<const float> probabilities, Span<float> ring, Span<float> fused) {
  const kernels::ScoreShape& s = shape.scores;
  const std::int64_t row = blockIdx.y;
  const std::int64_t e = grid_thread();
  if (e >= s.entries) return;
  float newest = 0;
  for (std::int64_t g = 0; g < s.group; ++g) {
    newest += kv::load(probabilities, (row * s.group + g) * s.stride + e);
  }
  float total = 0;
  for (std::int64_t w = 0; w < shape.window; ++w) {
    const std::int64_t at = (row * shape.window + w) * s.stride + e;
    const float x = w == slot ? newest : kv::load(ring, at);
    total = maximum ? fmaxf(total, x) : total + x;
  }
  kv::store(ring, (row * shape.window + slot) * s.stride + e, newest);
  kv::store(fused, row * s.stride + e, total);
}

void check(const kernels::ScoreShape& shape, std::int64_t n_rows, std::int64_t n_scores) {
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.group >= 1 && shape.entries >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(shape.stride >= shape.entries && shape.stride % 4 == 0,
                     "rows of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(n_rows >= shape.rows * shape.group * shape.stride,
                     "probabilities or logits are [rows * group, stride]");
  KVSIM_LAUNCH_CHECK(n_scores >= shape.rows * shape.stride, "scores are [rows, stride]");
}

Dim3 grid_of(const kernels::ScoreShape& shape) {
  return {static_cast<std::uint32_t>(kernels::ceil_div(shape.entries, kThreads)),
          static_cast<std::uint32_t>(shape.rows)};
}

}  // namespace

void update_log_average(Stream stream, const kernels::ScoreShape& shape, float keep,
                        Span<const float> logits, Span<float> log_average) {
  check(shape, logits.size, log_average.size);
  KVSIM_LAUNCH_CHECK(keep > 0 && keep < 1, "keep is in (0, 1)");
  launch(stream, "update_log_average", grid_of(shape), {static_cast<std::uint32_t>(kThreads)}, 0,
         log_average_kernel, shape, logf(keep), logf((1 - keep) / static_cast<float>(shape.group)),
         logits, log_average);
}

void fuse_window(Stream stream, const kernels::WindowShape& shape, std::int64_t slot, bool maximum,
                 Span<const float> probabilities, Span<float> ring, Span<float> fused) {
  check(shape.scores, probabilities.size, fused.size);
  KVSIM_LAUNCH_CHECK(shape.window >= 1 && slot >= 0 && slot < shape.window,
                     "the slot is in the window");
  KVSIM_LAUNCH_CHECK(ring.size >= shape.scores.rows * shape.window * shape.scores.stride,
                     "the ring is [rows, window, stride]");
  launch(stream, "fuse_window", grid_of(shape.scores), {static_cast<std::uint32_t>(kThreads)}, 0,
         fuse_kernel, shape, slot, maximum, probabilities, ring, fused);
}

void update_scores(Stream stream, const kernels::ScoreShape& shape, float decay,
                   Span<const float> probabilities, Span<float> scores) {
  check(shape, probabilities.size, scores.size);
  const std::int64_t threads = shape.entries / 4 + shape.entries % 4;
  launch(stream, "update_scores",
         {static_cast<std::uint32_t>(kernels::ceil_div(threads, kThreads)),
          static_cast<std::uint32_t>(shape.rows)},
         {static_cast<std::uint32_t>(kThreads)}, 0, update_kernel, shape, decay, probabilities,
         scores);
}

}  // namespace kvsim::KVSIM_EXECUTOR
