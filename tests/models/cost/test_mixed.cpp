// An engine's iteration: equal to a decode step or a prefill if it consists of one, compiled form
// equal to its graphs, and equal to the sum of a pipeline's stages.

#include <memory>
#include <random>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/heap.hpp"
#include "tests/support/mixed.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

/// Half of the prompt is kept and scored in one and a half further passes (as in KVzip).
class RepeatingMethod : public PromptFractionMethod {
 public:
  RepeatingMethod() : PromptFractionMethod{0.5} {}
  [[nodiscard]] PrefillExtra prefill_extra(std::int32_t, const LayerShape&, Dtype,
                                           std::int64_t) const override {
    return {.prefill_repeats = 1.5};
  }
};

TEST_CASE("decodes of equal lengths without chunks are the decode step") {
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

TEST_CASE("stacks of plain PyTorch add the same time to a step and to an iteration") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = llama31_8b();
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                           .windows = {},
                           .n_layers = 32,
                           .d_model = 4096};
  const Params rolled{{"positions", std::string{"rerotate"}}};
  for (const MethodSpec& spec :
       {MethodSpec{"streaming-llm", rolled, Budget{0, 800}},
        MethodSpec{"h2o", rolled, Budget{0, 800}}, MethodSpec{"zeromerge", {}, Budget{0, 800}},
        MethodSpec{"kivi-2", {}, {}}}) {
    const auto method = make_method(spec, 1024, site);
    for (const Stack& stack : builtin_stacks()) {
      if (stack.growth == CacheGrowth::kPaged) continue;
      const Roofline roofline{gpu, stack, {}};
      const CostInput in{
          .llm = &llm, .method = method.get(), .stack = &stack, .batch = 5, .prompt = 1024};
      MixedStepCost cost{in, roofline};
      const auto loads = equal_loads(in, cost, 1500, 1501);
      const MixedStep step{.decodes = 5, .loads = loads, .chunks = {}};
      const MixedCost expected = graphs_cost(decode_step(in, 1500, 1501), roofline);
      INFO(stack.name, " ", spec.name);
      check_equal(graphs_cost(mixed_step(in, step), roofline), expected);
      check_equal(cost.cost(step), expected);
    }
  }
}

TEST_CASE("a single chunk of a whole prompt is its prefill") {
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

TEST_CASE("several whole prompts of one length are the prefill of a batch") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  for (const Llm& llm : {llama31_8b(), find_llm("deepseek-v2-lite"), many_kinds()}) {
    for (const Stack& stack : builtin_stacks()) {
      const Roofline roofline{gpu, stack, builtin_calibration()};
      const CostInput in{.llm = &llm, .method = &full, .stack = &stack, .batch = 3};
      MixedStepCost cost{in, roofline};
      // Within the window: compression at a prompt's end is a separate kernel per prompt.
      const std::int64_t prompt = llm.layers.back().attention.window > 0 ? 90 : 333;
      const std::vector<PrefillChunk> chunks(3, {.tokens = prompt, .before = 0, .last = true});
      INFO("d_model ", llm.d_model, " on ", stack.name);
      check_equal(cost.cost({.loads = {}, .chunks = chunks}),
                  graphs_cost(prefill_step(in, prompt, {prompt}), roofline));
    }
  }
}

TEST_CASE("the compiled form equals the graphs for any batch") {
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
          const MixedCost got = cost.cost(d.step);
          check_equal(got, graphs_cost(mixed_step(in, d.step), *roofline));
          CHECK(cost.cost(d.step).time == got.time);
        }
      }
    }
  }
}

