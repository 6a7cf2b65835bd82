#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/basic/gemm.hpp"
#include "kernels/reference.hpp"
#include "kernels/score/surrogate.hpp"
#include "kernels/suite/cases/cases.hpp"
#include "models/math/attention/surrogate.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::GemmShape;

/// The largest sum of |a| |b| over the elements of a product: rounding errors are proportional to
/// it, not to the sum after cancellation.
template <class A, class B>
double largest_sum(const GemmShape& shape, const std::vector<A>& a, const std::vector<B>& b) {
  double largest = 0;
  for (std::int64_t m = 0; m < shape.m; ++m) {
    for (std::int64_t n = 0; n < shape.n; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < shape.k; ++k) {
        sum += std::abs(static_cast<double>(a[at(m * shape.k + k)]) *
                        static_cast<double>(b[at(n * shape.k + k)]));
      }
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

template <class A, class B>
void product_case(Bench& bench, const GemmShape& shape, bool biased, bool one_row) {
  bench.add(text(shape.m) + "x" + text(shape.n) + "x" + text(shape.k) +
                (biased ? ", bias, GELU" : "") + (std::is_same_v<A, B> ? "" : ", weights of fp32"),
            Stored<A>::kName, [&](Case& c) {
              const auto a = c.draw<A>(shape.m * shape.k);
              const auto b = c.draw<B>(shape.n * shape.k);
              const auto bias = biased ? c.draw(shape.n) : std::vector<float>{};
              auto& out = c.output<B>("out", shape.m * shape.n);
              const Gemm<A, B> arguments{.a = c.numbers<A>("a", a).span(),
                                         .b = c.numbers<B>("b", b).span(),
                                         .bias = c.numbers<float>("bias", bias).span(),
                                         .gelu = biased,
                                         .out = out.span()};
              c.run(one_row ? gemv_traffic(shape, sizeof(A), sizeof(B), biased)
                            : gemm_traffic(shape, sizeof(A), sizeof(B), biased),
                    [=](Stream s) {
                      if (one_row) {
                        gemv<A, B>(s, shape, arguments);
                      } else {
                        gemm<A, B>(s, shape, arguments);
                      }
                    });
              if (c.timed_alone()) return;
              const std::vector<double> expected =
                  kernels::gemm_reference(shape, a, b, bias, biased);
              double largest = 1e-30;
              for (const double value : expected) largest = std::max(largest, std::abs(value));
              // The error of fp32 sums scales with the terms before cancellation, the rounding of
              // the output with the output.
              const double cancelled = std::max(1.0, largest_sum(shape, a, b) / largest);
              c.compare("out", values_of(out.download(0, shape.m * shape.n)), expected,
                        Stored<B>::kRounding + 4e-6 * cancelled);
            });
}

template <class T>
void mlp_case(Bench& bench, const kernels::SurrogateShape& shape, std::int64_t width) {
  bench.add(text(shape.tokens) + " tokens of " + text(shape.inputs) + ", width " + text(width) +
                ", " + text(shape.heads) + " heads",
            Stored<T>::kName, [&](Case& c) {
              const auto hidden = c.draw<T>(shape.tokens * shape.inputs);
              Surrogate surrogate;
              surrogate.inputs = static_cast<std::int32_t>(shape.inputs);
              surrogate.outputs = static_cast<std::int32_t>(shape.heads);
              surrogate.width = static_cast<std::int32_t>(width);
              surrogate.w1 = c.draw(width * shape.inputs, -0.1, 0.1);
              surrogate.b1 = c.draw(width);
              surrogate.w2 = c.draw(shape.heads * width, -0.5, 0.5);
              surrogate.b2 = c.draw(shape.heads);
              auto& inner = c.output<float>("inner", shape.tokens * width);
              auto& scores = c.output<float>("scores", shape.heads * shape.tokens);
              auto& keeps = c.output<std::int32_t>("keeps", shape.heads * shape.tokens);
              const MlpScores<T> arguments{
                  .hidden = c.numbers<T>("hidden", hidden).span(),
                  .w1 = c.numbers<float>("w1", surrogate.w1).span(),
                  .b1 = c.numbers<float>("b1", surrogate.b1).span(),
                  .inner = inner.span(),
                  .outer = {.hidden = inner.span(),
                            .weights = c.numbers<float>("w2", surrogate.w2).span(),
                            .biases = c.numbers<float>("b2", surrogate.b2).span(),
                            .threshold = 0.125F,
                            .scores = scores.span(),
                            .keeps = keeps.span()}};
              kernels::SurrogateShape outer = shape;
              outer.inputs = width;
              c.run(kernels::gemm_traffic({.m = shape.tokens, .n = width, .k = shape.inputs},
                                          sizeof(T), sizeof(float), true) +
                        linear_score_traffic(outer, sizeof(float)),
                    [=](Stream s) { mlp_scores<T>(s, shape, width, arguments); });
              if (c.timed_alone()) return;
              const std::vector<float> by_token = surrogate.predict(hidden);
              std::vector<double> expected;
              for (std::int64_t h = 0; h < shape.heads; ++h) {
                for (std::int64_t t = 0; t < shape.tokens; ++t) {
                  expected.push_back(static_cast<double>(by_token[at(t * shape.heads + h)]));
                }
              }
              const auto got = scores.download(0, shape.heads * shape.tokens);
              c.compare("scores", got, expected, 8e-6);
              std::vector<std::int32_t> stays;
              for (const float score : got) {
                stays.push_back(score >= arguments.outer.threshold ? 1 : 0);
              }
              c.compare_exactly("keeps", keeps.download(0, shape.heads * shape.tokens), stays);
            });
}

}  // namespace

void gemm_cases(Bench& bench) {
  for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 8},
                                {31, 33, 72},
                                {65, 31, 264}}) {
    const GemmShape shape{.m = m, .n = n, .k = k};
    product_case<float, float>(bench, shape, false, false);
    product_case<kv::Half, kv::Half>(bench, shape, true, false);
    product_case<kv::BFloat16, kv::BFloat16>(bench, shape, false, false);
    product_case<kv::Half, float>(bench, shape, true, false);
    product_case<kv::BFloat16, float>(bench, shape, true, false);
  }
  if (bench.large()) {
    product_case<kv::BFloat16, kv::BFloat16>(bench, {.m = 64, .n = 4096, .k = 4096}, false, false);
  }
}

