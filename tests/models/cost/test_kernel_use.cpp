// Kernels of a step's operators: prompts in pieces, routed experts, masked entries that stay in the
// cache.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/stack/stack.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;

struct Sums {
  double tokens = 0, pairs = 0, calls = 0;
  int visits = 0;
};

Sums sums_of(const KernelUse& use) {
  Sums sums;
  visit_calls(use, [&](double times, const KernelCall& call) {
    const auto& c = std::get<PrefillAttentionCall>(call);
    sums.calls += times;
    sums.tokens += times * c.batch * c.new_tokens;
    sums.pairs += times * c.batch * c.new_tokens * (c.prefix + c.new_tokens / 2);
    ++sums.visits;
  });
  return sums;
}

TEST_CASE("the pieces of a prompt have all query-key pairs of the prompt and need few calls") {
  for (const double tokens : {1.0, 511.0, 8192.0, 8193.0, 100'000.0, 131'072.0, 1'000'003.0}) {
    for (const double chunk : {0.0, 256.0, 512.0, 8192.0, 200'000.0}) {
      INFO(tokens, " tokens in pieces of ", chunk);
      const Sums sums = sums_of({.call = PrefillAttentionCall{.batch = 1, .new_tokens = tokens},
                                 .format = nullptr,
                                 .times = 3,
                                 .chunk = chunk});
      CHECK(sums.tokens == rel(3 * tokens));
      CHECK(sums.pairs == rel(3 * tokens * tokens / 2));
      CHECK(sums.calls == rel(3 * (chunk > 0 ? std::ceil(tokens / chunk) : 1)));
      CHECK(sums.visits <= 9);
    }
  }
}

TEST_CASE("a kernel that includes another operator's work makes one call") {
  const KernelUse none{.call = GemmCall{.m = 8, .n = 64, .k = 64}, .format = nullptr, .times = 0};
  int visits = 0;
  visit_calls(none, [&](double, const KernelCall&) { ++visits; });
  CHECK(visits == 0);
}

/// A model on vLLM, as input of its cost.
struct Site {
  explicit Site(const char* model, const char* stack_name = "vllm", const char* of = "full")
      : llm{find_llm(model)},
        stack{find_stack(stack_name)},
        method{make_method({of, {}, {}}, 1024,
                           {.shape = {.n_heads = 32, .n_kv_heads = 32, .head_dim = 128}})},
        in{.llm = &llm,
           .method = method.get(),
           .stack = &stack,
           .weight_dtype = Dtype::kBf16,
           .kv_dtype = Dtype::kBf16,
           .prompt = 1024,
           .vocab_size = llm.vocab_size} {}
  Site(const Site&) = delete;
  const Llm& llm;
  Stack stack;
  std::shared_ptr<const Method> method;
  CostInput in;
};

TEST_CASE("a prompt in chunks is timed by each chunk at its own prefix") {
  Site site{"llama-3.1-8b"};
  site.stack.prefill_chunk = 8192;
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const Roofline roofline{gpu, site.stack, builtin_calibration()};
  const std::int64_t prompt = 5 * 8192 + 1000;
  const OpGraph graph =
      prefill_layer(site.in, 0, {.prompt = prompt, .kept = prompt, .score_rows = prompt});
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.family != OpFamily::kPrefillAttention) continue;
    REQUIRE(op.kernel);
    REQUIRE(roofline.kernel(op) != nullptr);
    CHECK(op.kernel->chunk == 8192);
    double us = 0;
    for (std::int64_t before = 0; before < prompt; before += 8192) {
      auto call = std::get<PrefillAttentionCall>(op.kernel->call);
      call.new_tokens = static_cast<double>(std::min<std::int64_t>(8192, prompt - before));
      call.prefix = static_cast<double>(before);
      us += roofline.kernel(op)->microseconds(call);
    }
    CHECK(roofline.time(op).count() == rel(us * 1e-6));
    // The arithmetic equals that of the whole prompt.
    const double s = static_cast<double>(prompt);
    CHECK(op.flops.count() == rel(2 * 32 * (s * s / 2) * (128 + 128)));
  }
}

