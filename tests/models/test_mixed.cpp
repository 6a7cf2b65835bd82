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
#include "models/methods/method.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/heap.hpp"
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

/// Half of the prompt is kept, judged by one and a half further passes over it (as KVzip's are).
class RepeatingMethod : public PromptFractionMethod {
 public:
  RepeatingMethod() : PromptFractionMethod{0.5} {}
  [[nodiscard]] PrefillExtra prefill_extra(std::int32_t, const LayerShape&, Dtype,
                                           std::int64_t) const override {
    return {.prefill_repeats = 1.5};
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

TEST_CASE("mixed: several whole prompts of one length are the prefill of a batch") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  for (const Llm& llm : {llama31_8b(), find_llm("deepseek-v2-lite"), many_kinds()}) {
    for (const Stack& stack : builtin_stacks()) {
      const Roofline roofline{gpu, stack, builtin_calibration()};
      const CostInput in{.llm = &llm, .method = &full, .stack = &stack, .batch = 3};
      MixedStepCost cost{in, roofline};
      // Within the window: what a prompt's end compresses is a kernel of each prompt's own.
      const std::int64_t prompt = llm.layers.back().attention.window > 0 ? 90 : 333;
      const std::vector<PrefillChunk> chunks(3, {.tokens = prompt, .before = 0, .last = true});
      INFO("d_model ", llm.d_model, " on ", stack.name);
      check_equal(cost.cost({.loads = {}, .chunks = chunks}),
                  graphs_cost(prefill_step(in, prompt, {prompt}), roofline));
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

TEST_CASE("mixed: every method of the catalogue that a model alone settles") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = llama31_8b();
  const MethodSite site{.recorded = Dtype::kBf16,
                        .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                        .windows = {},
                        .n_layers = 32,
                        .d_model = 4096,
                        .recorded_inputs = {}};
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, builtin_calibration()};
  std::mt19937_64 dice{5};
  std::size_t settled = 0, with_law = 0;
  for (const MethodInfo& info : builtin_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.25, .entries = 0};
    std::shared_ptr<const Method> method;
    try {
      method = make_method(spec, 1024, site);
    } catch (const InputError&) {
      continue;  // needs a trace, weights, or a budget of another kind
    }
    ++settled;
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
  CHECK(settled >= 45);
  CHECK(with_law >= 35);
}

/// One law, one length: `decodes` sequences of `held` entries beside chunks.
struct Plain {
  CostInput in;
  MixedStepCost cost;
  Plain(const Llm& llm, const Method& method, const Stack& stack, const Roofline& roofline)
      : in{.llm = &llm,
           .method = &method,
           .stack = &stack,
           .weight_dtype = Dtype::kBf16,
           .kv_dtype = Dtype::kBf16},
        cost{in, roofline} {}

  MixedCost at(std::int64_t decodes, double attended, std::vector<PrefillChunk> chunks,
               std::int64_t tokens = 1) {
    const double all = static_cast<double>(decodes) * attended;
    const std::vector<DecodeLoad> loads(static_cast<std::size_t>(cost.laws()),
                                        DecodeLoad{.attended = all, .held = all});
    return cost.cost(
        {.decodes = decodes, .loads = loads, .chunks = chunks, .decode_tokens = tokens});
  }
};

/// Models of each kind on GPUs with and without room to spare.
struct Case {
  Llm llm;
  const char* gpu;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* gpu : {"H100-80GB-SXM", "A100-80GB-SXM"}) {
    for (const char* llm : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"}) {
      all.push_back({find_llm(llm), gpu});
    }
  }
  return all;
}

TEST_CASE("mixed: time rises with decodes, entries attended, chunk tokens and what is before") {
  const FullMethod full;
  for (const auto& [llm, gpu_name] : cases()) {
    const Gpu& gpu = find_gpu(gpu_name);
    const std::vector<std::int64_t> sizes{1, 7, 64, 300, 1000, 4000, 16000};
    for (const bool fitted : {false, true}) {
      const Stack& stack = find_stack("vllm");
      const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
      Plain plain{llm, full, stack, roofline};
      // Fitted GEMMs choose between tile shapes, so that a larger one can be a little cheaper: at
      // most 0.4 % of an A100's iteration was seen.
      const double slack = fitted ? 0.005 : 1e-12;
      for (const std::int64_t decodes : {0, 1, 30, 200}) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          for (std::size_t j = 0; j < sizes.size(); ++j) {
            const auto at = [&](std::int64_t n, std::int64_t entries, std::int64_t tokens,
                                std::int64_t before) {
              return plain
                  .at(n, static_cast<double>(entries),
                      {{.tokens = tokens, .before = before, .last = false}})
                  .time.count();
            };
            const double here = at(decodes, sizes[i], sizes[j], sizes[i]);
            INFO(llm.name, fitted ? " fitted, " : " nominal, ", decodes, " decodes of ", sizes[i],
                 ", chunk of ", sizes[j]);
            CHECK(at(decodes + 16, sizes[i], sizes[j], sizes[i]) >= here * (1 - slack));
            if (i + 1 < sizes.size()) {
              CHECK(at(decodes, sizes[i + 1], sizes[j], sizes[i]) >= here * (1 - slack));
              CHECK(at(decodes, sizes[i], sizes[j], sizes[i + 1]) >= here * (1 - slack));
            }
            if (j + 1 < sizes.size()) {
              CHECK(at(decodes, sizes[i], sizes[j + 1], sizes[i]) >= here * (1 - slack));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("mixed: no more than decodes and chunk one after the other, no less than the larger") {
  const FullMethod full;
  const Stack& stack = find_stack("vllm");
  for (const auto& [llm, gpu_name] : cases()) {
    const Gpu& gpu = find_gpu(gpu_name);
    for (const bool fitted : {false, true}) {
      const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
      Plain plain{llm, full, stack, roofline};
      // One row more than whole turns of tiles over the SMs takes another turn: at most 2.9 % of an
      // A100's iteration was seen.
      const double slack = fitted ? 0.03 : 1e-12;
      for (const std::int64_t decodes : {1, 16, 200}) {
        for (const std::int64_t tokens : {1, 100, 512, 3000}) {
          for (const std::int64_t before : {0, 5000}) {
            const PrefillChunk chunk{.tokens = tokens, .before = before, .last = true};
            const MixedCost a = plain.at(decodes, 2000, {});
            const MixedCost b = plain.at(0, 0, {chunk});
            const MixedCost both = plain.at(decodes, 2000, {chunk});
            INFO(llm.name, fitted ? " fitted, " : " nominal, ", decodes, " decodes, ", tokens,
                 " tokens after ", before);
            CHECK(both.time.count() <= (a.time + b.time).count() * (1 + slack));
            CHECK(both.time.count() >= std::max(a.time, b.time).count() * (1 - slack));
            CHECK(both.flops == rel(a.flops + b.flops));
            CHECK(both.bytes < a.bytes + b.bytes);
            CHECK(both.bytes > std::max(a.bytes, b.bytes));
          }
        }
      }
    }
  }
}

TEST_CASE("mixed: chunks of a prompt have its arithmetic, and read weights and prefix again") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const FullMethod full;
  Llm windowed = small_llm();
  for (LayerSpec& layer : windowed.layers) layer.attention.window = 300;
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  for (const Llm& llm : {small_llm(), windowed, llama31_8b()}) {
    Plain plain{llm, full, stack, roofline};
    const AttentionSpec& a = llm.layers[0].attention;
    const std::int64_t prompt = 2000;
    const MixedCost whole = plain.at(0, 0, {{.tokens = prompt, .before = 0, .last = true}});
    for (const std::int64_t size : {1999, 1000, 700, 128}) {
      MixedCost sum;
      double passes = 0, prefixes = 0;
      for (std::int64_t before = 0; before < prompt; before += size) {
        const std::int64_t tokens = std::min(size, prompt - before);
        const MixedCost part = plain.at(
            0, 0, {{.tokens = tokens, .before = before, .last = before + tokens == prompt}});
        sum.time += part.time;
        sum.flops += part.flops;
        sum.bytes += part.bytes;
        ++passes;
        prefixes +=
            static_cast<double>(a.window > 0 ? std::min<std::int64_t>(before, a.window) : before);
      }
      // Q, K, V, O and the gated block's three matrices; keys and values of the prefix.
      const double d = llm.d_model;
      const double heads = static_cast<double>(a.n_heads) * a.head_dim;
      const double kv = 2.0 * a.n_kv_heads * a.head_dim;
      const double weights =
          2 * (d * (2 * heads + kv) + 3 * d * static_cast<double>(llm.layers[0].mlp.d_ff));
      const double again = llm.n_layers() * ((passes - 1) * weights + 2 * kv * prefixes);
      INFO("d_model ", llm.d_model, " window ", a.window, ", chunks of ", size);
      CHECK(sum.flops == rel(whole.flops));
      CHECK(sum.bytes == rel(whole.bytes + again));
      CHECK(sum.time >= whole.time);
    }
  }
}

TEST_CASE("mixed: a prompt in chunks takes no less time than at once, by fitted kernels too") {
  const FullMethod full;
  const Stack& stack = find_stack("vllm");
  for (const auto& [llm, gpu_name] : cases()) {
    const Roofline roofline{find_gpu(gpu_name), stack, builtin_calibration()};
    Plain plain{llm, full, stack, roofline};
    for (const std::int64_t prompt : {600, 4000, 30000}) {
      const Seconds whole = plain.at(0, 0, {{.tokens = prompt, .before = 0, .last = true}}).time;
      for (const std::int64_t size : {512, 2048, 8192}) {
        Seconds sum;
        for (std::int64_t before = 0; before < prompt; before += size) {
          const std::int64_t tokens = std::min(size, prompt - before);
          sum += plain
                     .at(0, 0,
                         {{.tokens = tokens, .before = before, .last = before + tokens == prompt}})
                     .time;
        }
        // A long kernel's clock sinks, by its form, more than those of shorter ones in a row do: at
        // most 1.5 % of it was seen.
        INFO(llm.name, " on ", std::string{gpu_name}, ": ", prompt, " tokens in chunks of ", size);
        CHECK(sum.count() >= whole.count() * 0.98);
      }
    }
  }
}

TEST_CASE("mixed: several chunks are one pass over the weights") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, builtin_calibration()};
  Plain plain{llm, full, stack, roofline};
  const PrefillChunk one{.tokens = 200, .before = 300, .last = true};
  const MixedCost single = plain.at(0, 0, {one});
  const MixedCost both = plain.at(0, 0, {one, one});
  CHECK(both.flops == rel(2 * single.flops));
  CHECK(both.time < single.time * 2.0);
  CHECK(both.time > single.time);
  // Ragged ones: one after the other is slower, alone each is faster.
  const PrefillChunk other{.tokens = 900, .before = 0, .last = true};
  const MixedCost alone = plain.at(0, 0, {other});
  const MixedCost ragged = plain.at(0, 0, {one, other});
  CHECK(ragged.flops == rel(single.flops + alone.flops));
  CHECK(ragged.time < single.time + alone.time);
  CHECK(ragged.time > std::max(single.time, alone.time));
  CHECK(ragged.time == plain.at(0, 0, {other, one}).time);
}

TEST_CASE("mixed: the stages of a pipeline are the whole") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Llm llm = many_kinds();
  const Methods methods;
  Stack stack = find_stack("vllm");
  stack.host_per_step = stack.host_per_layer = stack.host_per_launch = Seconds{};
  stack.between_steps = Seconds{};
  stack.between_per_sequence = Seconds{1e-6};
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
        CHECK(stage.laws() == whole.laws());
        const MixedCost part = stage.cost(d.step);
        check_equal(part, graphs_cost(mixed_step(in, d.step, range), roofline));
        sum.time += part.time;
        sum.flops += part.flops;
        sum.bytes += part.bytes;
      }
      INFO(method->name());
      check_equal(sum, whole.cost(d.step));
    }
    CHECK(stage_boundary_bytes(in, 100) == Bytes{100 * llm.d_model * 2});
    CHECK_THROWS_AS((MixedStepCost{in, roofline, {.first = 2, .last = 2}}), ContractError);
    CHECK_THROWS_AS((MixedStepCost{in, roofline, {.first = 0, .last = 5}}), ContractError);
  }
}

