// Sequences that an engine counts together (SteadyDecodes): the service equals that of an engine
// that counts each sequence separately, as an engine with an observer does.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "sim/serve/engine/steady_decodes.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::SmallService;

class Looker : public ServeObserver {
 public:
  void planned(const IterationView&) override {}
  void ended(const IterationView&) override {}
};

auto key(const RequestOutcome& r) {
  return std::tuple{r.arrival,       r.scheduled,     r.first_token, r.finish,  r.prompt_tokens,
                    r.output_tokens, r.cached_tokens, r.preemptions, r.replica, r.status};
}
auto key(const TokenSpan& s) {
  return std::tuple{s.request, s.replica, s.first, s.count, s.stride};
}
auto key(const ServeSample& s) {
  return std::tuple{s.at,       s.running,    s.waiting,   s.tokens,    s.prompt_tokens, s.held,
                    s.reserved, s.kv_logical, s.kv_blocks, s.kv_cached, s.in_service};
}
template <class T>
auto keys(const std::vector<T>& all) {
  std::vector<decltype(key(all.front()))> out;
  for (const T& one : all) out.push_back(key(one));
  return out;
}

void check_same(SmallService service) {
  Looker looker;
  const ServeResult together = service.run();
  service.observer = &looker;
  const ServeResult apart = service.run();
  CHECK(keys(together.outcomes) == keys(apart.outcomes));
  CHECK(keys(together.spans) == keys(apart.spans));
  CHECK(together.iteration_ends == apart.iteration_ends);
  REQUIRE(together.timeline.size() == apart.timeline.size());
  for (std::size_t i = 0; i < apart.timeline.size(); ++i) {
    CHECK(keys(together.timeline[i]) == keys(apart.timeline[i]));
  }
  CHECK(together.preemptions == apart.preemptions);
  CHECK(together.recomputed_tokens == apart.recomputed_tokens);
  CHECK(together.prefix_hit_tokens == apart.prefix_hit_tokens);
  CHECK(together.peak_blocks == apart.peak_blocks);
  CHECK(together.ooms.size() == apart.ooms.size());
  CHECK(together.busy == apart.busy);
  CHECK(together.phases.mixed == apart.phases.mixed);
  CHECK(together.phases.decodes == apart.phases.decodes);
  CHECK(together.tokens_full == apart.tokens_full);
  CHECK(together.seqs_full == apart.seqs_full);
  CHECK(together.reservation_wait_share == apart.reservation_wait_share);
  CHECK(together.iteration_samples.size() == apart.iteration_samples.size());
  CHECK(together.mbu == apart.mbu);
  CHECK(together.itl.p99 == apart.itl.p99);
}

/// A random service: a tight or large pool, any order, arrivals from light load to overload.
SmallService random_service(std::uint64_t seed, const char* scheduler) {
  test::Dice dice{seed + 100};
  const bool caching = dice.between(0, 1) == 1;
  const std::string name = scheduler;
  SmallService service{
      .blocks = dice.between(24, 120),
      .block_tokens = dice.between(0, 3) == 0 ? 1 : 16,
      .scheduler = {.name = name,
                    .order = static_cast<QueueOrder>(dice.between(0, 2)),
                    .max_num_seqs = dice.between(2, 40),
                    .prefix_caching = caching},
      .trace = test::random_trace(seed, 150, dice.between(10, 200), 60, 40, caching),
      .async_scheduling = dice.between(0, 1) == 1};
  if (service.block_tokens == 1) service.blocks *= 16;
  const bool variant = dice.between(0, 1) == 1;
  if (name == "vllm-v1") service.scheduler.max_num_batched_tokens = variant ? 64 : 512;
  if (name == "vllm-v0" && variant) service.scheduler.chunked_prefill = true;
  if (name == "vllm-v0" && dice.between(0, 1) == 1) {
    service.scheduler.swap = true;
    service.host_memory = 1_GiB;
  }
  if (name == "sglang" && variant) service.scheduler.mixed_chunk = true;
  if (name == "trtllm" && variant) service.scheduler.policy = "max-utilization";
  if (dice.between(0, 2) == 0) service.cluster = {.replicas = 2};
  if (dice.between(0, 3) == 0) service.cluster = {.replicas = 1, .prefill_replicas = 1};
  return service;
}

