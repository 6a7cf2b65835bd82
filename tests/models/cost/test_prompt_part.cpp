// Layers that compute part of a prompt: rows of products and of attention, rows loaded from host
// memory while a layer computes, and iterations of an engine that agree with a prompt's prefill.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/support/mixed.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

constexpr std::int64_t kPrompt = 2000;

std::shared_ptr<const Method> method_of(const std::string& name, Params params = {}) {
  return make_method({name, std::move(params), {}}, kPrompt,
                     {.recorded = Dtype::kBf16,
                      .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                      .windows = {},
                      .n_layers = 32,
                      .d_model = 4096});
}

/// Work per operator: its family or, for products, its name.
struct Work {
  double flops = 0, read = 0, written = 0;
};
using WorkOf = std::map<std::string, Work, std::less<>>;

WorkOf work_of(const OpGraph& graph) {
  WorkOf out;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    Work& one = out[std::string{op.name}];
    one.flops += op.flops.count();
    one.read += op.bytes_read;
    one.written += op.bytes_written;
  }
  return out;
}

struct Site {
  Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  std::shared_ptr<const Method> method;

  [[nodiscard]] CostInput input(std::int64_t batch = 1) const {
    return {.llm = &llm,
            .method = method.get(),
            .stack = &stack,
            .weight_dtype = Dtype::kBf16,
            .kv_dtype = Dtype::kBf16,
            .batch = batch,
            .prompt = kPrompt};
  }
  [[nodiscard]] OpGraph layer(std::int32_t number, std::int64_t batch = 1) const {
    const CostInput in = input(batch);
    return prefill_layer(in, number,
                         {.prompt = kPrompt,
                          .kept = held_entries(in, number, kPrompt, kPrompt),
                          .score_rows = kPrompt});
  }
  [[nodiscard]] double seconds(const Gpu& on, std::int64_t prompt = kPrompt) const {
    const Roofline roofline{on, stack, {}};
    return evaluate(prefill_step(input(), prompt, {prompt}), roofline).time.count();
  }
};

const Work& work(const WorkOf& all, std::string_view name) {
  const auto found = all.find(name);
  REQUIRE_MESSAGE(found != all.end(), "no operator ", name);
  return found->second;
}

TEST_CASE("blend: products and attention of the computed rows, over the rows of all tokens") {
  Site site{.method = method_of("cacheblend")}, full{.method = method_of("full")};
  for (const std::int64_t batch : {1, 3}) {
    const WorkOf whole = work_of(full.layer(5, batch)), first = work_of(site.layer(0, batch)),
                 check = work_of(site.layer(1, batch)), later = work_of(site.layer(5, batch));
    std::size_t products = 0;
    for (const auto& [name, of] : whole) {
      if (of.flops == 0 || name == "attention") continue;
      INFO(name);
      ++products;
      CHECK(work(first, name).flops == rel(of.flops));
      CHECK(work(later, name).flops == rel(of.flops * 0.15));
      // In the check layer, keys are computed for all tokens because they select the tokens.
      const bool before = name.find("query") != std::string::npos;
      CHECK(work(check, name).flops == rel(of.flops * (before ? 1 : 0.15)));
    }
    CHECK(products >= 3);
    // 300 of 2000 queries; each query attends to half of the keys on average.
    const Work& attention = work(later, "attention");
    CHECK(work(first, "attention").flops == rel(work(whole, "attention").flops));
    CHECK(attention.flops == rel(work(whole, "attention").flops * 0.15));
    CHECK(work(check, "attention").flops == rel(attention.flops));
    const auto n = static_cast<double>(batch);
    CHECK(attention.read == rel(n * (300 * 4096 + 2000 * 2 * 1024) * 2));
    CHECK(attention.written == rel(n * 300 * 4096 * 2));
    // Every layer loads the rows of all tokens over the link and also writes the computed rows.
    for (const WorkOf* layer : {&first, &check, &later}) {
      CHECK(work(*layer, "reused rows from host memory").read == rel(n * 2000 * 2 * 1024 * 2));
      CHECK(work(*layer, "place reused rows").written == rel(n * 2000 * 2 * 1024 * 2));
    }
    CHECK(work(later, "cache write").written == rel(n * 300 * 2 * 1024 * 2));
    CHECK(work(first, "cache write").written == rel(n * 2000 * 2 * 1024 * 2));
    // Squares of differences of 2000 keys of 1024 channels, recorded and reused.
    const Work& choice = work(check, "choice of computed tokens");
    CHECK(choice.flops == rel(n * 3 * 2000 * 1024));
    CHECK(choice.read == rel(n * 2 * 2000 * 1024 * 2));
    CHECK(work(check, "gather computed tokens").read ==
          rel(n * 300 * (4096 + 4096 + 2 * 1024) * 2));
    CHECK_FALSE(later.contains("choice of computed tokens"));
  }
}