TEST_CASE("mixed: verifying a draft costs more than a step and less than as many steps") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  for (const bool fitted : {false, true}) {
    const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
    Plain plain{llm, full, stack, roofline};
    for (const std::int64_t decodes : {1, 8, 32}) {
      const MixedCost one = plain.at(decodes, 3000, {});
      check_equal(plain.at(decodes, 3000, {}, 1), one, 1e-15);
      MixedCost before = one;
      for (std::int64_t q = 2; q <= 8; ++q) {
        const MixedCost many = plain.at(decodes, 3000, {}, q);
        INFO((fitted ? "fitted, " : "nominal, "), decodes, " sequences, ", q, " tokens each");
        CHECK(many.time >= before.time);
        CHECK(many.time.count() < one.time.count() * static_cast<double>(q));
        CHECK(many.bytes < one.bytes * static_cast<double>(q));
        // Each of the new tokens attends to one entry fewer than the next one.
        const double pairs = static_cast<double>(decodes * q * (q - 1)) / 2;
        const AttentionSpec& a = llm.layers[0].attention;
        CHECK(many.flops == rel(one.flops * static_cast<double>(q) -
                                4.0 * llm.n_layers() * a.n_heads * a.head_dim * pairs));
        before = many;
      }
    }
  }
}

TEST_CASE("mixed: laws are one unless windows or budgets differ by layer") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  const auto laws = [&](const Llm& llm, const Method& method) {
    const CostInput in{.llm = &llm, .method = &method, .stack = &stack};
    const MixedStepCost cost{in, roofline};
    std::int32_t layers = 0;
    for (const MixedStepCost::Law& law : cost.law_layers()) layers += law.layers;
    CHECK(layers == llm.n_layers());
    CHECK(static_cast<std::size_t>(cost.laws()) == cost.law_layers().size());
    return cost.laws();
  };
  const FullMethod full;
  const BoundedMethod by_layer{{.budget = 333, .budget_step = 10}};
  CHECK(laws(small_llm(), full) == 1);
  CHECK(laws(find_llm("deepseek-v3"), full) == 1);  // dense layers first, then experts
  CHECK(laws(many_kinds(), full) == 2);
  CHECK(laws(find_llm("gemma-3-27b"), full) == 2);
  CHECK(laws(small_llm(), by_layer) == 4);
}

