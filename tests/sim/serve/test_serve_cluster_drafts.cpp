// A draft model that proposes tokens: number of accepted tokens, their cost, conservation.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/draft_head.hpp"
#include "models/units/error.hpp"
#include "sim/serve/engine/speculation.hpp"
#include "tests/support/check.hpp"
#include "tests/support/served.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

double s(SimTime t) { return to_seconds(t).count(); }

/// One layer of the small model's width: a block uses 4 KiB, in addition to the target's 16.
Llm small_draft() {
  Llm draft = test::small_llm();
  draft.name = "draft";
  draft.layers.resize(1);
  return draft;
}

TEST_CASE("accepted proposals are geometric and depend only on seed, request and step") {
  for (const double a : {0.0, 0.3, 0.7, 0.95, 1.0}) {
    for (const std::int32_t k : {1, 4, 8}) {
      INFO("acceptance ", a, " drafts ", k);
      constexpr std::int32_t kSteps = 40000;
      double sum = 0, squares = 0;
      std::int32_t broken = 0;
      for (std::int32_t i = 0; i < kSteps; ++i) {
        const std::int32_t n = accepted_drafts(k, a, 5, i / 200, i % 200);
        broken += n == accepted_drafts(k, a, 5, i / 200, i % 200) ? 0 : 1;
        // With fewer proposals in the same step, the same leading proposals are accepted.
        broken += accepted_drafts(k / 2, a, 5, i / 200, i % 200) == std::min(n, k / 2) ? 0 : 1;
        sum += n + 1;
        squares += static_cast<double>((n + 1) * (n + 1));
      }
      CHECK(broken == 0);
      const double mean = sum / kSteps;
      const double expected = a < 1 ? (1 - std::pow(a, k + 1)) / (1 - a) : k + 1;
      const double deviation = std::sqrt(std::max(squares / kSteps - mean * mean, 0.0) / kSteps);
      CHECK(std::abs(mean - expected) <= 4 * deviation + 1e-12);
    }
  }
}