TEST_CASE("blend: fewer computed tokens are never slower, and the link hides or is the bound") {
  Site site, full{.method = method_of("full")};
  double before = 0;
  for (const double share : {0.0, 0.05, 0.15, 0.5, 0.9, 1.0}) {
    site.method = method_of("cacheblend", {{"recompute_ratio", share}});
    const double seconds = site.seconds(site.gpu);
    CHECK(seconds >= before);
    before = seconds;
  }
  // All computed: the full prefill plus the initial placing of the reused rows.
  const double whole = full.seconds(site.gpu);
  CHECK(before > whole);
  CHECK(before < 1.1 * whole);
  // A slow link: the rows of all layers, one layer after another.
  site.method = method_of("cacheblend");
  Gpu slow = site.gpu;
  slow.pcie = slow.pcie * 1e-3;
  const double bytes = 32.0 * 2000 * 2 * 1024 * 2;
  const Roofline roofline{slow, site.stack, {}};
  const double link =
      roofline.rates({.name = "copy", .family = OpFamily::kHostCopy}).bandwidth.count();
  CHECK(site.seconds(slow) > bytes / link);
  CHECK(site.seconds(slow) < 1.01 * bytes / link);
  // A link fast enough to be hidden does not change the time.
  Gpu fast = site.gpu, faster = site.gpu;
  fast.pcie = fast.pcie * 1e3;
  faster.pcie = faster.pcie * 1e6;
  CHECK(site.seconds(fast) == rel(site.seconds(faster), 1e-9));
}

TEST_CASE("pyramidinfer: every operator of a layer is over the tokens that it has") {
  Site site{.method = method_of("pyramidinfer")}, full{.method = method_of("full")};
  const WorkOf whole = work_of(full.layer(0));
  for (const std::int32_t layer : {0, 10, 31}) {
    const std::int64_t tokens = site.method->prompt_part(layer).computed_of(kPrompt);
    const double share = static_cast<double>(tokens) / kPrompt;
    CHECK(tokens == held_entries(site.input(), layer, kPrompt, kPrompt));
    const WorkOf part = work_of(site.layer(layer));
    for (const auto& [name, of] : whole) {
      if (of.flops == 0) continue;
      INFO(name, " of layer ", layer);
      // Products are proportional to the tokens, pairs to their square.
      const double expected = name == "attention" ? share * share : share;
      CHECK(work(part, name).flops == rel(of.flops * expected, 1e-9));
    }
    // A layer keeps all rows that it computes.
    CHECK_FALSE(part.contains("compact keys"));
  }
  CHECK(site.seconds(site.gpu) < full.seconds(site.gpu));
}

TEST_CASE("a whole prompt in one chunk costs the same as its prefill, also if partly computed") {
  for (const char* name : {"cacheblend", "pyramidinfer"}) {
    for (const char* stack : {"vllm", "hf-flash", "hf-eager"}) {
      const Site base{.method = method_of(name)};
      CostInput in = base.input();
      in.stack = &find_stack(stack);
      const Roofline roofline{base.gpu, *in.stack, builtin_calibration()};
      MixedStepCost cost{in, roofline};
      const PrefillChunk whole{.tokens = kPrompt, .before = 0, .last = true};
      const MixedStep step{.loads = {}, .chunks = {&whole, 1}};
      const MixedCost expected = graphs_cost(prefill_step(in, kPrompt, {kPrompt}), roofline);
      INFO(name, " on ", stack);
      check_equal(graphs_cost(mixed_step(in, step), roofline), expected);
      check_equal(cost.cost(step), expected);
    }
  }
}