TEST_CASE("mixed: further passes over a prompt are passes of their own") {
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
  // Its second half: the passes come with it, and are of all of the prompt.
  const PrefillChunk half{.tokens = 1000, .before = 1000, .last = true};
  const PrefillChunk earlier{.tokens = 1000, .before = 1000, .last = false};
  const MixedStep with{.loads = {}, .chunks = {&half, 1}};
  const MixedStep without{.loads = {}, .chunks = {&earlier, 1}};
  check_equal(cost.cost(with), graphs_cost(mixed_step(in, with), roofline));
  const double passes = prefill_passes(in, 2000) - 1;
  CHECK(cost.cost(with).flops - cost.cost(without).flops > prefill.flops * passes / (passes + 1));
}

TEST_CASE("mixed: a known step takes no memory from the heap") {
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
  CHECK(before > start);  // tables fill
  CHECK(after == before);
  CHECK(again.time == first.time);
}

TEST_CASE("mixed: what is no step is a broken promise") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const FullMethod full;
  const UnknownSizeMethod unknown;
  const Llm llm = many_kinds();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  const CostInput in{.llm = &llm, .method = &full, .stack = &stack};
  MixedStepCost cost{in, roofline};
  const DecodeLoad loads[] = {{.attended = 10, .held = 10}, {.attended = 10, .held = 10}};
  CHECK_NOTHROW((void)cost.cost({.decodes = 1, .loads = loads, .chunks = {}}));
  CHECK_THROWS_AS((void)cost.cost({}), ContractError);
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = {loads, 1}, .chunks = {}}),
                  ContractError);
  CHECK_THROWS_AS((void)cost.cost({.decodes = 11, .loads = loads, .chunks = {}}), ContractError);
  const PrefillChunk none{.tokens = 0};
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = loads, .chunks = {&none, 1}}),
                  ContractError);
  const DecodeLoad more[] = {{.attended = 10, .held = 10, .evicting = 2}, loads[1]};
  CHECK_THROWS_AS((void)cost.cost({.decodes = 1, .loads = more, .chunks = {}}), ContractError);
  const CostInput in_unknown{.llm = &llm, .method = &unknown, .stack = &stack};
  MixedStepCost of_unknown{in_unknown, roofline};
  const PrefillChunk whole{.tokens = 10, .before = 0, .last = true};
  CHECK_THROWS_AS((void)of_unknown.cost({.loads = {}, .chunks = {&whole, 1}}), InputError);
}

}  // namespace
}  // namespace kvsim
