// Compares replay with the limits of the machine: the reference with Eigen's matrix product, each
// method's step loop with streaming reads. Every method of the catalogue, prompt and steps, is
// compared with the full cache in the same run and with its gate. (`--catalogue [REPEATS
// [NAME...]]`: only that table, or part of it; `--loops`: everything except that table.) One core.
// Not a timed test.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <Eigen/Dense>
#include <sys/resource.h>
#include <unistd.h>

#include "models/math/attention/causal_attention.hpp"
#include "models/units/error.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/basic_methods.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace.hpp"

namespace {

using namespace kvsim;
using Clock = std::chrono::steady_clock;

/// Smallest wall time of `runs` calls, seconds.
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
    // Eight sums hide the latency of addition: the loop is limited only by memory.
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

/// Processor seconds of this thread: time of other programs on the core is not included.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The median: the mean of the middle two for an even number of values.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Replays `layers` layers of a trace head by head, like replay() on one thread, with separate
/// times of the parts. Vectors come from memory: a layer is far beyond the caches.
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
        if (name == "full" && h > 0) continue;  // one head per layer is enough
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

/// Gate of a method, in step loops of the full cache: three for methods that search all keys at a
/// merge or take a second softmax.
double allowed(const std::string& name) {
  for (const char* slow : {"keepkv", "d2o", "kvmerger", "keyformer"}) {
    if (name.starts_with(slow)) return 3;
  }
  return 2;
}

/// The sessions of a method over a whole trace, after learning and compression of their prompts.
struct Sessions {
  Sessions(const LayerBlock& block, const ComposedMethod& method, std::int64_t prompt) {
    for (const DecisionUnit& unit : block.units(method)) {
      // Each method computes its own learning inputs here: replay() shares them between methods.
      scores.emplace_back(new PromptScores(block.fresh_scores(unit)));  // it does not move
      all.push_back(
          std::make_unique<CacheSession>(method, block.place(unit, 0), block.vectors(unit)));
      all.back()->learn(*scores.back());
      // If an allotment needs the whole layer or model, a uniform one replaces it: the step loop
      // does not depend on its origin.
      const auto entries = method.parts().budget->scope() == BudgetScope::kHead
                               ? method.parts().budget->entries(unit.layer)
                               : std::nullopt;
      all.back()->prefill(*scores.back(), {.entries = entries.value_or(prompt / 5)});
    }
  }
  /// CPU seconds of `n` steps of every session.
  double steps(std::int64_t n) {
    const double start = cpu_seconds();
    for (const auto& session : all) {
      for (std::int64_t i = 0; i < n; ++i) session->step();
    }
    return cpu_seconds() - start;
  }

