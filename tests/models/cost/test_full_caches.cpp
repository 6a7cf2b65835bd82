// A full cache on stacks that concatenate: the new entry is also in a longer copy.

#include <string>
#include <string_view>
#include <utility>

#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/graphs.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

bool concatenates(const Stack& stack) {
  return stack.growth == CacheGrowth::kConcatLayer || stack.growth == CacheGrowth::kConcatAll;
}

double concat_bytes(const OpGraph& graph) {
  double bytes = 0;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.family == OpFamily::kConcatCopy) bytes += op.bytes_read + op.bytes_written;
  }
  return bytes;
}

TEST_CASE("a full cache costs the same copy as a growing one, only on concatenating stacks") {
  const Llm llm = llama31_8b();
  for (const Stack& stack : builtin_stacks()) {
    for (const Compaction how : {Compaction::kRing, Compaction::kSwap, Compaction::kGather}) {
      const BoundedMethod bounded{{.budget = 1000, .compaction = how}};
      const FullMethod all;
      const CostInput in{.llm = &llm, .method = &bounded, .stack = &stack};
      const CostInput growing{.llm = &llm, .method = &all, .stack = &stack};
      const DecodeState full = decode_moment(in, 0, 2000, 2001, 1000);
      const DecodeState grows{.attended = 1001, .before = 1000, .after = 1001};
      const OpGraph graph = decode_layer(in, 0, full);
      const OpGraph other = decode_layer(growing, 0, grows);
      INFO(stack.name);
      CHECK(full.attended == 1001);
      // By hand: keys and values of 1,001 entries of 8 heads of 128 channels, read and written.
      CHECK(concat_bytes(graph) == (concatenates(stack) ? 2 * 2 * 1001 * 8 * 128 * 2 : 0));
      CHECK(concat_bytes(graph) == concat_bytes(other));
      // Callers that hold old caches also hold the old caches of full layers.
      CHECK(cache_after_step(in, 0, full).total() == cache_after_step(growing, 0, grows).total());
      // The cache after the step equals the entries that the method holds.
      Bytes held;
      for (const Tensor& tensor : graph.tensors()) {
        if (tensor.owner == Owner::kKvCache && tensor.last >= graph.size()) held += tensor.bytes;
      }
      if (!is_preallocated(stack)) CHECK(held == layer_cache(in, 0, 1000).total());
    }
  }
}

TEST_CASE("a full window is concatenated as well") {
  Llm llm = llama31_8b();
  for (LayerSpec& layer : llm.layers) layer.attention.window = 500;
  const FullMethod all;
  for (const Stack& stack : builtin_stacks()) {
    const CostInput in{.llm = &llm, .method = &all, .stack = &stack};
    INFO(stack.name);
    if (!stack.window_pools) {
      const DecodeState all_tokens = decode_moment(in, 0, 2000, 2001, 2000);
      CHECK(all_tokens.attended == 500);
      CHECK(all_tokens.after == 2001);
      continue;
    }
    const DecodeState full = decode_moment(in, 0, 2000, 2001, 500);
    CHECK(full.attended == 500);
    CHECK(concat_bytes(decode_layer(in, 0, full)) ==
          (concatenates(stack) ? 2 * 2 * 501 * 8 * 128 * 2 : 0));
  }
}

double bytes_of_op(const OpGraph& graph, std::string_view name) {
  double bytes = 0;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.name == name) bytes += op.bytes_read + op.bytes_written;
  }
  return bytes;
}

TEST_CASE("keys cached unrotated are rotated at every step, by separate operators if unfused") {
  const Llm llm = llama31_8b();
  const auto rolled = make_method(
      {"streaming-llm", {{"positions", std::string{"rerotate"}}}, Budget{0, 1000}}, 2000,
      {.recorded = Dtype::kFp16, .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128}});
  for (const Stack& stack : builtin_stacks()) {
    const CostInput in{.llm = &llm, .method = rolled.get(), .stack = &stack, .batch = 3};
    const DecodeState full = decode_moment(in, 0, 2000, 2001, 1000);
    INFO(stack.name);
    // By hand: five operators that each read and write the keys of 1,001 entries of three
    // sequences.
    const int passes = stack.rope_launches / 2;
    const OpGraph graph = decode_layer(in, 0, full);
    CHECK(bytes_of_op(graph, "rotate cached keys") ==
          (stack.rope_launches > 1
               ? 2.0 * passes * 3 * static_cast<double>(full.attended) * 8 * 128 * 2
               : 0));
    // Rows are in the order of their positions: the 1,000 retained rows are copied together.
    CHECK(concat_bytes(graph) ==
          (concatenates(stack) ? 2.0 * 2 * (1001 + 1000) * 3 * 8 * 128 * 2 : 0));
  }
}

