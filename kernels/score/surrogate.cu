#include "kernels/basic/gemm.hpp"
#include "kernels/score/surrogate.hpp"
#include "kernels/warp.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

constexpr int kTokensABlock = 4;

/// One warp per (token, head).
template <class T>
KVSIM_KERNEL KVSIM_LAUNCH_BOUNDS(32 * kTokensABlock)
    linear_kernel(kernels::SurrogateShape shape, LinearScores<T> a) {
  constexpr int kPer = kv::Vec16<T>::kSize;
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * kTokensABlock + threadIdx.x / 32;
  const std::int64_t head = blockIdx.y;
  if (token >= shape.tokens) return;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32 * kPer; i < shape.inputs; i += 32 * kPer) {
    const auto x = kv::load16(a.hidden, token * shape.inputs + i);
    KVSIM_UNROLL
    for (int j = 0; j < kPer; j += 4) {
      const auto w = kv::load16(a.weights, head * shape.inputs + i + j);
      for (int k = 0; k < 4; ++k) sum += w.v[k] * kv::to_float(x.v[j + k]);
    }
    kv::flops(2 * kPer);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    const float score = sum + kv::load(a.biases, head);
    kv::store(a.scores, head * shape.tokens + token, score);
    kv::store(a.keeps, head * shape.tokens + token, score >= a.threshold ? 1 : 0);
  }
}

}  // namespace

template <class T>
void linear_scores(Stream stream, const kernels::SurrogateShape& s, const LinearScores<T>& a) {
  KVSIM_LAUNCH_CHECK(s.tokens >= 1 && s.heads >= 1, "sizes are 1 at least");
  KVSIM_LAUNCH_CHECK(s.inputs >= 8 && s.inputs % 8 == 0, "inputs are a multiple of 8");
  KVSIM_LAUNCH_CHECK(a.hidden.size >= s.tokens * s.inputs, "hidden is [tokens, inputs]");
  KVSIM_LAUNCH_CHECK(a.weights.size >= s.heads * s.inputs && a.biases.size >= s.heads,
                     "weights are [heads, inputs], biases [heads]");
  KVSIM_LAUNCH_CHECK(a.scores.size >= s.heads * s.tokens && a.keeps.size >= s.heads * s.tokens,
                     "scores and keeps are [heads, tokens]");
  launch(stream, "linear_scores",
         {static_cast<std::uint32_t>(kernels::ceil_div(s.tokens, kTokensABlock)),
          static_cast<std::uint32_t>(s.heads)},
         {32 * kTokensABlock}, 0, linear_kernel<T>, s, a);
}

template <class T>
void mlp_scores(Stream stream, const kernels::SurrogateShape& s, std::int64_t width,
                const MlpScores<T>& a) {
  gemm<T, float>(stream, {.m = s.tokens, .n = width, .k = s.inputs},
                 {.a = a.hidden, .b = a.w1, .bias = a.b1, .gelu = true, .out = a.inner});
  linear_scores<float>(stream, {.tokens = s.tokens, .heads = s.heads, .inputs = width}, a.outer);
}

template void mlp_scores(Stream, const kernels::SurrogateShape&, std::int64_t,
                         const MlpScores<float>&);
template void mlp_scores(Stream, const kernels::SurrogateShape&, std::int64_t,
                         const MlpScores<kv::Half>&);
template void mlp_scores(Stream, const kernels::SurrogateShape&, std::int64_t,
                         const MlpScores<kv::BFloat16>&);
template void linear_scores(Stream, const kernels::SurrogateShape&, const LinearScores<float>&);
template void linear_scores(Stream, const kernels::SurrogateShape&, const LinearScores<kv::Half>&);
template void linear_scores(Stream, const kernels::SurrogateShape&,
                            const LinearScores<kv::BFloat16>&);

}  // namespace kvsim::KVSIM_EXECUTOR
