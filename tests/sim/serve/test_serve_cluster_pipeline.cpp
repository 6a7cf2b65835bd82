// Pipelines: layers on several GPUs in sequence, with several batches in flight.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/memory/groups/vllm_groups.hpp"
#include "sim/serve/engine/pipeline.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/served.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

double s(SimTime t) { return to_seconds(t).count(); }

/// Hidden states of a token (256 of 16 bits) over PCIe at 25 GB/s.
constexpr double kHop = 512 / 25e9;

std::vector<std::int32_t> layers_of(std::int32_t layers, std::int32_t stages) {
  Llm llm = test::small_llm();
  llm.layers.assign(static_cast<std::size_t>(layers), llm.layers.front());
  std::vector<std::int32_t> out;
  std::int32_t next = 0;
  for (const LayerRange& r : pipeline_stages(llm, stages)) {
    CHECK(r.first == next);
    CHECK(r.embedding == (r.first == 0));
    CHECK(r.head == (r.last == layers));
    next = r.last;
    out.push_back(r.last - r.first);
  }
  CHECK(next == layers);
  return out;
}

TEST_CASE("remaining layers go to the stages before the last") {
  CHECK(layers_of(4, 1) == std::vector{4});
  CHECK(layers_of(4, 2) == std::vector{2, 2});
  CHECK(layers_of(5, 2) == std::vector{3, 2});
  CHECK(layers_of(61, 4) == std::vector{15, 15, 16, 15});
  CHECK(layers_of(14, 4) == std::vector{3, 4, 4, 3});
  CHECK(layers_of(7, 4) == std::vector{2, 2, 2, 1});
  CHECK_THROWS_AS((void)layers_of(4, 5), InputError);
}

TEST_CASE("stages together hold a model's weights and the cache has the rest of the memory") {
  const Gpu gpu = find_gpu("A100-80GB-SXM");
  for (const char* name : {"Llama-2-7B", "Llama-3.1-8B"}) {
    INFO(name);
    const Llm& llm = find_llm(name);
    const Stack& stack = find_stack("vllm");
    const CostInput in{.llm = &llm, .stack = &stack};
    for (const std::int32_t stages : {1, 2, 3, 4}) {
      INFO(stages);
      Bytes sum;
      for (const LayerRange& range : pipeline_stages(llm, stages)) sum += stage_weights(in, range);
      CHECK(sum == weights_held(in));
    }
    // A tied embedding is stored in the first stage and in the last.
    Llm tied = llm;
    tied.tied_embeddings = true;
    const CostInput once{.llm = &tied, .stack = &stack};
    const auto stages = pipeline_stages(tied, 2);
    CHECK(stage_weights(once, stages[0]) + stage_weights(once, stages[1]) == weights_held(in));
  }
  // The cache of two GPUs with half of the weights each is more than twice that of one GPU.
  auto trace = std::make_shared<RequestTrace>();
  trace->requests = {request(0, 1000, 20)};
  const auto serve = [&](std::int32_t stages) {
    return run_serve({.llm = &find_llm("Llama-2-7B"),
                      .gpu = &gpu,
                      .stack = &find_stack("vllm"),
                      .pipeline_parallel = stages,
                      .options = {.max_model_len = 4096},
                      .requests = trace});
  };
  const ServeResult one = serve(1);
  const ServeResult two = serve(2);
  const ServeResult four = serve(4);
  CHECK(two.kv_capacity_tokens > 2 * one.kv_capacity_tokens);
  CHECK(four.kv_capacity_tokens > 2 * two.kv_capacity_tokens);
  CHECK(two.blocks * two.block_tokens == two.kv_capacity_tokens);
  CHECK(two.gpus == 2);
  CHECK(two.peak_hbm <= gpu.hbm_usable);
  // At most one block per stage less than the remaining pool.
  CHECK(two.startup->usable - two.startup->weights - two.startup->non_torch -
            two.startup->activation - two.startup->graphs - two.kv_pool <
        full_cache_bytes(find_llm("Llama-2-7B"), 16, Dtype::kFp16));
  CHECK(two.peak_owners.at("kv_cache") > one.peak_owners.at("kv_cache"));
  // A single request passes all layers in sequence in both cases; host time and hops are added.
  CHECK(two.e2e.mean > one.e2e.mean);
  CHECK(two.e2e.mean < 1.6 * one.e2e.mean);
}