TEST_CASE("many chunks are evaluated by groups, within half a percent of single chunks") {
  const KernelChoice choice = KernelLibrary::builtin().choose(
      KernelOp::kPrefillAttention, find_gpu("H100-80GB-SXM"), "vllm",
      shared_format(attention_format(Dtype::kBf16, Dtype::kBf16)));
  for (const double tokens : {100'000.0, 262'144.0, 1'000'000.0}) {
    for (const double chunk : {512.0, 2048.0, 8192.0}) {
      const KernelUse use{
          .call =
              PrefillAttentionCall{
                  .batch = 1, .new_tokens = tokens, .q_heads = 32, .kv_heads = 8, .head_dim = 128},
          .format = nullptr,
          .chunk = chunk};
      double exact = 0;
      for (double before = 0; before < tokens; before += chunk) {
        exact +=
            choice.microseconds(prompt_piece(use.call, std::min(chunk, tokens - before), before));
      }
      INFO(tokens, " in pieces of ", chunk);
      CHECK(microseconds(choice, use) == rel(exact, 5e-3));
    }
  }
}

/// Operators of one decode step of a layer that call the kernel of routed experts.
std::vector<Op> routed_ops(const CostInput& in) {
  std::vector<Op> found;
  const OpGraph graph = decode_layer(in, 1, {.attended = 1025, .before = 1024, .after = 1025});
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.kernel && op_of(op.kernel->call) == KernelOp::kMoe) found.push_back(op);
  }
  return found;
}

TEST_CASE("routed experts are one kernel call per layer if the stack names its library") {
  Site site{"qwen3-30b-a3b"};
  site.in.batch = 64;
  const std::vector<Op> ops = routed_ops(site.in);
  REQUIRE(ops.size() > 1);
  double times = 0;
  for (const Op& op : ops) times += op.kernel->times;
  CHECK(times == 1);
  const auto& call = std::get<MoeCall>(ops.front().kernel->call);
  CHECK(call.tokens == 64);
  CHECK(call.top_k == 8);
  CHECK(call.experts == 128);
  CHECK(call.hidden == 2048);
  CHECK(call.inter == 768);

  const Roofline roofline{find_gpu("H200-141GB-SXM"), site.stack, builtin_calibration()};
  const KernelChoice* choice = roofline.kernel(ops.front());
  REQUIRE(choice != nullptr);
  CHECK(choice->basis() <= KernelBasis::kOtherVersion);
  CHECK(choice->provenance().find("vllm") != std::string::npos);
  CHECK(roofline.time(ops.front()).count() == rel(1e-6 * choice->microseconds(call)));
  for (std::size_t i = 1; i < ops.size(); ++i) CHECK(roofline.time(ops[i]).count() == 0);

  // Without a calibration, or on a stack without a library, the operators have separate times.
  const Roofline nominal{find_gpu("H200-141GB-SXM"), site.stack, Calibration{}};
  for (const Op& op : ops) CHECK(nominal.time(op).count() > 0);
  site.stack.kernels.erase("moe");
  CHECK(routed_ops(site.in).empty());
}

TEST_CASE(
    "experts of gpt-oss run in the kernel that unpacks four bits, as published or by format") {
  Site site{"gpt-oss-20b"};
  site.in.batch = 64;
  site.in.weight_dtype = site.llm.published_dtype;
  REQUIRE(site.in.weight_dtype == Dtype::kFp4);
  const std::vector<Op> published = routed_ops(site.in);
  REQUIRE_FALSE(published.empty());
  CHECK(published.front().kernel->format->name == "mxfp4");
  site.in.weight_dtype = Dtype::kBf16;
  site.in.weight_format = &find_weight_format("mxfp4");
  const std::vector<Op> by_format = routed_ops(site.in);
  CHECK(by_format.front().kernel->format == published.front().kernel->format);
  CHECK(by_format.front().kernel->call == published.front().kernel->call);
}

