// The compiled decode step equals its graph up to rounding.

#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "models/cost/compiled/compiled.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

/// Traffic in pages of 64 entries, which is not linear.
class PagedMethod : public FullMethod {
 public:
  [[nodiscard]] StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape,
                                           Dtype recorded, double attended,
                                           bool evicts) const override {
    return FullMethod::decode_traffic(layer, shape, recorded, std::ceil(attended / 64) * 64,
                                      evicts);
  }
};

/// Side data in groups of 32 entries, like a quantised store's scales.
class GroupedSideMethod : public FullMethod {
 public:
  [[nodiscard]] CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                      std::int64_t prompt_entries,
                                      std::int64_t entries) const override {
    CacheBytes all = FullMethod::rows_bytes(layer, shape, recorded, prompt_entries, entries);
    all.side = Bytes{(entries + 31) / 32 * 4} * stored_heads(shape);
    return all;
  }
};

/// Keys and values stored per query head, as released H2O and SnapKV do.
class QueryHeadMethod : public FullMethod {
 public:
  [[nodiscard]] std::int32_t stored_heads(const LayerShape& shape) const override {
    return shape.n_heads;
  }
};

Llm latent_and_windowed() {
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
  return llm;
}

void check_same(const CostInput& in, const Roofline& roofline, std::int32_t layer,
                const DecodeState& moment) {
  const CompiledLayer compiled{in, layer, moment.change, moment.evicts, roofline};
  const OpGraph graph = decode_layer(in, layer, moment);
  const GraphCost expected = evaluate(graph, roofline);
  const GraphCost got = compiled.cost(moment);
  CHECK(got.time.count() == rel(expected.time.count()));
  CHECK(got.flops == rel(expected.flops));
  CHECK(got.bytes == rel(expected.bytes));
  CHECK(compiled.alive_peak(moment) == graph.alive_peak().bytes);
}