TEST_CASE("one request takes the sum of the stages and the hops between them") {
  for (const std::int32_t stages : {2, 3, 4}) {
    INFO(stages);
    SmallService service{.times = {.iteration = 4e-3, .per_token = 4e-6, .per_entry = 0},
                         .scheduler = {.name = "vllm-v1"},
                         .pipeline = stages};
    service.trace.requests = {request(0, 50, 4)};
    const ServeResult r = service.run();
    CHECK(s(r.outcomes[0].first_token) ==
          test::rel(4e-3 + 200e-6 + 50 * kHop * (stages - 1), 1e-8));
    CHECK(r.itl.mean == test::rel(4.004e-3 + kHop * (stages - 1), 1e-8));
    CHECK(r.busy < 1.001 / stages);
    // Four layers on three stages: the largest stage has two layers.
    CHECK(r.blocks == (stages == 4 ? 256 : 128));
  }
}

TEST_CASE("two requests by hand: they alternate between two stages") {
  SmallService service{.times = {.iteration = 2e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 50},
                       .pipeline = 2};
  service.trace.requests = {request(0, 50, 5), request(0, 50, 5)};
  const ServeResult r = service.run();
  // A's prompt: stages end at 1 ms and 2 ms (plus a hop of 50 tokens), B's a millisecond later;
  // then each waits only for its own results: a token every 2 ms and a hop.
  const double hop = 50 * kHop;
  CHECK(s(r.outcomes[0].first_token) == test::rel(2e-3 + hop, 1e-8));
  CHECK(s(r.outcomes[1].first_token) == test::rel(3e-3 + hop, 1e-8));
  CHECK(s(r.outcomes[0].finish) == test::rel(10e-3 + hop + 4 * kHop, 1e-5));
  CHECK(s(r.outcomes[1].finish) == test::rel(11e-3 + hop + 4 * kHop, 1e-5));
  CHECK(r.iterations == 10);
  REQUIRE(r.spans.size() == 2);
  CHECK(r.spans[0].stride == 2);
  CHECK(r.spans[0].count == 5);
  CHECK(r.itl.n == 8);
  CHECK(r.itl.mean == test::rel(2e-3 + kHop, 1e-5));
  CHECK(r.busy == test::rel(10.0 / 11, 2e-4));
}

TEST_CASE("chunks of one prompt follow each other through the stages") {
  SmallService service{.times = {.iteration = 2e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 50},
                       .pipeline = 2};
  service.trace.requests = {request(0, 500, 1)};
  const ServeResult r = service.run();
  // Ten chunks, one per millisecond, and one more for the second stage. Two are in flight: every
  // second chunk waits for a hop.
  CHECK(s(r.outcomes[0].first_token) == test::rel(11e-3 + 5 * 50 * kHop, 1e-6));
}

TEST_CASE("micro-batches of SGLang and vLLM V0 keep their requests") {
  for (const char* scheduler : {"sglang", "vllm-v0"}) {
    for (const std::int64_t seqs : {1, 2}) {
      INFO(scheduler, " with ", seqs, " requests in a micro-batch");
      SmallService service{.times = {.iteration = 2e-3, .per_token = 0, .per_entry = 0},
                           .scheduler = {.name = scheduler,
                                         // SGLang's limit applies to all micro-batches.
                                         .max_num_seqs = scheduler[0] == 's' ? 2 * seqs : seqs},
                           .pipeline = 2};
      service.trace.requests = {request(0, 50, 5), request(0, 50, 5)};
      const ServeResult r = service.run();
      // In two micro-batches they alternate; in one, both pass the two stages together, and the
      // other micro-batch stays empty.
      const double hop = 50 * kHop;
      CHECK(r.iterations == (seqs == 1 ? 10 : 5));
      CHECK(s(r.outcomes[0].first_token) ==
            test::rel(2e-3 + hop * static_cast<double>(seqs), 1e-8));
      const double apart = s(r.outcomes[1].first_token - r.outcomes[0].first_token);
      CHECK(std::abs(apart - (seqs == 1 ? 1e-3 : 0)) < 1e-9);
      CHECK(s(r.outcomes[0].finish) == test::rel(10e-3 + hop * static_cast<double>(seqs), 1e-4));
    }
  }
}

TEST_CASE("a request of vLLM V0 has the blocks of its micro-batch, not the whole pool") {
  SmallService service{.blocks = 10, .scheduler = {.name = "vllm-v0"}, .pipeline = 2};
  // 20 blocks of 16 tokens: each micro-batch has 10.
  service.trace.requests = {request(0, 200, 1), request(0, 100, 1)};
  const ServeResult r = service.run();
  CHECK(r.outcomes[0].status == RequestStatus::kRejected);
  CHECK(r.outcomes[1].status == RequestStatus::kCompleted);
  service.scheduler.name = "vllm-v1";
  CHECK(service.run().completed == 2);
}

