// An engine's iteration: equal to a decode step and to a prefill where it is one, between the
// larger and the sum of both where it is both, and compiled to the same figures.

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "models/cost/calibration.hpp"
#include "models/cost/mixed.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

/// A latent layer, a layer of experts and one with a window, beside a plain one.
Llm many_kinds() {
  Llm llm = small_llm();
  llm.layers[1].attention = {.n_heads = 8,
                             .n_kv_heads = 8,
                             .head_dim = 48,
                             .v_head_dim = 32,
                             .kv_lora_rank = 64,
                             .q_lora_rank = 0,
                             .rope_head_dim = 16};
  llm.layers[2].mlp.n_experts = 8;
  llm.layers[2].mlp.top_k = 2;
  llm.layers[3].attention.window = 100;
  return llm;
}

/// Traffic in pages of 64 entries: not linear.
class PagedMethod : public FullMethod {
 public:
  [[nodiscard]] StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, double attended,
                                           bool evicts) const override {
    return FullMethod::decode_traffic(layer, shape, recorded, std::ceil(attended / 64) * 64,
                                      evicts);
  }
};

MixedCost graphs_cost(const Step& step, const Roofline& roofline) {
  const StepCost cost = evaluate(step, roofline);
  return {.time = cost.time, .flops = cost.flops, .bytes = cost.bytes};
}

void check_equal(const MixedCost& got, const MixedCost& expected, double epsilon = 1e-9) {
  CHECK(got.time.count() == rel(expected.time.count(), epsilon));
  CHECK(got.flops == rel(expected.flops, epsilon));
  CHECK(got.bytes == rel(expected.bytes, epsilon));
}

/// What each law sees of `in.batch` sequences of one length at their step from `prompt` to
/// `tokens`.
std::vector<DecodeLoad> equal_loads(const CostInput& in, const MixedStepCost& cost,
                                    std::int64_t prompt, std::int64_t tokens) {
  std::vector<DecodeLoad> loads;
  for (const MixedStepCost::Law& law : cost.law_layers()) {
    const DecodeMoment m = decode_moment(in, law.layer, prompt, tokens,
                                         held_entries(in, law.layer, prompt, tokens - 1));
    loads.push_back({.attended = static_cast<double>(in.batch * m.attended),
                     .held = static_cast<double>(in.batch * m.after),
                     .evicting = m.evicts ? in.batch : 0,
                     .rewriting = m.change == CacheChange::kRewrite ? in.batch : 0,
                     .sliding = m.change == CacheChange::kOverwrite && !m.evicts ? in.batch : 0});
  }
  return loads;
}

/// Decodes and chunks drawn at random: no two sequences alike.
struct Drawn {
  std::vector<DecodeLoad> loads;
  std::vector<PrefillChunk> chunks;
  MixedStep step;
};
Drawn draw(std::mt19937_64& dice, std::span<const std::int64_t> windows, std::int64_t most_chunks,
           std::int64_t tokens = 1) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(dice() % static_cast<std::uint64_t>(n));
  };
  Drawn out;
  const std::int64_t n_chunks = below(most_chunks + 1);
  for (std::int64_t i = 0; i < n_chunks; ++i) {
    out.chunks.push_back(
        {.tokens = 1 + below(700), .before = below(3) * below(900), .last = below(2) == 1});
  }
  out.step.decodes = n_chunks == 0 ? 1 + below(40) : below(40);
  out.step.decode_tokens = tokens;
  out.loads.resize(windows.size());
  for (std::int64_t i = 0; i < out.step.decodes; ++i) {
    const std::int64_t held = tokens + below(5000);
    const bool evicts = below(4) == 0;
    const bool rewrites = evicts && below(2) == 0;
    for (std::size_t law = 0; law < windows.size(); ++law) {
      const std::int64_t seen = windows[law] > 0 ? std::min(held, windows[law]) : held;
      DecodeLoad& load = out.loads[law];
      load.attended += static_cast<double>(seen);
      load.held += static_cast<double>(seen);
      load.evicting += evicts ? 1 : 0;
      load.rewriting += rewrites ? 1 : 0;
    }
  }
  out.step.loads = out.loads;
  out.step.chunks = out.chunks;
  return out;
}

std::vector<std::int64_t> windows_of(const Llm& llm, const MixedStepCost& cost) {
  std::vector<std::int64_t> windows;
  for (const MixedStepCost::Law& law : cost.law_layers()) {
    windows.push_back(llm.layers[static_cast<std::size_t>(law.layer)].attention.window);
  }
  return windows;
}