TEST_CASE("compiled layers equal their graphs at any entries") {
  const Gpu gpu = a800();
  const Llm llms[] = {small_llm(), llama31_8b(), latent_and_windowed()};
  const FullMethod full;
  const GroupedSideMethod grouped;
  const BoundedMethod ring{{.budget = 999, .side_per_entry = 8, .extra_launches = 4}};
  const BoundedMethod gather{{.budget = 999, .compaction = Compaction::kGather}};
  const QueryHeadMethod query_head;
  const Method* methods[] = {&full, &grouped, &query_head, &ring, &gather};
  std::mt19937_64 dice{7};
  for (const Stack& stack : builtin_stacks()) {
    const Roofline roofline{gpu, stack, {}};
    for (const Llm& llm : llms) {
      for (const Method* method : methods) {
        for (const auto& [weights, kv] :
             {std::pair{Dtype::kFp16, Dtype::kFp16}, std::pair{Dtype::kFp32, Dtype::kFp32},
              std::pair{Dtype::kInt4, Dtype::kFp8E4m3}}) {
          for (int i = 0; i < 6; ++i) {
            const CostInput in{.llm = &llm,
                               .method = method,
                               .stack = &stack,
                               .weight_dtype = weights,
                               .kv_dtype = kv,
                               .batch = 1 + static_cast<std::int64_t>(dice() % 9)};
            const auto before = 1 + static_cast<std::int64_t>(dice() % 200000);
            const auto layer = static_cast<std::int32_t>(dice() % 3);
            INFO(stack.name, " ", method->name(), " layer ", layer, " before ", before);
            check_same(in, roofline, layer,
                       {.attended = before + 1, .before = before, .after = before + 1});
            if (method == &ring || method == &gather) {
              check_same(
                  in, roofline, layer,
                  {.attended = before + 1,
                   .before = before,
                   .after = before,
                   .change = method == &ring ? CacheChange::kOverwrite : CacheChange::kRewrite,
                   .evicts = true});
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every linear method compiles") {
  const Gpu gpu = a800();
  const Llm llm = llama31_8b();
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
  for (const MethodInfo& info : test::basic_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.2, .entries = 0};
    const auto method = make_method(spec, 10000, {.recorded = Dtype::kBf16, .shape = shape});
    for (const Stack& stack : builtin_stacks()) {
      const Roofline roofline{gpu, stack, {}};
      const CostInput in{.llm = &llm,
                         .method = method.get(),
                         .stack = &stack,
                         .weight_dtype = Dtype::kBf16,
                         .kv_dtype = Dtype::kBf16,
                         .batch = 3};
      INFO(info.name, " on ", stack.name);
      const std::int64_t held = held_entries(in, 0, 10000, 10000);
      const DecodeState moment = decode_moment(in, 0, 10000, 10001, held);
      check_same(in, roofline, 0, moment);
    }
  }
}

// For a format that is not linear, only the middle of a step's graph is rebuilt.
TEST_CASE("formats with separate costs match their graphs at every later step") {
  const Gpu gpu = a800();
  const Llm llm = llama31_8b();
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
  constexpr std::int64_t kPrompt = 700;
  for (const Stack& stack : builtin_stacks()) {
    const Roofline roofline{gpu, stack, {}};
    for (const std::string name : {"int8", "kivi-2", "gear", "think", "minicache", "quest",
                                   "shadowkv", "arkvale", "infllm"}) {
      const auto method = make_method(
          {.name = name, .params = {}, .budget = std::nullopt}, kPrompt,
          {.recorded = Dtype::kFp16, .shape = shape, .windows = {}, .n_layers = llm.n_layers()});
      const CostInput in{
          .llm = &llm, .method = method.get(), .stack = &stack, .batch = 3, .prompt = kPrompt};
      for (const std::int32_t layer : {0, 20}) {
        INFO(stack.name, " ", name, " layer ", layer);
        const CompiledLayer compiled{in, layer, CacheChange::kGrow, false, roofline};
        CHECK_FALSE(compiled.is_linear());
        for (const std::int64_t n : {701, 702, 736, 768, 4096, 99999}) {
          const DecodeState moment{.attended = n, .before = n - 1, .after = n};
          const GraphCost expected = evaluate(decode_layer(in, layer, moment), roofline);
          const GraphCost got = compiled.cost(moment);
          if (std::isinf(expected.time.count())) {  // only kernels, without products
            CHECK(got.time == expected.time);
          } else {
            CHECK(got.time.count() == rel(expected.time.count()));
          }
          CHECK(compiled.time(moment) == got.time);
          CHECK(got.flops == rel(expected.flops));
          CHECK(got.bytes == rel(expected.bytes));
          CHECK(got.at_peak.count() == rel(expected.at_peak.count()));
        }
      }
    }
  }
}

TEST_CASE("traffic that is not linear is detected and evaluated on the graph") {
  const Gpu gpu = a800();
  const Llm llm = small_llm();
  const PagedMethod paged;
  const Stack& stack = find_stack("ideal");
  const Roofline roofline{gpu, stack, {}};
  const CostInput in{.llm = &llm, .method = &paged, .stack = &stack};
  CHECK_FALSE(CompiledLayer{in, 0, CacheChange::kGrow, false, roofline}.is_linear());
  for (const std::int64_t n : {1, 63, 64, 65, 12345}) {
    check_same(in, roofline, 0, {.attended = n, .before = n - 1, .after = n});
  }
}

TEST_CASE("few heads do not fill the GPU if keys are not split") {
  const Gpu gpu = a800();  // 108 processors
  const Llm llm = llama2_7b();
  const FullMethod full;
  Stack stack = find_stack("ideal");
  const auto attention_time = [&] {
    const CostInput in{.llm = &llm, .method = &full, .stack = &stack};
    const Roofline roofline{gpu, stack, {}};
    const OpGraph graph = decode_layer(in, 0, {.attended = 20001, .before = 20000, .after = 20001});
    double time = 0;
    for (OpIndex i = 0; i < graph.size(); ++i) {
      if (graph.op(i).family == OpFamily::kDecodeAttention) {
        time += roofline.time(graph.op(i)).count();
      }
    }
    return time;
  };
  const double filled = attention_time();
  stack.splits_keys = false;
  CHECK(attention_time() == rel(filled * 108 / 32));
}

}  // namespace
}  // namespace kvsim