TEST_CASE("the compiled form equals the graphs for every method that needs only a model") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = llama31_8b();
  const MethodContext site{.recorded = Dtype::kBf16,
                           .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                           .windows = {},
                           .n_layers = 32,
                           .d_model = 4096,
                           .recorded_inputs = {}};
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, builtin_calibration()};
  std::mt19937_64 dice{5};
  std::size_t resolved = 0, with_law = 0;
  for (const MethodInfo& info : builtin_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.25, .entries = 0};
    std::shared_ptr<const Method> method;
    try {
      method = make_method(spec, 1024, site);
    } catch (const InputError&) {
      continue;  // needs a trace, weights, or another kind of budget
    }
    ++resolved;
    const CostInput in{.llm = &llm,
                       .method = method.get(),
                       .stack = &stack,
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16};
    MixedStepCost cost{in, roofline};
    Drawn d = draw(dice, windows_of(llm, cost), 2);
    bool law = true;
    for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
      law = law && method->entries_held(l, 1024, 1024).has_value();
    }
    with_law += law ? 1 : 0;
    for (PrefillChunk& chunk : d.chunks) chunk.last = chunk.last && law;
    INFO(info.name);
    check_equal(cost.cost(d.step), graphs_cost(mixed_step(in, d.step), roofline));
  }
  CHECK(resolved >= 45);
  CHECK(with_law >= 35);
}

TEST_CASE("the stages of a pipeline add up to the whole") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = many_kinds();
  const Methods methods;
  Stack stack = find_stack("vllm");
  stack.host_per_step = stack.host_per_layer = stack.host_per_launch = Seconds{};
  stack.inter_step_overhead = Seconds{};
  stack.inter_step_per_sequence = Seconds{1e-6};
  const Roofline roofline{gpu, stack, {}};
  std::mt19937_64 dice{11};
  for (const Method* method : methods.all) {
    const CostInput in{.llm = &llm, .method = method, .stack = &stack};
    MixedStepCost whole{in, roofline};
    const LayerRange front{.first = 0, .last = 1, .embedding = true, .head = false};
    const LayerRange middle{.first = 1, .last = 3, .embedding = false, .head = false};
    const LayerRange back{.first = 3, .last = 4, .embedding = false, .head = true};
    for (int i = 0; i < 10; ++i) {
      const Drawn d = draw(dice, windows_of(llm, whole), 2);
      MixedCost sum;
      for (const LayerRange& range : {front, middle, back}) {
        MixedStepCost stage{in, roofline, range};
        CHECK(stage.layer_class_count() == whole.layer_class_count());
        const MixedCost part = stage.cost(d.step);
        check_equal(part, graphs_cost(mixed_step(in, d.step, range), roofline));
        sum.time += part.time;
        sum.flops += part.flops;
        sum.bytes += part.bytes;
        sum.at_peak += part.at_peak;
      }
      INFO(method->name());
      check_equal(sum, whole.cost(d.step));
    }
    CHECK(stage_boundary_bytes(in, 100) == Bytes{100 * llm.d_model * 2});
    CHECK_THROWS_AS((MixedStepCost{in, roofline, {.first = 2, .last = 2}}), ContractError);
    CHECK_THROWS_AS((MixedStepCost{in, roofline, {.first = 0, .last = 5}}), ContractError);
  }
}

TEST_CASE("there is one layer class unless caches or budgets differ by layer") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  const auto laws = [&](const Llm& llm, const Method& method) {
    const CostInput in{.llm = &llm, .method = &method, .stack = &stack};
    const MixedStepCost cost{in, roofline};
    std::int32_t layers = 0;
    for (const MixedStepCost::LayerClass& one : cost.layer_classes()) layers += one.layers;
    CHECK(layers == llm.n_layers());
    CHECK(static_cast<std::size_t>(cost.layer_class_count()) == cost.layer_classes().size());
    return cost.layer_class_count();
  };
  const FullMethod full;
  const BoundedMethod by_layer{{.budget = 333, .budget_step = 10}};
  CHECK(laws(small_llm(), full) == 1);
  CHECK(laws(find_llm("deepseek-v3"), full) == 1);  // dense layers first, then experts
  CHECK(laws(many_kinds(), full) == 3);
  CHECK(laws(find_llm("qwen3-next-80b-a3b"), full) == 2);
  CHECK(laws(find_llm("gemma-3-27b"), full) == 2);
  CHECK(laws(small_llm(), by_layer) == 4);
}