TEST_CASE(
    "packed values are copied into a longer tensor at every step where caches grow by copies") {
  const Llm llm = llama31_8b();
  const auto kivi = make_method(
      {"kivi-2", {}, {}}, 4096,
      {.recorded = Dtype::kFp16, .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128}});
  for (const Stack& stack : builtin_stacks()) {
    const CostInput in{
        .llm = &llm, .method = kivi.get(), .stack = &stack, .batch = 2, .prompt = 4096};
    const DecodeState grows = decode_moment(in, 0, 4096, 4097, 4096);
    INFO(stack.name);
    // By hand: the newest 128 of 4,097 entries are separate. A value uses 128 codes of 2 bit plus
    // steps and zeros of four groups; a key uses the same number of bytes, in one step of 128. One
    // value and on average half of the keys wait.
    const double row = 128 * 2 / 8 + 4 * 4;
    const OpGraph graph = decode_layer(in, 0, grows);
    const double times = concatenates(stack) ? 2.0 * 2 * 8 : 0;
    CHECK(bytes_of_op(graph, "concat packed rows") ==
          doctest::Approx(times * (4097 - 128) * (row + row / 128)).epsilon(1e-12).scale(1));
    CHECK(bytes_of_op(graph, "concat waiting rows") == times * 192 * 128 * 2);
  }
}

TEST_CASE(
    "copies with one element per thread are limited by the SMs, not by memory or element width") {
  const auto rate = [](std::string_view gpu, Dtype dtype) {
    const Roofline roofline{find_gpu(gpu), find_stack("hf-sdpa"), Calibration{}};
    const Roofline::Rates r =
        roofline.rates({.name = "concat keys", .family = OpFamily::kConcatCopy, .dtype = dtype});
    return r.bandwidth.count() * r.bandwidth_reached;
  };
  // By hand, on A100: 0.84 elements per clock in each of 108 SMs at 1.41 GHz, 2 bytes read and 2
  // written.
  CHECK(rate("A100-80GB-SXM", Dtype::kFp16) ==
        doctest::Approx(0.84 * 108 * 1.41e9 * 4).epsilon(2e-3));
  CHECK(rate("A100-80GB-SXM", Dtype::kFp32) == rel(2 * rate("A100-80GB-SXM", Dtype::kFp16)));
  CHECK(rate("H100-80GB-SXM", Dtype::kFp16) == rel(rate("H200-141GB-SXM", Dtype::kFp16)));
  // The memory's rate is an upper bound.
  for (const Gpu& gpu : builtin_gpus()) {
    CHECK(rate(gpu.name, Dtype::kFp32) <= gpu.hbm_bandwidth.count());
  }
}

