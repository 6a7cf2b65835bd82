// Measures replay against the limits of the machine, in processor time of one core: the reference
// and the steps of each method of the catalogue, alternating with Eigen's matrix product on tiles
// of the same size and with a copy. Not a timed test.
//
//   bench_replay [--json] [--repeats N] [--group N] [NAME…]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <Eigen/Dense>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "models/math/tiles/tile_kernels.hpp"
#include "models/units/error.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/replay.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace.hpp"

namespace {

using namespace kvsim;

/// Processor seconds of this thread: time of other programs on the core is not included.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Call>
double seconds_of(Call call) {
  const double start = cpu_seconds();
  call();
  return cpu_seconds() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Rates of the machine: Eigen's products of a tile (scores and outputs of 256 queries over 256
/// keys), and a copy of 64 MiB.
class Machine {
 public:
  explicit Machine(std::int32_t head_dim)
      : queries_{Matrix::Random(kTile, head_dim)},
        keys_{Matrix::Random(kTile, head_dim)},
        scores_{Matrix::Random(kTile, kTile)},
        out_{Matrix::Random(kTile, head_dim)},
        from_(kCopied, 'a'),
        to_(kCopied, 'b') {}

  /// Measures again if the measured work has run for another 20 ms.
  void follow(double seconds) {
    if (flops_ > 0 && seconds < followed_ + 0.02) return;
    followed_ = seconds;
    measure();
  }
  [[nodiscard]] double product_rate() const { return flops_ / product_seconds_; }
  [[nodiscard]] double copy_rate() const { return copied_ / copy_seconds_; }

 private:
  /// Adds about 10 ms of products and a copy to the sums.
  void measure() {
    constexpr int kTimes = 20;
    product_seconds_ += seconds_of([&] {
      for (int i = 0; i < kTimes; ++i) {
        scores_.noalias() = queries_ * keys_.transpose();
        out_.noalias() = scores_ * keys_;
      }
    });
    flops_ += kTimes * 4.0 * kTile * kTile * static_cast<double>(queries_.cols());
    copy_seconds_ += seconds_of([&] { std::memcpy(to_.data(), from_.data(), kCopied); });
    from_[0] = to_[1];
    copied_ += kCopied;
  }

  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  static constexpr int kTile = 256;
  static constexpr std::size_t kCopied = 64U << 20U;
  Matrix queries_, keys_, scores_, out_;
  std::vector<char> from_, to_;
  double flops_ = 0, product_seconds_ = 0, copied_ = 0, copy_seconds_ = 0, followed_ = 0;
};

/// Work of attention and its time, with the machine's rates measured in the same period.
struct Rates {
  double flops = 0, bytes = 0, seconds = 0, product = 0, copy = 0;
};

Rates measure_reference(const LayerBlock& block, const TraceInfo& info) {
  Machine machine{info.head_dim};
  Rates rates;
  const auto max = static_cast<std::int64_t>(
      block_steps(static_cast<std::size_t>(info.n_heads / info.n_kv_heads)));
  for (const HeadVectors& head : block.layer(block.first()).heads) {
    RunningAttention attention{head.group, head.head_dim, head.scale};
    for (std::int64_t at = head.prompt; at < head.tokens; at += max) {
      const auto steps = static_cast<std::size_t>(std::min(max, head.tokens - at));
      const std::size_t rows = steps * static_cast<std::size_t>(head.group);
      std::vector<float> out(rows * static_cast<std::size_t>(head.head_dim));
      std::vector<double> log_sum(rows);
      rates.seconds += seconds_of([&] {
        attend_causally(attention, {head.q, head.keys, head.values, head.head_dim, head.tokens}, at,
                        steps, out, log_sum);
      });
      machine.follow(rates.seconds);
      for (std::size_t i = 0; i < steps; ++i) {
        const double seen = static_cast<double>(at) + static_cast<double>(i) + 1;
        rates.flops += 4.0 * seen * head.head_dim * head.group;
        rates.bytes += 8.0 * seen * head.head_dim;
      }
    }
  }
  rates.product = machine.product_rate();
  rates.copy = machine.copy_rate();
  return rates;
}

/// Runs the steps of every session of `method` after its prompt, a block at a time.
Rates measure_steps(const LayerBlock& block, const ComposedMethod& method, const TraceInfo& info) {
  Machine machine{info.head_dim};
  Rates rates;
  for (const DecisionUnit& unit : block.units(method)) {
    PromptScores scores = block.fresh_scores(unit);
    CacheSession session{method, block.place(unit, 0), block.vectors(unit)};
    session.learn(scores);
    // Allotments that need the whole layer or model are replaced by a uniform one: the steps do not
    // depend on their origin.
    const auto entries = method.parts().budget->scope() == BudgetScope::kHead
                             ? method.parts().budget->entries(unit.layer)
                             : std::nullopt;
    session.prefill(scores, {.entries = entries.value_or(info.prompt_tokens / 5)});
    for (std::int64_t left = info.tokens - info.prompt_tokens; left > 0;) {
      double attended = 0;
      std::int64_t steps = 0;
      rates.seconds += seconds_of([&] {
        steps = session.start_block(left);
        for (std::int64_t i = 0; i < steps; ++i) {
          session.step();
          for (std::size_t h = 0; h < session.size(); ++h) {
            attended += static_cast<double>(session.max_read(h));
          }
        }
      });
      machine.follow(rates.seconds);
      rates.flops += 4.0 * attended * info.head_dim * session.place().group;
      rates.bytes += 8.0 * attended * info.head_dim;
      left -= steps;
    }
  }
  rates.product = machine.product_rate();
  rates.copy = machine.copy_rate();
  return rates;
}

struct Row {
  std::string name;
  std::vector<Rates> runs;
  template <class Value>
  [[nodiscard]] double middle(Value value) const {
    std::vector<double> all;
    for (const Rates& each : runs) all.push_back(value(each));
    return median(std::move(all));
  }
};

nlohmann::ordered_json json_of(const Row& row) {
  return {
      {"name", row.name},
      {"gflops", row.middle([](const Rates& r) { return r.flops / r.seconds / 1e9; })},
      {"gb_per_s", row.middle([](const Rates& r) { return r.bytes / r.seconds / 1e9; })},
      {"product_gflops", row.middle([](const Rates& r) { return r.product / 1e9; })},
      {"copy_gb_per_s", row.middle([](const Rates& r) { return r.copy / 1e9; })},
      {"share_of_product",
       row.middle([](const Rates& r) { return r.flops / r.seconds / r.product; })},
      {"share_of_copy", row.middle([](const Rates& r) { return r.bytes / r.seconds / r.copy; })}};
}

std::shared_ptr<const Method> resolve_somehow(MethodSpec spec, const TraceInfo& info) {
  // Methods that cannot keep as few entries are measured at their smallest budget.
  for (const double budget : {0.2, 0.9}) {
    if (takes_budget(spec.name)) spec.budget = Budget{budget, 0};
    try {
      return resolve_for_trace(spec, info);
    } catch (const InputError& error) {
      if (budget > 0.5) std::fprintf(stderr, "%s: %s\n", spec.name.c_str(), error.what());
    }
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  int repeats = 3, group = 4;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if ((word == "--repeats" || word == "--group") && i + 1 < argc) {
      (word == "--repeats" ? repeats : group) = std::max(1, std::atoi(argv[++i]));
    } else {
      names.push_back(word);
    }
  }
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("bench-replay-{}.safetensors", ::getpid());
  GenerateOptions recorded;
  recorded.layers = 4;  // also for methods that do not compress the first layers
  recorded.kv_heads = 1;
  recorded.heads = group;
  recorded.head_dim = 128;
  recorded.prompt_tokens = 4096;
  recorded.tokens = 4352;
  recorded.with_hidden = true;
  recorded.with_output_projection = true;
  recorded.with_scores = true;
  recorded.with_decisions = true;
  generate_trace(recorded, path);
  const Trace trace = Trace::open(path);
  std::filesystem::remove(path);
  const TraceInfo& info = trace.info();
  const Rope rope{info.head_dim, *info.rope_theta, *info.rope_style == RopeStyle::kInterleaved};
  TraceInputs inputs{.hidden = true,
                     .output_projection = true,
                     .rope = true,
                     .repeat = false,
                     .per_head = {},
                     .predicted = {}};
  for (const std::string& name : info.scores) inputs.per_head.push_back("score." + name);
  for (const std::string& name : info.decisions) inputs.per_head.push_back("decision." + name);
  const LayerBlock block{trace, 0, info.n_layers, inputs, &rope};
  nlohmann::ordered_json out{{"schema", "kvsim.bench_replay/1"},
                             {"instructions", tile_kernels().name},
                             {"query_heads_per_kv_head", group},
                             {"methods", nlohmann::ordered_json::array()}};
  if (!json) {
    std::printf("%s, %d query heads a KV head, medians of %d\n%-24s %8s %8s %9s %8s %8s %8s\n",
                tile_kernels().name, group, repeats, "method", "GFLOP/s", "GB/s", "product",
                "share", "copy", "share");
  }
  const auto report = [&](const Row& row) {
    const nlohmann::ordered_json one = json_of(row);
    out["methods"].push_back(one);
    if (json) return;
    const auto number = [&](const char* key) { return one.at(key).get<double>(); };
    std::printf("%-24s %8.1f %8.1f %9.1f %7.0f%% %8.1f %7.0f%%\n", row.name.c_str(),
                number("gflops"), number("gb_per_s"), number("product_gflops"),
                100 * number("share_of_product"), number("copy_gb_per_s"),
                100 * number("share_of_copy"));
    std::fflush(stdout);
  };
  Row reference{"reference", {}};
  for (int i = 0; i < repeats; ++i) reference.runs.push_back(measure_reference(block, info));
  report(reference);
  for (const MethodInfo& each : builtin_methods()) {
    if (!names.empty() && std::find(names.begin(), names.end(), each.name) == names.end()) continue;
    const auto method = resolve_somehow({each.name, {}, {}}, info);
    if (!method) continue;
    Row row{each.name, {}};
    for (int i = 0; i < repeats; ++i) {
      row.runs.push_back(measure_steps(block, as_composed(*method), info));
    }
    report(row);
  }
  if (json) std::printf("%s\n", out.dump(2).c_str());
  return 0;
}