TEST_CASE("further passes over a prompt are separate passes") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  const RepeatingMethod method;
  const CostInput in{.llm = &llm, .method = &method, .stack = &stack};
  REQUIRE(prefill_passes(in, 2000) == 2.5);
  MixedStepCost cost{in, roofline};
  const PrefillChunk whole{.tokens = 2000, .before = 0, .last = true};
  const MixedStep alone{.loads = {}, .chunks = {&whole, 1}};
  const MixedCost prefill = graphs_cost(prefill_step(in, 2000, {2000}), roofline);
  check_equal(cost.cost(alone), prefill);
  check_equal(graphs_cost(mixed_step(in, alone), roofline), prefill);
  // The second half: the passes run with it and cover the whole prompt.
  const PrefillChunk half{.tokens = 1000, .before = 1000, .last = true};
  const PrefillChunk earlier{.tokens = 1000, .before = 1000, .last = false};
  const MixedStep with{.loads = {}, .chunks = {&half, 1}};
  const MixedStep without{.loads = {}, .chunks = {&earlier, 1}};
  check_equal(cost.cost(with), graphs_cost(mixed_step(in, with), roofline));
  const double passes = prefill_passes(in, 2000) - 1;
  CHECK(cost.cost(with).flops - cost.cost(without).flops > prefill.flops * passes / (passes + 1));
}

TEST_CASE("a known step allocates nothing from the heap") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, builtin_calibration()};
  const CostInput in{.llm = &llm, .method = &full, .stack = &stack};
  MixedStepCost cost{in, roofline};
  const DecodeLoad load{.attended = 100000, .held = 100000};
  const PrefillChunk chunk{.tokens = 300, .before = 512, .last = true};
  const MixedStep step{.decodes = 50, .loads = {&load, 1}, .chunks = {&chunk, 1}};
  const std::int64_t start = heap_allocations();
  const MixedCost first = cost.cost(step);
  const std::int64_t before = heap_allocations();
  const MixedCost again = cost.cost(step);
  const std::int64_t after = heap_allocations();
  CHECK(before > start);  // tables are filled
  CHECK(after == before);
  CHECK(again.time == first.time);
}

TEST_CASE("an invalid step is a broken promise") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const FullMethod full;
  const UnknownSizeMethod unknown;
  const Llm llm = many_kinds();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  const CostInput in{.llm = &llm, .method = &full, .stack = &stack};
  MixedStepCost cost{in, roofline};
  const DecodeLoad load{.attended = 10, .held = 10};
  const DecodeLoad loads[] = {load, load, load};
  CHECK_NOTHROW((void)cost.cost({.decodes = 1, .loads = loads, .chunks = {}}));
  CHECK_THROWS_AS((void)cost.cost({}), ContractError);
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = {loads, 1}, .chunks = {}}),
                  ContractError);
  CHECK_THROWS_AS((void)cost.cost({.decodes = 11, .loads = loads, .chunks = {}}), ContractError);
  const PrefillChunk none{.tokens = 0};
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = loads, .chunks = {&none, 1}}),
                  ContractError);
  const DecodeLoad more[] = {{.attended = 10, .held = 10, .evicting = 2}, load, load};
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = more, .chunks = {}}), ContractError);
  const CostInput in_unknown{.llm = &llm, .method = &unknown, .stack = &stack};
  MixedStepCost of_unknown{in_unknown, roofline};
  const PrefillChunk whole{.tokens = 10, .before = 0, .last = true};
  CHECK_THROWS_AS((void)of_unknown.cost({.loads = {}, .chunks = {&whole, 1}}), InputError);
}

}  // namespace
}  // namespace kvsim