TEST_CASE("plain PyTorch launches one operator from the host per part of a method's equations") {
  const Llm llm = llama31_8b();
  const FullMethod full;
  for (const MethodInfo& info : builtin_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = {}};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.6, .entries = 0};
    const MethodContext site{.recorded = Dtype::kFp16,
                             .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                             .windows = {},
                             .n_layers = 32,
                             .d_model = 4096};
    const auto method = make_method(spec, 2000, site);
    INFO(info.name);
    // If attention does not store its rows in memory: five operators more, minus attention's call.
    const std::int32_t apart = method->eager_operators(false) - method->eager_operators(true);
    CHECK((apart == 0 || apart == 4));
    CHECK(method->eager_operators(true) >= method->extra_launches() - 4);
    CHECK(method_operators(*method, find_stack("vllm")) == method->extra_launches());
    for (const char* name : {"hf-sdpa", "hf-eager", "flexgen"}) {
      const Stack& stack = find_stack(name);
      const CostInput with{.llm = &llm, .method = method.get(), .stack = &stack};
      const CostInput without{.llm = &llm, .method = &full, .stack = &stack};
      const double operators = method->eager_operators(stack.attention == AttentionExec::kEager);
      CHECK(host_time(with, true).count() - host_time(without, true).count() ==
            doctest::Approx(32 * 20e-6 * operators).epsilon(1e-9));
      CHECK(host_time(with, false).count() == host_time(without, false).count());
    }
  }
  // ZeroMerge by hand: five for the sums, thirty-five for the residual slot, and four more for
  // attention's rows.
  const auto zero = make_method({"zeromerge", {}, Budget{0, 200}}, 2000, {});
  CHECK(zero->eager_operators(true) == 40);
  CHECK(zero->eager_operators(false) == 44);
  // H2O: five for the sums, and two for the key and value of the slot.
  CHECK(make_method({"h2o", {}, Budget{0, 200}}, 2000, {})->eager_operators(true) == 7);
  CHECK(make_method({"full", {}, {}}, 2000, {})->eager_operators(false) == 0);
}

TEST_CASE("the math reference of attention copies 16-bit rows to fp32, by hand") {
  const Llm llm = llama31_8b();
  const FullMethod full;
  const Stack& stack = find_stack("gpt-fast-eager");
  CostInput in{.llm = &llm, .method = &full, .stack = &stack, .weight_dtype = Dtype::kBf16};
  const DecodeState moment{.attended = 4096, .before = 99, .after = 100};
  // Keys and values of 32 query heads of 128 channels, and the query.
  const double rows = 2.0 * 4096 * 32 * 128;
  const double q = 32 * 128;
  const auto op_named = [](const OpGraph& graph, std::string_view name) -> const Op* {
    for (OpIndex i = 0; i < graph.size(); ++i) {
      if (graph.op(i).name == name) return &graph.op(i);
    }
    return nullptr;
  };
  const OpGraph graph = decode_layer(in, 0, moment);
  const Op* raised = op_named(graph, "rows in fp32");
  REQUIRE(raised != nullptr);
  CHECK(raised->bytes_read == 2 * (rows + q));
  CHECK(raised->bytes_written == 4 * (rows + q));
  const Op* scaled = op_named(graph, "scale queries and keys");
  REQUIRE(scaled != nullptr);
  CHECK(scaled->bytes_read == 4 * (rows / 2 + q));
  CHECK(scaled->bytes_written == scaled->bytes_read);
  const Op* scores = op_named(graph, "attention scores");
  REQUIRE(scores != nullptr);
  CHECK(scores->bytes_read == 4 * (rows / 2 + q));
  CHECK(scores->bytes_written == 4 * 32 * 4096);
  // All rows are repeated in 16 bit and converted to fp32; keys are copied again.
  CHECK(peak_of_owner(graph, Owner::kKvExpansion) ==
        Bytes{static_cast<std::int64_t>(rows) * (2 + 4 + 2)});
  // fp32 rows are not converted: they are repeated, and the keys are scaled.
  in.weight_dtype = in.kv_dtype = Dtype::kFp32;
  const OpGraph wide = decode_layer(in, 0, moment);
  CHECK(op_named(wide, "rows in fp32") == nullptr);
  CHECK(peak_of_owner(wide, Owner::kKvExpansion) ==
        Bytes{static_cast<std::int64_t>(rows) * (4 + 2)});
  // Prompts are computed by fused attention.
  const OpGraph prompt = prefill_layer(in, 0, {.prompt = 50, .kept = 50, .score_rows = 50});
  CHECK(peak_of_owner(prompt, Owner::kScores) == Bytes{});
}

TEST_CASE("plain PyTorch rounds a row and restores the codes in eleven operators per tensor") {
  const auto of = [](Params params) {
    return make_method({"int8", std::move(params), {}}, 100, {})->eager_operators(false);
  };
  CHECK(of({{"dequant", std::string{"copy"}}}) == 22);
  CHECK(of({}) == 0);
}

}  // namespace
}  // namespace kvsim
