// Prints the time to cost one engine iteration, by method and by contents. Exits 1 if the full
// cache with fitted kernels takes more processor time than the gates. Not a test.

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"

namespace {

using namespace kvsim;  // NOLINT

constexpr double kDecodeGateMicros = 0.5;
constexpr double kChunkGateMicros = 1.5;
constexpr std::int64_t kCalls = 200000;

/// Processor time of this process: other programs on the machine do not count.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Timing {
  double first = 0;   // µs per call while tables fill
  double filled = 0;  // µs per call
  double steady = 0;  // µs per call with unchanged loads, as under a budget
};

/// Iterations of a run: sequences arrive, finish and grow, and chunks advance along their prompts.
Timing time_calls(MixedStepCost& cost, bool chunks, double& sink) {
  std::vector<DecodeLoad> loads(static_cast<std::size_t>(cost.layer_class_count()));
  const auto run = [&](std::int64_t equal_calls) {
    std::uint64_t state = 1;
    std::int64_t decodes = 0;
    const auto draw = [&](std::uint64_t n) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      return static_cast<std::int64_t>((state >> 33U) % n);
    };
    const double start = cpu_seconds();
    for (std::int64_t i = 0; i < kCalls; ++i) {
      if (i % equal_calls == 0) {
        decodes = 1 + draw(256);
        const auto attended = static_cast<double>(decodes * (500 + draw(3000)) + draw(100));
        for (DecodeLoad& load : loads) load = {.attended = attended, .held = attended};
      }
      MixedStep step{.decodes = decodes, .loads = loads, .chunks = {}};
      const PrefillChunk chunk{
          .tokens = 1 + draw(2048), .before = 2048 * draw(8), .last = draw(4) == 0};
      if (chunks) step.chunks = {&chunk, 1};
      sink += cost.cost(step).time.count();
    }
    return (cpu_seconds() - start) * 1e6 / static_cast<double>(kCalls);
  };
  Timing out{.first = run(1)};
  out.filled = run(1);
  out.steady = run(20);
  return out;
}

bool bench(const std::string& llm_name, const std::string& stack_name,
           const std::string& method_name, bool gated) {
  const Llm& llm = find_llm(llm_name);
  const Stack& stack = find_stack(stack_name);
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const AttentionSpec& a = llm.layers.front().attention;
  MethodContext site{.recorded = Dtype::kBf16,
                     .shape = {a.n_heads, a.n_kv_heads, a.head_dim},
                     .windows = {},
                     .n_layers = llm.n_layers(),
                     .d_model = llm.d_model,
                     .recorded_inputs = {}};
  for (const LayerSpec& layer : llm.layers) site.windows.push_back(layer.attention.window);
  const auto method = make_method(
      {method_name,
       {},
       takes_budget(method_name) ? std::optional{Budget{.entries = 1000}} : std::nullopt},
      4000, site);
  const CostInput in{.llm = &llm,
                     .method = method.get(),
                     .stack = &stack,
                     .weight_dtype = Dtype::kBf16,
                     .kv_dtype = Dtype::kBf16};
  const Roofline roofline{gpu, stack, builtin_calibration()};
  double sink = 0;
  MixedStepCost cost{in, roofline};
  const Timing decode = time_calls(cost, false, sink);
  const Timing chunk = time_calls(cost, true, sink);
  fmt::print(
      "{:13} {:6} {:12} {:2} laws: decodes {:6.3f} us, with a chunk {:6.3f} us; {:6.3f} us and "
      "{:6.3f} us while tables fill; {:6.3f} us where loads stay{}\n",
      llm.name, stack_name, method_name, cost.layer_class_count(), decode.filled, chunk.filled,
      decode.first, chunk.first, decode.steady, sink > 0 ? "" : "!");
  return !gated || (decode.filled <= kDecodeGateMicros && chunk.filled <= kChunkGateMicros);
}

}  // namespace

int main() {
  bool good = true;
  for (const char* llm : {"llama-3.1-8b", "llama-3.1-70b"}) {
    for (const char* stack : {"vllm", "sglang", "trtllm", "ideal"}) {
      good = bench(llm, stack, "full", true) && good;
    }
  }
  for (const char* llm : {"deepseek-v3", "gemma-3-27b", "mixtral-8x7b"}) {
    good = bench(llm, "vllm", "full", false) && good;
  }
  for (const char* method : {"h2o", "snapkv", "streaming-llm", "pyramidkv", "kivi-2", "quest"}) {
    good = bench("llama-3.1-8b", "vllm", method, false) && good;
  }
  return good ? 0 : 1;
}