  std::vector<std::unique_ptr<PromptScores>> scores;
  std::vector<std::unique_ptr<CacheSession>> all;
};

/// Measurements of a repeat, CPU seconds over all heads.
struct Measured {
  double prompt = 0, steps = 0, full_steps = 0;
};

/// Alternates a few steps of a method with a few of the full cache, so that a changing speed of the
/// machine affects both.
Measured measure(const LayerBlock& block, const ComposedMethod& method, const ComposedMethod& full,
                 const TraceInfo& info) {
  constexpr std::int64_t kTurn = 16;  // steps
  Measured out;
  const double start = cpu_seconds();
  Sessions mine{block, method, info.prompt_tokens};
  out.prompt = cpu_seconds() - start;
  Sessions other{block, full, info.prompt_tokens};
  for (std::int64_t left = info.tokens - info.prompt_tokens; left > 0; left -= kTurn) {
    const std::int64_t n = std::min(left, kTurn);
    out.steps += mine.steps(n);
    out.full_steps += other.steps(n);
  }
  return out;
}

/// Every method of the catalogue as replay() runs it: sessions of the heads that it decides on
/// jointly, first the learning and compression of prompts, timed separately, then the steps. Prints
/// the median of `repeats` ratios to the full cache's steps and whether it is within the method's
/// gate.
void bench_catalogue(const Trace& trace, int repeats, const std::vector<std::string>& names) {
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
  const LayerBlock block{trace, 0, info.n_layers, inputs, &rope};
  const auto steps = info.tokens - info.prompt_tokens;
  std::printf("\nstep loops over the full cache's in the same run, median of %d interleaved runs\n",
              repeats);
  std::printf("%-42s %10s %10s %7s %17s %6s\n", "method", "prompt ms", "us a step", "x full",
              "least..most", "limit");
  const auto full = resolve_for_trace({"full", {}, {}}, info);
  std::vector<MethodSpec> specs;
  for (const MethodInfo& info_of : builtin_methods()) specs.push_back({info_of.name, {}, {}});
  const auto word = [](const char* text) { return ParamValue{std::string{text}}; };
  // The released code's variants, which keep more than the default.
  specs.push_back({"morphkv", {{"score_space", word("logit_sum")}}, {}});
  specs.push_back({"morphkv", {{"profile", word("query_head")}}, {}});
  specs.push_back({"morphkv", {{"profile", word("query_head")}, {"fusion", word("max")}}, {}});
  specs.push_back({"morphkv",
                   {{"profile", word("query_head")},
                    {"score_space", word("logit_sum")},
                    {"evict_timing", word("before_attend")}},
                   {}});
  specs.push_back({"d2o", {{"gate", word("rank_mean")}}, {}});
  std::size_t within = 0, measured = 0;
  std::string slow;
  for (MethodSpec& spec : specs) {
    if (!names.empty() && std::find(names.begin(), names.end(), spec.name) == names.end()) continue;
    std::string name = spec.name;
    for (const auto& [key, value] : spec.params) name += " " + to_text(value);
    std::shared_ptr<const Method> method;
    std::string refusal;
    // Methods that cannot keep as few entries are measured at their smallest budget.
    for (const double budget : {0.2, 0.9}) {
      if (takes_budget(spec.name)) spec.budget = Budget{budget, 0};
      try {
        method = resolve_for_trace(spec, info);
        break;
      } catch (const InputError& error) {
        refusal = error.what();
      }
    }
    if (!method) {
      std::printf("%-42s %s\n", name.c_str(), refusal.c_str());
      continue;
    }
    std::vector<double> prompt, step, ratio;
    for (int run = 0; run < repeats; ++run) {
      const Measured one = measure(block, as_composed(*method), as_composed(*full), info);
      prompt.push_back(one.prompt);
      step.push_back(one.steps);
      ratio.push_back(one.steps / one.full_steps);
    }
    const double times = median(ratio);
    const double limit = allowed(spec.name);
    ++measured;
    if (times <= limit) {
      ++within;
    } else {
      slow += (slow.empty() ? "" : ", ") + name;
    }
    const auto [least, most] = std::minmax_element(ratio.begin(), ratio.end());
    std::printf("%-42s %10.1f %10.1f %7.2f %8.2f..%-7.2f %6.0f  %s\n", name.c_str(),
                median(prompt) * 1e3, median(step) * 1e6 / static_cast<double>(steps), times,
                *least, *most, limit, times <= limit ? "ok" : "TOO SLOW");
    std::fflush(stdout);
  }
  std::printf("%zu of %zu within their limit%s%s\n", within, measured,
              slow.empty() ? "" : "; too slow: ", slow.c_str());
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
  const bool alone = argc > 1 && std::string{argv[1]} == "--catalogue";
  const bool loops = argc > 1 && std::string{argv[1]} == "--loops";
  const int repeats = alone && argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  std::vector<std::string> names;
  for (int i = 3; alone && i < argc; ++i) names.emplace_back(argv[i]);
  if (!loops) bench_catalogue(Trace::open(path), repeats, names);
  std::filesystem::remove(path);
  // Methods that judge a context by its repeat, on a trace with a repeat.
  const std::vector<std::string> judged{"kvzip", "kvzip-plus"};
  const bool asked =
      names.empty() || std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return std::find(judged.begin(), judged.end(), name) != judged.end();
      });
  if (asked && !loops) {
    recorded.prompt_tokens = 2048;
    recorded.tokens = 2 * recorded.prompt_tokens + 1;
    recorded.with_repeat = true;
    generate_trace(recorded, path);
    bench_catalogue(Trace::open(path), repeats, names.empty() ? judged : names);
    std::filesystem::remove(path);
  }
  if (alone) return 0;
  // 8 layers are generated, 2 replayed: the others add no information and take minutes.
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