TEST_CASE("blend over latents: latents of all tokens are expanded, in one chunk and at once") {
  const Llm& llm = find_llm("deepseek-v2-lite");
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{find_gpu("H100-80GB-SXM"), stack, builtin_calibration()};
  const auto work_with = [&](const Method& method) {
    const CostInput in{.llm = &llm,
                       .method = &method,
                       .stack = &stack,
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16,
                       .prompt = kPrompt};
    MixedStepCost cost{in, roofline};
    const PrefillChunk whole{.tokens = kPrompt, .before = 0, .last = true};
    const MixedStep step{.loads = {}, .chunks = {&whole, 1}};
    const MixedCost expected = graphs_cost(prefill_step(in, kPrompt, {kPrompt}), roofline);
    check_equal(cost.cost(step), graphs_cost(mixed_step(in, step), roofline));
    // An iteration reads the RoPE part of the latents that it expands; a prompt in pieces does not.
    const MixedCost got = cost.cost(step);
    CHECK(got.time.count() == rel(expected.time.count(), 1e-9));
    CHECK(got.flops == rel(expected.flops, 1e-9));
    double expanded = 0;
    for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
      const PromptPart part = method.prompt_part(l);
      expanded += static_cast<double>(kPrompt - part.computed_of(kPrompt));
    }
    const double rope = llm.layers[5].attention.rope_head_dim * 2.0;
    CHECK(got.bytes == rel(expected.bytes + expanded * rope, 1e-9));
    return work_of(
        prefill_layer(in, 5, {.prompt = kPrompt, .kept = kPrompt, .score_rows = kPrompt}));
  };
  const AttentionSpec& a = llm.layers[5].attention;
  const MethodContext site{
      .recorded = Dtype::kBf16,
      .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
      .windows = {},
      .n_layers = llm.n_layers(),
      .d_model = llm.d_model};
  const WorkOf full = work_with(*make_method({"full", {}, {}}, kPrompt, site)),
               blend = work_with(*make_method({"cacheblend", {}, {}}, kPrompt, site));
  CHECK_FALSE(full.contains("latent expansion of the prefix"));
  CHECK(work(blend, "latent expansion of the prefix").flops > 0);
  CHECK(work(blend, "attention").flops == rel(work(full, "attention").flops * 0.15));
}

TEST_CASE("chunks of a blended prompt add up to all of its rows and its work") {
  const Site site{.method = method_of("cacheblend")};
  const Roofline roofline{site.gpu, site.stack, {}};
  const CostInput in = site.input();
  MixedStepCost cost{in, roofline};
  double link = 0, flops = 0;
  for (std::int64_t before = 0; before < kPrompt; before += 500) {
    const PrefillChunk chunk{.tokens = 500, .before = before, .last = before + 500 == kPrompt};
    const MixedStep one{.loads = {}, .chunks = {&chunk, 1}};
    const Step step = mixed_step(in, one);
    check_equal(cost.cost(one), graphs_cost(step, roofline));
    for (const Segment& segment : step.segments) {
      for (OpIndex i = 0; i < segment.graph->size(); ++i) {
        const Op& op = segment.graph->op(i);
        if (op.family == OpFamily::kHostCopy) link += op.bytes_read * segment.repeat;
        if (op.family == OpFamily::kPrefillAttention) flops += op.flops.count() * segment.repeat;
      }
    }
  }
  CHECK(link == rel(32.0 * 2000 * 2 * 1024 * 2));
  // Pairs of layer 0, and of 15 % of the queries in the other layers.
  const double pairs = 2000.0 * 2000 / 2;
  CHECK(flops == rel(4 * 4096 * pairs * (1 + 31 * 0.15), 1e-9));
}

TEST_CASE("an engine waits for rows from host memory if its layers do not hide the transfer") {
  Site site{.method = method_of("cacheblend")};
  Gpu slow = site.gpu;
  slow.pcie = slow.pcie * 1e-2;
  const CostInput in = site.input();
  const PrefillChunk chunk{.tokens = kPrompt, .before = 0, .last = true};
  const MixedStep step{.loads = {}, .chunks = {&chunk, 1}};
  MixedStepCost on_slow{in, Roofline{slow, site.stack, {}}};
  Gpu fast = site.gpu;
  fast.pcie = fast.pcie * 1e3;
  MixedStepCost on_fast{in, Roofline{fast, site.stack, {}}};
  const MixedCost waits = on_slow.cost(step), hides = on_fast.cost(step);
  CHECK(hides.host_copies.count() == 0);
  CHECK(waits.host_copies.count() == rel((waits.time - hides.time).count(), 1e-9));
  CHECK(waits.copy_wait.count() > 0);
}

}  // namespace
}  // namespace kvsim
