// How near replay comes to what the machine can do: the reference against Eigen's own matrix
// product, each method's step loop against streaming reads. One core; prints a table. Not a timed
// test.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <Eigen/Dense>
#include <sys/resource.h>
#include <unistd.h>

#include "models/math/causal_attention.hpp"
#include "sim/replay/head_replay.hpp"
#include "tests/support/basic_methods.hpp"
#include "traces/generate.hpp"
#include "traces/trace.hpp"

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
  const std::vector<double> data(16U << 20U, 1.0);  // 128 MiB, far beyond the caches of one core
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

/// Highest resident memory of this process so far, bytes.
double peak_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Replays `layers` layers of a trace head by head, as replay() does on one thread, timing apart
/// what replay() does together. Vectors come from memory: a layer is far beyond the caches.
void bench(const Trace& trace, std::int32_t layers, double gemm, double bandwidth) {
  const TraceInfo& info = trace.info();
  const std::int32_t group = info.n_heads / info.n_kv_heads;
  const auto row = static_cast<std::size_t>(info.tokens * info.head_dim);
  const auto n = static_cast<double>(info.tokens - info.prompt_tokens);
  double reference_time = 0;
  std::map<std::string, double> loop_time;
  std::map<std::string, double> loop_bytes;
  for (std::int32_t l = 0; l < layers; ++l) {
    const TraceLayer vectors = trace.read_layer(l);
    for (std::int32_t h = 0; h < info.n_kv_heads; ++h) {
      const HeadVectors head{
          .q = std::span{vectors.q}.subspan(static_cast<std::size_t>(h * group) * row,
                                            static_cast<std::size_t>(group) * row),
          .keys = std::span{vectors.k}.subspan(static_cast<std::size_t>(h) * row, row),
          .values = std::span{vectors.v}.subspan(static_cast<std::size_t>(h) * row, row),
          .group = group,
          .head_dim = info.head_dim,
          .tokens = info.tokens,
          .prompt = info.prompt_tokens,
          .scale = info.softmax_scale};
      auto start = Clock::now();
      const auto reference = causal_attention(head.q, head.keys, head.values, group, info.head_dim,
                                              info.tokens, info.prompt_tokens, info.softmax_scale);
      reference_time += seconds_since(start);
      PromptScores scores{head};
      for (const double decay : {1.0, 0.98})
        (void)scores.column_sums(decay);  // not part of the loop
      for (const MethodInfo& method_info : test::basic_methods()) {
        const std::string& name = method_info.name;
        if (name == "full" && h > 0) continue;  // one head a layer tells enough
        const auto budget = takes_budget(name) ? std::optional{Budget{0.2, 0}} : std::nullopt;
        const auto method =
            make_method({name, {}, budget}, info.prompt_tokens, {.recorded = info.dtype});
        start = Clock::now();
        const auto series =
            replay_head(as_composed(*method), l, head, reference, scores, nullptr, false);
        loop_time[name] += seconds_since(start);
        for (const HeadCost& cost : series[0].costs) {
          loop_bytes[name] += 2.0 * cost.attended * info.head_dim * sizeof(float);
        }
      }
    }
  }
  // Two products of 2 d FLOPs for each (query, visible key).
  const double pairs =
      0.5 * (static_cast<double>(info.prompt_tokens) + 1.0 + static_cast<double>(info.tokens)) * n;
  const double rate = pairs * info.n_heads * layers * 4 * info.head_dim / reference_time;
  std::printf("%d query heads, %d KV heads: reference %.1f GFLOP/s, %.0f %% of SGEMM\n",
              info.n_heads, info.n_kv_heads, rate / 1e9, 100 * rate / gemm);
  for (const MethodInfo& info_of : test::basic_methods()) {
    const double speed = loop_bytes[info_of.name] / loop_time[info_of.name];
    std::printf("  %-16s step loop %6.2f GB/s, %4.0f %% of streaming read\n", info_of.name.c_str(),
                speed / 1e9, 100 * speed / bandwidth);
  }
  const double layer =
      static_cast<double>(row * static_cast<std::size_t>(info.n_heads + 2 * info.n_kv_heads)) *
      sizeof(float);
  std::printf("  resident at most %.0f MB; one layer in fp32 is %.0f MB\n", peak_resident() / 1e6,
              layer / 1e6);
}

}  // namespace

int main() {
  // 8 layers are generated, 2 replayed: the rest says nothing new and takes minutes.
  const double bandwidth = read_bandwidth();
  const double gemm = sgemm_flops();
  std::printf("one core: SGEMM %.1f GFLOP/s, streaming read %.1f GB/s\n", gemm / 1e9,
              bandwidth / 1e9);
  const auto path = std::filesystem::temp_directory_path() /
                    ("bench-replay-" + std::to_string(::getpid()) + ".safetensors");
  for (const std::int32_t kv_heads : {8, 32}) {
    GenerateOptions options;
    options.layers = 8;
    options.heads = 32;
    options.kv_heads = kv_heads;
    options.head_dim = 128;
    options.tokens = 4096;
    options.prompt_tokens = 2048;
    generate_trace(options, path);
    bench(Trace::open(path), 2, gemm, bandwidth);
    std::filesystem::remove(path);
  }
  return 0;
}