TEST_CASE("the experts' kernel gets the shares of tensor and expert parallelism") {
  for (const auto& [tensor, experts] : {std::pair{1, 1}, {4, 1}, {4, 4}, {2, 8}}) {
    INFO(tensor, " GPUs cut a layer, ", experts, " share its experts");
    Site site{"qwen3-30b-a3b"};
    const Llm shard = tensor_shard(site.llm, tensor);
    site.stack.expert_parallel = experts;
    site.in.llm = &shard;
    site.in.tensor_parallel = tensor;
    site.in.batch = 16;
    const std::vector<Op> ops = routed_ops(site.in);
    REQUIRE_FALSE(ops.empty());
    const auto& call = std::get<MoeCall>(ops.front().kernel->call);
    const MlpSpec& mlp = shard.layers[1].mlp;
    const ExpertShare share = expert_share(site.in, mlp, 16);
    CHECK(call.inter == 768);
    CHECK(call.inter / call.tp == static_cast<double>(share.width));
    CHECK(call.experts / call.ep == static_cast<double>(share.experts));
    CHECK(call.tokens == rel(share.tokens));
    // More rows on the busiest GPU never take less time.
    const KernelGpu gpu = kernel_gpu(find_gpu("H100-80GB-SXM"));
    double last = 0;
    for (const double busiest : {1.0, 1.3, 2.0, 4.0}) {
      MoeCall uneven = call;
      uneven.busiest = busiest;
      const KernelForm& form = moe_form();
      std::vector<double> c;
      for (const Coefficient& one : form.coefficients) c.push_back(one.start);
      const double us = form.microseconds(uneven, *ops.front().kernel->format, gpu, c.data());
      CHECK(us >= last);
      last = us;
    }
  }
}

TEST_CASE("fp8 in blocks is a separate kernel format") {
  Site site{"qwen3-30b-a3b"};
  site.in.weight_format = &find_weight_format("fp8-block");
  CHECK(routed_ops(site.in).front().kernel->format->name == "fp8_block");
  site.in.weight_format = &find_weight_format("fp8-tensor");
  CHECK(routed_ops(site.in).front().kernel->format->name == "fp8");
}

TEST_CASE("a method that masks holds and attends every token for any budget") {
  MethodSpec spec{"h2o", {}, Budget{.fraction = 0, .entries = 64}};
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
  const auto drops = make_method(spec, 1000, {.shape = shape});
  const auto masks = masked(drops);
  for (const std::int64_t tokens : {1000, 1001, 5000}) {
    CHECK(*drops->entries_held(3, 1000, tokens) == 64);
    CHECK(*masks->entries_held(3, 1000, tokens) == tokens);
    CHECK(*masks->entries_attended(3, 1000, tokens) == tokens);
  }
  CHECK(masks->name() == drops->name());
  CHECK(masks->layer_bytes(0, shape, Dtype::kFp16, 1000, 5000)->kv ==
        Bytes{std::int64_t{2} * 32 * 128 * 2 * 5000});
  // LESS computes features of all cached keys again: 512 before and after their activation.
  spec = {"less", {{"hidden", std::int64_t{512}}}, Budget{.fraction = 0, .entries = 64}};
  const auto less = masked(make_method(spec, 1000, {.shape = shape}));
  CHECK(less->masked_step(0, shape, Dtype::kFp16, 2000).transient ==
        Bytes{std::int64_t{2} * 32 * 2000 * 512 * 2});
  CHECK(masks->masked_step(0, shape, Dtype::kFp16, 2000).transient == Bytes{});
  // A measured size law changes the number of entries, not this work.
  const auto measured = with_measured_law(make_method(spec, 1000, {.shape = shape}),
                                          {.trace = "made up", .kept = {0.5}, .growth = {1.0}}, 32);
  CHECK(measured->masked_step(0, shape, Dtype::kFp16, 2000).transient ==
        less->masked_step(0, shape, Dtype::kFp16, 2000).transient);
}

}  // namespace
}  // namespace kvsim