void gemv_cases(Bench& bench) {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {31, 264}, {257, 1032}}) {
    const GemmShape shape{.m = 1, .n = n, .k = k};
    product_case<float, float>(bench, shape, true, true);
    product_case<kv::Half, kv::Half>(bench, shape, false, true);
    product_case<kv::BFloat16, kv::BFloat16>(bench, shape, true, true);
    product_case<kv::Half, float>(bench, shape, false, true);
    product_case<kv::BFloat16, float>(bench, shape, false, true);
  }
  if (bench.large()) {
    for (const std::int64_t n : {4096, 14'336, 128'256}) {
      product_case<kv::BFloat16, kv::BFloat16>(bench, {.m = 1, .n = n, .k = 4096}, false, true);
    }
  }
}

void mlp_score_cases(Bench& bench) {
  for (const std::int64_t tokens : {1, 31, 65}) {
    const kernels::SurrogateShape shape{.tokens = tokens, .heads = 3, .inputs = 136};
    mlp_case<float>(bench, shape, 24);
    mlp_case<kv::Half>(bench, shape, 40);
    mlp_case<kv::BFloat16>(bench, shape, 24);
  }
  if (bench.large()) {
    mlp_case<kv::BFloat16>(bench, {.tokens = 8192, .heads = 8, .inputs = 4096}, 512);
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
