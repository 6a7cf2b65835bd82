#include "kernels/scores.hpp"
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

}  // namespace

void update_scores(Stream stream, const kernels::ScoreShape& shape, float decay,
                   Span<const float> probabilities, Span<float> scores) {
  KVSIM_LAUNCH_CHECK(shape.rows >= 1 && shape.group >= 1 && shape.entries >= 1,
                     "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(shape.stride >= shape.entries && shape.stride % 4 == 0,
                     "rows of whole 16 bytes");
  KVSIM_LAUNCH_CHECK(probabilities.size >= shape.rows * shape.group * shape.stride,
                     "probabilities are [rows * group, stride]");
  KVSIM_LAUNCH_CHECK(scores.size >= shape.rows * shape.stride, "scores are [rows, stride]");
  const std::int64_t threads = shape.entries / 4 + shape.entries % 4;
  launch(stream, "update_scores",
         {static_cast<std::uint32_t>(kernels::ceil_div(threads, kThreads)),
          static_cast<std::uint32_t>(shape.rows)},
         {static_cast<std::uint32_t>(kThreads)}, 0, update_kernel, shape, decay, probabilities,
         scores);
}

}  // namespace kvsim::KVSIM_EXECUTOR
