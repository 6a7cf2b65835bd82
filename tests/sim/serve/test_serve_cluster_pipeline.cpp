// Pipelines: layers on several GPUs one after another, several batches in flight.

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/units/error.hpp"
#include "sim/serve/engine/pipeline.hpp"
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

TEST_CASE("stages hold a model's weights between them and the cache has the rest of the memory") {
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
  // The cache of two GPUs with half the weights each is more than twice that of one.
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
  // At most one block per stage less than the pool that is left.
  CHECK(two.startup->usable - two.startup->weights - two.startup->non_torch -
            two.startup->activation - two.startup->graphs - two.kv_pool <
        full_cache_bytes(find_llm("Llama-2-7B"), 16, Dtype::kFp16));
  CHECK(two.peak_owners.at("kv_cache") > one.peak_owners.at("kv_cache"));
  // One request passes all layers in sequence either way; host and hops come on top.
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
    // Four layers on three stages: the largest has two of them.
    CHECK(r.blocks == (stages == 4 ? 256 : 128));
  }
}

TEST_CASE("two requests by hand: they alternate between two stages") {
  SmallService service{.times = {.iteration = 2e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 50},
                       .pipeline = 2};
  service.trace.requests = {request(0, 50, 5), request(0, 50, 5)};
  const ServeResult r = service.run();
  // A's prompt: stages until 1 ms and 2 ms (and a hop of 50 tokens); B's a millisecond later; then
  // each waits only for itself: a token every 2 ms and a hop.
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
  // second one waits for a hop.
  CHECK(s(r.outcomes[0].first_token) == test::rel(11e-3 + 5 * 50 * kHop, 1e-6));
}

TEST_CASE("micro-batches of SGLang and vLLM V0 keep their requests") {
  for (const char* scheduler : {"sglang", "vllm-v0"}) {
    for (const std::int64_t seqs : {1, 2}) {
      INFO(scheduler, " with ", seqs, " requests in a micro-batch");
      SmallService service{.times = {.iteration = 2e-3, .per_token = 0, .per_entry = 0},
                           .scheduler = {.name = scheduler,
                                         // SGLang's is of all micro-batches.
                                         .max_num_seqs = scheduler[0] == 's' ? 2 * seqs : seqs},
                           .pipeline = 2};
      service.trace.requests = {request(0, 50, 5), request(0, 50, 5)};
      const ServeResult r = service.run();
      // In two micro-batches they alternate; in one both go through the two stages together, and
      // the other micro-batch stays empty.
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
      double least = one.output_tok_s;
      for (const std::int32_t stages : {2, 4}) {
        INFO(scheduler, " blocks ", blocks, " stages ", stages);
        service.pipeline = stages;
        const ServeResult r = service.run();
        CHECK(r.completed + r.rejected == 150);
        CHECK(r.blocks == stages * blocks);
        if (blocks == 400) {
          CHECK(r.output_tok_s <= stages * one.output_tok_s * 1.001);
          CHECK(r.output_tok_s > least);
          least = r.output_tok_s;
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
