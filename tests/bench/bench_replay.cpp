// How near replay comes to what the machine can do: the reference against Eigen's own matrix
// product, each method's step loop against streaming reads; and every method of the catalogue, its
// prompt and its steps, against the full cache (`--catalogue`: that table alone). One core. Not a
// timed test.

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
#include "models/units/error.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
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

/// What a method may cost, in step loops of the full cache: those that search all keys at a merge,
/// or take a second softmax, may take three.
double allowed(const std::string& name) {
  for (const char* slow : {"keepkv", "d2o", "kvmerger", "keyformer"}) {
    if (name.starts_with(slow)) return 3;
  }
  return 2;
}

/// Every method of the catalogue the way replay() runs it: sessions of the heads it decides upon
/// together, prompts learned and compressed first and apart, then the steps alone. Best of three.
void bench_catalogue(const Trace& trace) {
  const TraceInfo& info = trace.info();
  const Rope rope{info.head_dim, *info.rope_theta, *info.rope_style == RopeStyle::kInterleaved};
  TraceInputs inputs{.hidden = info.has_hidden,
                     .output_projection = info.has_output_projection,
                     .rope = true,
                     .repeat = info.repeat_start.has_value(),
                     .per_head = {},
                     .predicted = {}};
  for (const std::string& name : info.scores) inputs.per_head.push_back("score." + name);
  for (const std::string& name : info.decisions) inputs.per_head.push_back("decision." + name);
  LayerBlock block{trace, 0, info.n_layers, inputs, &rope};
  const auto steps = info.tokens - info.prompt_tokens;
  std::printf("\n%-42s %10s %10s %8s\n", "method", "prompt ms", "us a step", "x full");
  double full = 0;
  std::vector<MethodSpec> specs;
  for (const MethodInfo& info_of : builtin_methods()) specs.push_back({info_of.name, {}, {}});
  const auto word = [](const char* text) { return ParamValue{std::string{text}}; };
  // The released code's variants, which keep more than the default does.
  specs.push_back({"morphkv", {{"score_space", word("logit_sum")}}, {}});
  specs.push_back({"morphkv", {{"profile", word("query_head")}}, {}});
  specs.push_back({"morphkv", {{"profile", word("query_head")}, {"fusion", word("max")}}, {}});
  specs.push_back({"morphkv",
                   {{"profile", word("query_head")},
                    {"score_space", word("logit_sum")},
                    {"evict_timing", word("before_attend")}},
                   {}});
  specs.push_back({"d2o", {{"gate", word("rank_mean")}}, {}});
  for (MethodSpec& spec : specs) {
    std::string name = spec.name;
    for (const auto& [key, value] : spec.params) name += " " + to_text(value);
    if (takes_budget(spec.name)) spec.budget = Budget{0.2, 0};
    std::shared_ptr<const Method> method;
    try {
      method = settle_for_trace(spec, info);
    } catch (const InputError& error) {
      std::printf("%-42s %s\n", name.c_str(), error.what());
      continue;
    }
    const ComposedMethod& composed = as_composed(*method);
    double prompt_time = 1e300;
    double step_time = 1e300;
    for (int run = 0; run < 3; ++run) {
      double prompt_sum = 0;
      double step_sum = 0;
      for (const DecisionUnit& unit : block.units(composed)) {
        const auto start = Clock::now();
        // What a method learns from is its own to compute: replay() shares it between methods.
        PromptScores scores = block.fresh_scores(unit);
        CacheSession session{composed, block.place(unit, 0), block.vectors(unit)};
        session.learn(scores);
        // Where an allotment wants the whole layer or model seen, an even one stands for it: the
        // step loop does not know where it came from.
        const auto entries = composed.parts().budget->scope() == BudgetScope::kHead
                                 ? composed.parts().budget->entries(unit.layer)
                                 : std::nullopt;
        session.prefill(scores, {.entries = entries.value_or(info.prompt_tokens / 5)});
        prompt_sum += seconds_since(start);
        const auto first_step = Clock::now();
        for (std::int64_t t = 0; t < steps; ++t) session.step();
        step_sum += seconds_since(first_step);
      }
      prompt_time = std::min(prompt_time, prompt_sum);
      step_time = std::min(step_time, step_sum);
    }
    if (name == "full") full = step_time;
    const double times = full > 0 ? step_time / full : 0;
    std::printf("%-42s %10.1f %10.1f %8.2f%s\n", name.c_str(), prompt_time * 1e3,
                step_time * 1e6 / static_cast<double>(steps), times,
                times > allowed(name) ? "  TOO SLOW" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("bench-replay-" + std::to_string(::getpid()) + ".safetensors");
  GenerateOptions recorded;
  recorded.layers = 4;
  recorded.heads = 8;
  recorded.kv_heads = 2;
  recorded.head_dim = 128;
  recorded.prompt_tokens = 4096;
  recorded.tokens = 4352;
  recorded.with_hidden = true;
  recorded.with_output_projection = true;
  recorded.with_scores = true;
  recorded.with_decisions = true;
  generate_trace(recorded, path);
  bench_catalogue(Trace::open(path));
  std::filesystem::remove(path);
  if (argc > 1 && std::string{argv[1]} == "--catalogue") return 0;
  // 8 layers are generated, 2 replayed: the rest says nothing new and takes minutes.
  const double bandwidth = read_bandwidth();
  const double gemm = sgemm_flops();
  std::printf("one core: SGEMM %.1f GFLOP/s, streaming read %.1f GB/s\n", gemm / 1e9,
              bandwidth / 1e9);
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