/// Methods of every compaction, with what needs scores at prefill, sides and budgets by layer.
struct Methods {
  FullMethod full;
  PagedMethod paged;
  BoundedMethod ring{{.budget = 333, .side_per_entry = 8, .extra_launches = 4}};
  BoundedMethod gather{
      {.budget = 333,
       .compaction = Compaction::kGather,
       .needs = {.prompt_scores = PromptScoreClass::kLastWindow, .prompt_window = 32},
       .budget_step = 10}};
  BoundedMethod late{{.budget = 333,
                      .needs = {.prompt_scores = PromptScoreClass::kColumnSums,
                                .score_exec = ScoreExec::kFusedTwoPass},
                      .prefill_peak = PrefillPeak::kAllLayers,
                      .layers_alike = true}};
  std::vector<const Method*> all{&full, &paged, &ring, &gather, &late};
};

TEST_CASE("mixed: decodes of equal lengths alone are the decode step") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = many_kinds();
  const Methods methods;
  for (const Stack& stack : builtin_stacks()) {
    const Roofline roofline{gpu, stack, {}};
    for (const Method* method : methods.all) {
      for (const std::int64_t batch : {1, 7}) {
        for (const std::int64_t tokens : {60, 1001, 3000}) {
          const CostInput in{.llm = &llm,
                             .method = method,
                             .stack = &stack,
                             .batch = batch,
                             .tensor_parallel = batch == 7 ? 2 : 1,
                             .allocated = 2048};
          MixedStepCost cost{in, roofline};
          const auto loads = equal_loads(in, cost, tokens - 1, tokens);
          const MixedStep step{.decodes = batch, .loads = loads, .chunks = {}};
          const MixedCost expected = graphs_cost(decode_step(in, tokens - 1, tokens), roofline);
          INFO(stack.name, " ", method->name(), " batch ", batch, " at ", tokens);
          check_equal(graphs_cost(mixed_step(in, step), roofline), expected);
          check_equal(cost.cost(step), expected);
        }
      }
    }
  }
}

TEST_CASE("mixed: one chunk of a whole prompt alone is its prefill") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = many_kinds();
  const Methods methods;
  for (const Stack& stack : builtin_stacks()) {
    const Roofline roofline{gpu, stack, {}};
    for (const Method* method : methods.all) {
      for (const std::int64_t prompt : {1, 90, 1500}) {
        const CostInput in{.llm = &llm, .method = method, .stack = &stack};
        MixedStepCost cost{in, roofline};
        const PrefillChunk whole{.tokens = prompt, .before = 0, .last = true};
        const MixedStep step{.loads = {}, .chunks = {&whole, 1}};
        const MixedCost expected = graphs_cost(prefill_step(in, prompt, {prompt}), roofline);
        INFO(stack.name, " ", method->name(), " prompt ", prompt);
        check_equal(graphs_cost(mixed_step(in, step), roofline), expected);
        check_equal(cost.cost(step), expected);
      }
    }
  }
}

TEST_CASE("mixed: the compiled form is the graphs', whatever the batch") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Gpu& h100 = find_gpu("H100-80GB-SXM");
  const Llm llm = many_kinds();
  const Methods methods;
  std::mt19937_64 dice{3};
  for (const Stack& stack : builtin_stacks()) {
    const Roofline nominal{gpu, stack, {}};
    const Roofline fitted{h100, stack, builtin_calibration()};
    for (const Method* method : methods.all) {
      const CostInput in{.llm = &llm, .method = method, .stack = &stack, .allocated = 2048};
      for (const Roofline* roofline : {&nominal, &fitted}) {
        MixedStepCost cost{in, *roofline};
        const auto windows = windows_of(llm, cost);
        for (int i = 0; i < 4; ++i) {
          const Drawn d = draw(dice, windows, 3, 1 + i % 2);
          INFO(stack.name, " ", method->name(), " case ", i);
          check_equal(cost.cost(d.step), graphs_cost(mixed_step(in, d.step), *roofline));
        }
      }
    }
  }
}

TEST_CASE("mixed: every method of the catalogue") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = llama31_8b();
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  std::mt19937_64 dice{5};
  for (const MethodInfo& info : basic_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.2, .entries = 0};
    const auto method = make_method(spec, 1000, {.recorded = Dtype::kBf16, .shape = shape});
    const CostInput in{.llm = &llm,
                       .method = method.get(),
                       .stack = &stack,
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16};
    MixedStepCost cost{in, roofline};
    const Drawn d = draw(dice, windows_of(llm, cost), 2);
    INFO(info.name);
    check_equal(cost.cost(d.step), graphs_cost(mixed_step(in, d.step), roofline));
  }
}

}  // namespace
}  // namespace kvsim