TEST_CASE("stages speed a service up by at most their number and conserve it") {
  for (const std::int64_t blocks : {24, 40, 400}) {
    for (const auto& [scheduler, order] :
         std::vector<std::pair<const char*, QueueOrder>>{{"vllm-v1", QueueOrder::kFcfs},
                                                         {"vllm-v1", QueueOrder::kPriority},
                                                         {"vllm-v0", QueueOrder::kFcfs},
                                                         {"sglang", QueueOrder::kFcfs},
                                                         {"sglang", QueueOrder::kPriority},
                                                         {"trtllm", QueueOrder::kFcfs},
                                                         {"trtllm", QueueOrder::kPriority}}) {
      SmallService service{.blocks = blocks,
                           .scheduler = {.name = scheduler,
                                         .order = order,
                                         .max_num_batched_tokens = 64,
                                         .max_num_seqs = 12,
                                         .chunked_prefill = true},
                           .trace = test::random_trace(13, 150, 1000, 80, 30, true)};
      const ServeResult one = service.run();
      double min = one.output_tok_s;
      for (const std::int32_t stages : {2, 4}) {
        INFO(scheduler, " blocks ", blocks, " stages ", stages);
        service.pipeline = stages;
        const ServeResult r = service.run();
        CHECK(r.completed + r.rejected == 150);
        CHECK(r.blocks == stages * blocks);
        if (blocks == 400) {
          CHECK(r.output_tok_s <= stages * one.output_tok_s * 1.001);
          CHECK(r.output_tok_s > min);
          min = r.output_tok_s;
        }
        CHECK(r.busy <= 1.0001);
        std::vector<std::int64_t> tokens(r.outcomes.size());
        std::vector<SimTime> last(r.outcomes.size(), SimTime{-1});
        std::int64_t gaps = 0;
        for (const TokenSpan& span : r.spans) {
          const auto i = static_cast<std::size_t>(span.request);
          const auto& ends = r.iteration_ends[0];
          CHECK(ends[static_cast<std::size_t>(span.first)] > last[i]);
          last[i] = ends[static_cast<std::size_t>(span.last())];
          tokens[i] += span.count;
        }
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          CHECK(tokens[i] == r.outcomes[i].output_tokens);
          if (r.outcomes[i].status != RequestStatus::kCompleted) continue;
          gaps += std::max<std::int64_t>(tokens[i] - 1, 0);
          if (tokens[i] > 0) CHECK(last[i] == r.outcomes[i].finish);
        }
        CHECK(r.itl.n == gaps);
        CHECK(test::same(r, service.run()));
      }
    }
  }
}

/// The groups of a model on one GPU, in bf16.
VllmGroups groups_of(const char* model) {
  return vllm_groups(find_llm(model), {.max_model_len = 8192});
}

TEST_CASE("a stage has its layers of each group, of which the largest sets its blocks") {
  // 12 windows and 12 full layers are two groups of 12; they alternate, so that a half has six of
  // each.
  const VllmGroups oss = groups_of("gpt-oss-20b");
  REQUIRE(oss.groups.size() == 2);
  CHECK(oss.id_of_layers(0, 24) == oss.block_id);
  CHECK(oss.id_of_layers(0, 12) * 2 == oss.block_id);
  CHECK(oss.id_of_layers(12, 24) * 2 == oss.block_id);
  CHECK(oss.id_of_layers(0, 1) * 12 == oss.block_id);
  // 36 states and 12 full layers: four groups of 12. A third of the layers has 4 full layers, and
  // 12 states, 4 in each of three groups.
  const VllmGroups next = groups_of("qwen3-next-80b-a3b");
  REQUIRE(next.groups.size() == 4);
  for (const std::int32_t stage : {0, 1, 2}) {
    CHECK(next.id_of_layers(stage * 16, stage * 16 + 16) * 3 == next.block_id);
  }
  // The stages together hold at least as much as one GPU.
  for (const char* model : {"gemma-3-27b", "nemotron-h-56b", "deepseek-v3.2", "jamba-1.5-mini"}) {
    INFO(model);
    const VllmGroups groups = groups_of(model);
    const std::int32_t layers = find_llm(model).n_layers();
    CHECK(groups.id_of_layers(0, layers) == groups.block_id);
    for (const std::int32_t stages : {2, 3, 5}) {
      Bytes sum;
      for (const LayerRange& range : pipeline_stages(find_llm(model), stages)) {
        sum += groups.id_of_layers(range.first, range.last);
      }
      CHECK(sum >= groups.block_id);
      CHECK(sum < groups.block_id * 2);
    }
  }
}

