// How near replay comes to what the machine can do: the reference against Eigen's own matrix
// product, each method's step loop against streaming reads. One core; prints a table. Not a timed
// test.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include <Eigen/Dense>

#include "models/math/causal_attention.hpp"
#include "sim/replay/head_replay.hpp"
#include "tests/support/vectors.hpp"

namespace {

using namespace kvsim;
using Clock = std::chrono::steady_clock;

/// Least wall time of `runs` calls, seconds.
template <class Call>
double best_of(int runs, Call call) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double sgemm_flops() {
  const int n = 1024;
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(n, n);
  const Eigen::MatrixXf b = Eigen::MatrixXf::Random(n, n);
  Eigen::MatrixXf c(n, n);
  return 2.0 * n * n * n / best_of(5, [&] { c.noalias() = a * b; });
}

double read_bandwidth() {
  const std::vector<double> data(32U << 20U, 1.0);  // 256 MiB, far beyond the caches
  volatile double sink = 0;
  const double time = best_of(5, [&] {
    // Eight sums hide the latency of addition: the loop is bound by memory alone.
    double sum[8] = {};
    for (std::size_t i = 0; i < data.size(); i += 8) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += data[i + j];
    }
    sink = sink + sum[0] + sum[7];
  });
  return static_cast<double>(data.size()) * 8 / time;
}

}  // namespace

int main() {
  constexpr std::int64_t kTokens = 4096;
  constexpr std::int64_t kPrompt = 2048;
  constexpr std::int32_t kDim = 128;
  const double gemm = sgemm_flops();
  const double bandwidth = read_bandwidth();
  std::printf("one core: SGEMM %.1f GFLOP/s, streaming read %.1f GB/s\n", gemm / 1e9,
              bandwidth / 1e9);
  for (const std::int32_t group : {1, 4}) {
    const auto head = test::random_head(group, kDim, kTokens, kPrompt);
    CausalAttention reference;
    const double t = best_of(2, [&] {
      reference = causal_attention(head.q, head.keys, head.values, group, kDim, kTokens, kPrompt,
                                   head.view.scale);
    });
    // Two products of 2 d FLOPs for each (query, visible key).
    const double pairs = 0.5 * (kPrompt + 1.0 + kTokens) * (kTokens - kPrompt) * group;
    const double rate = pairs * 4 * kDim / t;
    std::printf("group %d: reference %.1f GFLOP/s, %.0f %% of SGEMM\n", group, rate / 1e9,
                100 * rate / gemm);
    for (const MethodInfo& info : builtin_methods()) {
      const auto budget = takes_budget(info.name) ? std::optional{Budget{0.2, 0}} : std::nullopt;
      const auto method = make_method({info.name, {}, budget}, kPrompt, {Dtype::kFp32, {}});
      RecordedPromptScores scores{head.view};
      if (method->needs().prompt_scores != PromptScoreClass::kNone) {
        for (const double decay : {1.0, 0.98})
          (void)scores.column_sums(decay);  // not part of the loop
      }
      std::vector<HeadSeries> series;
      const double time = best_of(2, [&] {
        series = replay_head(as_composed(*method), 0, head.view, reference, scores, nullptr, false);
      });
      double bytes = 0;
      for (const std::int32_t entries : series[0].attended) bytes += 2.0 * entries * kDim * 4;
      std::printf("  %-16s %8.2f ms  %6.2f GB/s  %4.0f %% of streaming read\n", info.name.c_str(),
                  time * 1e3, bytes / time / 1e9, 100 * bytes / time / bandwidth);
    }
  }
  return 0;
}