TEST_CASE("nothing accepted: one token per step at the cost of verifying and drafting") {
  const Llm draft = small_draft();
  SmallService service{.max_model_len = 64,
                       .times = {.iteration = 1e-3, .per_token = 1e-5, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1"},
                       .speculation = {.draft = &draft, .tokens = 3, .acceptance = 0}};
  service.trace.requests = {request(0, 20, 5)};
  const ServeResult r = service.run();
  // The prompt, on both models: 2 x 1.2 ms; then four steps of four tokens, and three of one.
  CHECK(s(r.outcomes[0].first_token) == test::rel(2.4e-3));
  CHECK(r.itl.n == 4);
  CHECK(r.itl.mean == test::rel(1.04e-3 + 3 * 1.01e-3));
  CHECK(r.iterations == 5);
  CHECK(r.verifications == 4);
  CHECK(r.drafted_tokens == 12);
  CHECK(r.accepted_tokens == 0);
  SUBCASE("all accepted: four tokens per step except for the last wanted ones") {
    service.speculation.acceptance = 1;
    service.trace.requests = {request(0, 20, 11)};
    const ServeResult all = service.run();
    // 1 with the prompt, then 4, 4, 2.
    CHECK(all.iterations == 4);
    CHECK(all.outcomes[0].output_tokens == 11);
    CHECK(s(all.outcomes[0].finish) == test::rel(2.4e-3 + 3 * 4.07e-3));
    CHECK(all.itl.n == 10);
    CHECK(all.itl.mean == test::rel(3 * 4.07e-3 / 10));
    CHECK(all.itl.p50 == 0);
    CHECK(all.tpot.mean == test::rel(3 * 4.07e-3 / 10));
  }
  SUBCASE("no proposal exceeds the longest sequence") {
    service.max_model_len = 25;
    CHECK(service.run().drafted_tokens == 3 + 3 + 2 + 1);
  }
  SUBCASE("a budget limits proposals") {
    service.speculation.acceptance = 1;
    service.scheduler.max_num_batched_tokens = 3;
    service.trace.requests = {request(0, 3, 7)};
    CHECK(service.run().iterations == 3);  // 1 and two of 3
  }
}

TEST_CASE("a model's built-in head: one layer, and the projection of hidden state and embedding") {
  Llm llm = test::small_llm();
  ServeSpec spec;
  spec.llm = &llm;
  spec.kv_dtype = Dtype::kFp16;
  spec.speculation = {.proposer = Proposer::kMtp, .tokens = 2, .acceptance = 0.8};
  const CostInput target{.llm = &llm,
                         .stack = &find_stack("vllm"),
                         .weight_dtype = Dtype::kFp16,
                         .kv_dtype = Dtype::kFp16,
                         .prompt = 100};
  CHECK_THROWS_AS((void)make_draft(spec, target), InputError);  // none announced
  llm.mtp_layers = 1;
  const auto draft = make_draft(spec, target);
  // Queries and output 256 x 256, keys and values 256 x 64, block 3 x 256 x 704; projection 512 x
  // 256. No embedding, no output projection.
  CHECK(draft->weights.count() == 2 * (2 * 65'536 + 2 * 16'384 + 3 * 256 * 704 + 2 * 65'536));
  CHECK(draft->block * 4 == full_cache_bytes(llm, 16, Dtype::kFp16));
}

TEST_CASE(
    "an EAGLE head: a layer without norms, its projections, and EAGLE-3's reduced vocabulary") {
  const Llm llm = test::small_llm();
  const std::int64_t layer = 2 * 65'536 + 2 * 16'384 + 3 * 256 * 704;
  const Llm first = draft_head(llm, DraftHead::kEagle);
  CHECK(parameters(first) == layer + 2 * 65'536);
  const Llm third = draft_head(llm, DraftHead::kEagle3);
  // Three hidden states to one; queries, keys and values of twice the width; the head.
  CHECK(parameters(third) == layer + 3 * 65'536 + (65'536 + 2 * 16'384) + 256 * 32'000);
  CHECK(third.vocab_size == 32'000);
  // yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: 425 million parameters besides norms and token maps.
  CHECK(parameters(draft_head(find_llm("llama-3.1-8b"), DraftHead::kEagle3)) ==
        test::rel(425e6, 0.01));
  Llm experts = llm;
  for (LayerSpec& one : experts.layers) one.mlp.n_experts = 4;
  CHECK_THROWS_AS((void)draft_head(experts, DraftHead::kEagle3), InputError);
  CHECK_THROWS_AS((void)draft_head(llm, DraftHead::kMtp), InputError);
}

TEST_CASE("n-grams of earlier text are proposed without a draft model's time and memory") {
  SmallService service{.max_model_len = 64,
                       .times = {.iteration = 1e-3, .per_token = 1e-5, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1"},
                       .trace = {},
                       .speculation = {.proposer = Proposer::kNgram, .tokens = 3, .acceptance = 1}};
  service.trace.requests = {request(0, 20, 11)};
  const ServeResult r = service.run();
  // The prompt; then 4, 4 and 2 tokens in steps of four rows.
  CHECK(r.iterations == 4);
  CHECK(s(r.outcomes[0].first_token) == test::rel(1.2e-3));
  CHECK(s(r.outcomes[0].finish) == test::rel(1.2e-3 + 3 * 1.04e-3));
  CHECK(r.blocks == service.blocks);
}

TEST_CASE("a tree verifies all its tokens, and accepts at most one of each level") {
  const Llm draft = small_draft();
  SmallService service{
      .max_model_len = 64,
      .times = {.iteration = 1e-3, .per_token = 1e-5, .per_entry = 0},
      .scheduler = {.name = "sglang"},
      .trace = {},
      .speculation = {.draft = &draft, .tokens = 15, .steps = 4, .topk = 4, .acceptance = 1}};
  service.trace.requests = {request(0, 20, 11)};
  const ServeResult r = service.run();
  // 1 with the prompt, then 5 and 5: 16 rows of the target, one of the draft, then three passes of
  // 4.
  CHECK(r.iterations == 3);
  CHECK(s(r.outcomes[0].finish) == test::rel(2.4e-3 + 2 * (1.16e-3 + 1.01e-3 + 3 * 1.04e-3)));
  CHECK(r.drafted_tokens == 30);
  CHECK(r.accepted_tokens == 8);
  // With drafts, sglang does not mix chunks: the second prompt has a separate iteration.
  service.trace.requests.push_back(request(1.5e-3, 20, 11));
  const ServeResult apart = service.run();
  service.scheduler.mixed_chunk = true;
  CHECK(service.run().iteration_ends == apart.iteration_ends);
}

TEST_CASE("tokens and memory are conserved and a step yields the expected number of tokens") {
  const Llm draft = small_draft();
  for (const auto& [scheduler, blocks] :
       std::vector<std::pair<const char*, std::int64_t>>{{"vllm-v1", 30},
                                                         {"vllm-v1", 60},
                                                         {"vllm-v1", 600},
                                                         {"vllm-v0", 60},
                                                         {"vllm-v0", 600},
                                                         {"sglang", 60},
                                                         {"sglang", 600},
                                                         {"trtllm", 60},
                                                         {"trtllm", 600}}) {
    for (const double a : {0.0, 0.6, 0.9}) {
      INFO(scheduler, " blocks ", blocks, " acceptance ", a);
      SmallService service{.blocks = blocks,
                           .scheduler = {.name = scheduler, .max_num_seqs = 16},
                           .trace = test::random_trace(19, 200, 60, 60, 60, true),
                           .speculation = {.draft = &draft, .tokens = 4, .acceptance = a},
                           .seed = 3};
      const ServeResult r = service.run();
      CHECK(r.completed + r.rejected == 200);
      // A block holds the rows of five layers instead of four.
      CHECK(r.blocks == blocks * 4 / 5);
      CHECK(r.kv_pool == Bytes{r.blocks * 20 * 1024});
      std::vector<std::int64_t> tokens(r.outcomes.size());
      std::vector<SimTime> last(r.outcomes.size(), SimTime{-1});
      for (const TokenSpan& span : r.spans) {
        const auto i = static_cast<std::size_t>(span.request);
        const auto& ends = r.iteration_ends[0];
        CHECK(ends[static_cast<std::size_t>(span.first)] > last[i]);
        last[i] = ends[static_cast<std::size_t>(span.last())];
        tokens[i] += span.count;
        CHECK(span.count <= (span.stride == 0 ? 5 : span.count));
      }
      std::int64_t gaps = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        CHECK(tokens[i] == r.outcomes[i].output_tokens);
        if (r.outcomes[i].status != RequestStatus::kCompleted) continue;
        CHECK(tokens[i] == service.trace.requests[i].output_tokens);
        gaps += std::max<std::int64_t>(tokens[i] - 1, 0);
      }
      CHECK(r.itl.n == gaps);
      CHECK(r.accepted_tokens <= r.drafted_tokens);
      CHECK(test::same(r, service.run()));
      if (blocks < 600) continue;
      const double expected = (1 - std::pow(a, 5)) / (1 - a);
      const double steps = static_cast<double>(r.verifications);
      const double step = 1 + static_cast<double>(r.accepted_tokens) / steps;
      // The standard deviation of one step is below 2 tokens.
      CHECK(std::abs(step - expected) < 4 * 2 / std::sqrt(steps));
      if (a > 0) {
        service.seed = 4;
        CHECK_FALSE(test::same(r, service.run()));
      }
    }
  }
}

TEST_CASE("models with states, windows and indexes verify the proposals of a head") {
  struct Served {
    const char* llm;
    const char* gpu;
    std::int32_t gpus;
  };
  for (const auto& [name, gpu, gpus] :
       {Served{"qwen3.5-9b", "H100-80GB-SXM", 1}, Served{"glm-5", "B200", 8},
        Served{"qwen3.5-27b", "H100-80GB-SXM", 1}}) {
    const Llm& llm = find_llm(name);
    const Gpu& card = find_gpu(gpu);
    auto trace = std::make_shared<RequestTrace>(test::random_trace(7, 60, 3000, 4000, 200, true));
    const auto serve = [&](const SpeculationSpec& speculation) {
      return run_serve({.llm = &llm,
                        .gpu = &card,
                        .stack = &find_stack("vllm"),
                        .weight_dtype = Dtype::kFp8E4m3,
                        .tensor_parallel = gpus,
                        .options = {.max_model_len = 16384},
                        .requests = trace,
                        .scheduler = {.name = "", .max_num_seqs = 64},
                        .speculation = speculation,
                        .seed = 3});
    };
    const ServeResult plain = serve({});
    const ServeResult mtp = serve({.proposer = Proposer::kMtp, .tokens = 1, .acceptance = 0.9});
    const ServeResult text = serve({.proposer = Proposer::kNgram, .tokens = 3, .acceptance = 0});
    INFO(name);
    for (const ServeResult* r : {&plain, &mtp, &text}) {
      CHECK(r->completed == 60);
      std::int64_t tokens = 0;
      for (const TokenSpan& span : r->spans) tokens += span.count;
      CHECK(tokens == std::accumulate(trace->requests.begin(), trace->requests.end(),
                                      std::int64_t{0}, [](std::int64_t sum, const Request& one) {
                                        return sum + one.output_tokens;
                                      }));
    }
    CHECK(mtp.startup->weights > plain.startup->weights);
    CHECK(mtp.kv_pool < plain.kv_pool);
    CHECK(mtp.tpot.mean < plain.tpot.mean);
    CHECK(text.kv_pool == plain.kv_pool);
    CHECK(text.tpot.mean >= plain.tpot.mean);  // verification has a cost, but no token is accepted
  }
}

TEST_CASE("a draft's weights and cache take room, a good one is faster, a useless one slower") {
  const Gpu gpu = find_gpu("A100-80GB-SXM");
  const Llm& llm = find_llm("Llama-2-7B");
  Llm draft = llm;
  draft.name = "two layers";
  draft.layers.resize(2);
  draft.extra_parameters = 0;
  auto trace = std::make_shared<RequestTrace>();
  trace->requests = {request(0, 500, 200)};
  const auto serve = [&](double acceptance, bool drafts) {
    return run_serve(
        {.llm = &llm,
         .gpu = &gpu,
         .stack = &find_stack("vllm"),
         .options = {.max_model_len = 4096},
         .requests = trace,
         .speculation = {
             .draft = drafts ? &draft : nullptr, .tokens = 4, .acceptance = acceptance}});
  };
  const ServeResult without = serve(0, false);
  const ServeResult good = serve(0.9, true);
  const ServeResult useless = serve(0, true);
  CHECK(good.kv_capacity_tokens < without.kv_capacity_tokens);
  const Bytes more = good.startup->weights - without.startup->weights;
  CHECK(more == weight_bytes(draft, Dtype::kFp16));
  CHECK(good.tpot.mean < without.tpot.mean);
  CHECK(useless.tpot.mean > without.tpot.mean);
}

TEST_CASE("unsupported drafts are refused") {
  const Llm draft = small_draft();
  SmallService service{.trace = test::random_trace(1, 5, 10, 100, 5),
                       .speculation = {.draft = &draft}};
  const auto refused = [&](SmallService one) { CHECK_THROWS_AS((void)one.run(), InputError); };
  CHECK(service.run().completed == 5);
  SmallService bad = service;
  bad.speculation.tokens = 0;
  refused(bad);
  bad.speculation = {.draft = &draft, .acceptance = 1.5};
  refused(bad);
  bad.speculation = {.draft = &draft, .tokens = 3, .steps = 4};
  refused(bad);
  bad.speculation = {.draft = &draft, .tokens = 3, .topk = 4};
  refused(bad);
  bad = service;
  bad.scheduler = {.name = "static", .batch = 2};
  refused(bad);
  bad = service;
  bad.pipeline = 2;
  refused(bad);
  bad = service;
  bad.method = {"snapkv", {}, Budget{.entries = 32}};
  refused(bad);
}

}  // namespace
}  // namespace kvsim