TEST_CASE("pipelines of hybrid models run on vLLM, with room for more sequences") {
  const auto service = [](const char* model, const char* gpu, std::int32_t stages) {
    return ServeSpec{
        .llm = &find_llm(model),
        .gpu = &find_gpu(gpu),
        .stack = &find_stack("vllm"),
        .weight_dtype = Dtype::kBf16,
        .kv_dtype = Dtype::kBf16,
        .pipeline_parallel = stages,
        .options = {.max_model_len = 16'384},
        .requests = std::make_shared<RequestTrace>(test::random_trace(7, 120, 50, 6'000, 60))};
  };
  for (const auto& [model, gpu] : {std::pair{"gpt-oss-20b", "A100-80GB-SXM"},
                                   std::pair{"nemotron-nano-9b-v2", "A100-40GB-SXM"},
                                   std::pair{"gemma-3-12b", "A100-40GB-SXM"}}) {
    INFO(model);
    const ServeResult one = run_serve(service(model, gpu, 1));
    const ServeResult two = run_serve(service(model, gpu, 2));
    CHECK(one.completed == 120);
    CHECK(two.completed == 120);
    REQUIRE(two.startup);
    REQUIRE(two.startup->groups);
    CHECK(two.startup->groups->block_id == two.startup->block);
    CHECK(two.startup->block.count() * two.blocks <= two.startup->kv_cache.count());
    CHECK(two.startup->block * 2 == one.startup->block);
    // Half of the weights and half of each block: more than twice the blocks.
    CHECK(two.blocks > 2 * one.blocks);
    CHECK(two.output_tokens == one.output_tokens);
    CHECK(two.preemptions <= one.preemptions);
  }
}

TEST_CASE("the layers of a stage do not determine the memory of a sequence on it") {
  // Attention in layers 14, 21, 30 and 39: the first of four stages has only states.
  ServeSpec spec{
      .llm = &find_llm("nemotron-nano-9b-v2"),
      .gpu = &find_gpu("A100-40GB-SXM"),
      .stack = &find_stack("vllm"),
      .weight_dtype = Dtype::kBf16,
      .kv_dtype = Dtype::kBf16,
      .pipeline_parallel = 4,
      .options = {.max_model_len = 131'072},
      .requests = std::make_shared<RequestTrace>(test::random_trace(7, 20, 5, 2'000, 9))};
  const ServeResult run = run_serve(spec);
  CHECK(run.completed == 20);
  REQUIRE(run.startup);
  REQUIRE(run.startup->groups);
  const VllmGroups& groups = *run.startup->groups;
  CHECK(run.startup->sequence == run.startup->block * groups.request_blocks);
  CHECK(run.startup->max_concurrency ==
        doctest::Approx(static_cast<double>(run.startup->blocks) /
                        static_cast<double>(groups.request_blocks)));
  CHECK(run.startup->serves());
  // A stage whose layers read the caches of other layers has no cache that could limit it.
  Llm shared = find_llm("gemma-3-12b");
  for (std::size_t i = 30; i < shared.layers.size(); ++i) {
    shared.layers[i].attention.shares_cache = true;
  }
  spec.llm = &shared;
  spec.pipeline_parallel = 3;
  CHECK(run_serve(spec).completed == 20);
  // Too long: the message contains a length with which the engine starts.
  spec.llm = &find_llm("gpt-oss-20b");
  spec.pipeline_parallel = 2;
  spec.options.max_model_len = 1'000'000'000;
  const ServeResult refused = run_serve(spec);
  REQUIRE(refused.ooms.size() == 1);
  const std::string& text = refused.ooms.front().what;
  const std::string before = "longest possible max_model_len is ";
  REQUIRE(text.find(before) != std::string::npos);
  const std::int64_t longest = std::stoll(text.substr(text.find(before) + before.size()));
  spec.options.max_model_len = longest;
  CHECK(run_serve(spec).completed == 20);
  spec.options.max_model_len = longest + 1;
  CHECK(run_serve(spec).completed == 0);
}

TEST_CASE("unsupported pipelines are refused") {
  SmallService service{.trace = test::random_trace(1, 5, 10, 300, 5), .pipeline = 5};
  CHECK_THROWS_AS((void)service.run(), InputError);  // four layers
  service.pipeline = 2;
  service.scheduler = {.name = "static", .batch = 2};
  CHECK_THROWS_AS((void)service.run(), InputError);
  service.scheduler = {};
  service.method = {"pyramidkv", {}, Budget{.entries = 64}};
  CHECK_THROWS_AS((void)service.run(), InputError);
}

}  // namespace
}  // namespace kvsim