TEST_CASE("sequences that are counted together are served as if each was counted by itself") {
  for (const char* scheduler : {"vllm-v1", "vllm-v0", "sglang", "trtllm"}) {
    CAPTURE(std::string{scheduler});
    std::int64_t preemptions = 0, hits = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed);
      const SmallService service = random_service(seed, scheduler);
      check_same(service);
      const ServeResult r = service.run();
      preemptions += r.preemptions;
      hits += r.prefix_hit_tokens;
    }
    CHECK(preemptions > 0);
    CHECK(hits > 0);
  }
}

TEST_CASE("answers of sequences that are counted together are found by the next turns") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    test::Dice dice{seed};
    RequestTrace trace;
    trace.prefix_block = 16;
    trace.conversations = true;
    for (std::int32_t session = 0; session < 12; ++session) {
      std::int32_t tokens = 0;
      for (int turn = 0; turn < 5; ++turn) {
        Request r = test::request(turn == 0 ? 0.01 * session : 0.05, tokens + dice.between(20, 80),
                                  dice.between(5, 60));
        if (turn > 0) r.after = static_cast<RequestId>(trace.requests.size()) - 1;
        r.session = session;
        r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
        r.prefix_count = (r.prompt_tokens + 15) / 16;
        for (std::int32_t b = 0; b < r.prefix_count; ++b) {
          trace.prefix_ids.push_back(static_cast<std::uint64_t>(1000 * session + b));
        }
        tokens = r.prompt_tokens + r.output_tokens;
        trace.requests.push_back(r);
      }
    }
    const SmallService service{.blocks = dice.between(60, 400),
                               .scheduler = {.name = "vllm-v1", .prefix_caching = true},
                               .trace = trace};
    check_same(service);
    CHECK(service.run().prefix_hit_tokens > 0);
  }
}

TEST_CASE("windows that blocks outlive are read per sequence, not per group counted together") {
  Llm llm = test::small_llm();
  for (std::size_t l = 0; l < llm.layers.size(); l += 2) llm.layers[l].attention.window = 32;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    check_same({.blocks = 60,
                .scheduler = {.name = "vllm-v1"},
                .trace = test::random_trace(seed, 100, 60, 40, 60),
                .stack = "sglang",
                .llm = &llm});
  }
}

TEST_CASE("a request that does not fit is refused while others are counted together") {
  SmallService service{.blocks = 12,
                       .max_model_len = 400,
                       .scheduler = {.name = "vllm-v1"},
                       .trace = test::random_trace(5, 60, 100, 60, 90)};
  check_same(service);
  CHECK(service.run().oom_events > 0);
}

TEST_CASE("sums over sequences that are counted together") {
  SteadyDecodes steady{4};
  Sequence a{.known = 6, .computed = 5, .room = 8}, b{.known = 9, .computed = 8, .room = 8};
  CHECK(steady.fits(a));
  CHECK(steady.fits(b));
  CHECK_FALSE(steady.fits({.computed = 4, .room = 8}));  // another block is still empty
  steady.add(7, a, 3);
  steady.add(8, b, 1);
  CHECK(steady.size() == 2);
  CHECK(steady.computed() == 13);
  CHECK(steady.growing() == 1);  // b
  const auto ended = steady.step();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0] == 8);
  b.computed = 9;
  b.room = 12;
  steady.remove(b);
  CHECK(steady.size() == 1);
  CHECK(steady.computed() == 6);
  CHECK(steady.growing() == 0);
  CHECK(steady.step().empty());
  CHECK(steady.growing() == 0);
  REQUIRE(steady.step().size() == 1);
  CHECK(steady.computed() == 8);
  CHECK(steady.growing() == 1);
  CHECK(steady.iterations() == 3);
  steady.clear();
  CHECK(steady.size() == 0);
  CHECK(steady.growing() == 0);
}

}  // namespace
}  // namespace kvsim
