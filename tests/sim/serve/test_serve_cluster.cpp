// Several replicas behind one router: conservation, equality of one replica and several, and the
// benefit of each routing policy.

#include <array>
#include <cmath>
#include <vector>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/served.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

constexpr std::array kRouters{RouterPolicy::kRoundRobin, RouterPolicy::kLeastLoaded,
                              RouterPolicy::kPrefixAware};

TEST_CASE("one replica equals the engine without a router") {
  SmallService service{.blocks = 30,
                       .scheduler = {.name = "vllm-v1", .max_num_seqs = 16},
                       .trace = test::random_trace(3, 200, 60, 80, 30, true)};
  const ServeResult alone = service.run();
  REQUIRE(alone.preemptions > 0);
  REQUIRE(alone.replicas.size() == 1);
  CHECK(alone.replicas[0].completed == alone.completed);
  CHECK(alone.replicas[0].requests == 200);
  CHECK(alone.replicas[0].preemptions == alone.preemptions);
  CHECK(alone.replicas[0].prefix_hit_tokens == alone.prefix_hit_tokens);
  CHECK(alone.replicas[0].busy == alone.busy);
  CHECK(alone.replicas[0].e2e.p99 == alone.e2e.p99);
  for (const RouterPolicy router : kRouters) {
    service.cluster.router = router;
    CHECK(test::same(alone, service.run()));
  }
}

TEST_CASE("replicas share all requests between them and repeat exactly") {
  for (const RouterPolicy router : kRouters) {
    for (const std::int32_t replicas : {2, 3, 7}) {
      INFO(static_cast<int>(router), " replicas ", replicas);
      SmallService service{.blocks = 30,
                           .scheduler = {.name = "vllm-v1", .max_num_seqs = 16},
                           .trace = test::random_trace(5, 300, 90, 80, 30, true),
                           .cluster = {.replicas = replicas, .router = router}};
      const ServeResult r = service.run();
      CHECK(r.completed + r.rejected == 300);
      CHECK(r.gpus == replicas);
      REQUIRE(std::ssize(r.replicas) == replicas);
      REQUIRE(std::ssize(r.iteration_ends) == replicas);
      std::int64_t requests = 0, completed = 0, tokens = 0, hits = 0, preemptions = 0;
      std::int64_t iterations = 0;
      double busy = 0;
      for (const ReplicaResult& replica : r.replicas) {
        CHECK(replica.requests > 0);
        CHECK(replica.e2e.n == replica.completed);
        requests += replica.requests;
        completed += replica.completed;
        tokens += replica.output_tokens;
        hits += replica.prefix_hit_tokens;
        preemptions += replica.preemptions;
        iterations += replica.iterations;
        busy += replica.busy;
      }
      CHECK(requests == 300);
      CHECK(completed == r.completed);
      CHECK(hits == r.prefix_hit_tokens);
      CHECK(preemptions == r.preemptions);
      CHECK(iterations == r.iterations);
      CHECK(busy / replicas == test::rel(r.busy));
      if (r.rejected == 0) CHECK(tokens == r.output_tokens);
      std::vector<std::int64_t> made(r.outcomes.size());
      for (const TokenSpan& s : r.spans) {
        CHECK(s.replica == r.outcomes[static_cast<std::size_t>(s.request)].replica);
        made[static_cast<std::size_t>(s.request)] += s.count;
      }
      for (std::size_t i = 0; i < made.size(); ++i) CHECK(made[i] == r.outcomes[i].output_tokens);
      CHECK(test::same(r, service.run()));
    }
  }
}

TEST_CASE("twice the replicas serve twice the requests in the same way") {
  SmallService one{.blocks = 40, .scheduler = {.name = "vllm-v1", .max_num_seqs = 8}};
  test::Dice dice{9};
  double at = 0;
  for (int i = 0; i < 120; ++i) {
    at += 0.01 * dice.uniform();
    const std::int32_t output = dice.between(1, 60);
    one.trace.requests.push_back(request(at, dice.between(1, 120), output));
  }
  SmallService two = one;
  two.trace.requests.clear();
  for (const Request& r : one.trace.requests)
    two.trace.requests.insert(two.trace.requests.end(), 2, r);
  two.cluster.replicas = 2;
  const ServeResult a = one.run();
  const ServeResult b = two.run();
  REQUIRE(a.completed == 120);
  for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
    for (const std::size_t copy : {2 * i, 2 * i + 1}) {
      CHECK(b.outcomes[copy].first_token == a.outcomes[i].first_token);
      CHECK(b.outcomes[copy].finish == a.outcomes[i].finish);
    }
  }
  CHECK(b.output_tok_s == test::rel(2 * a.output_tok_s));
  CHECK(b.itl.mean == test::rel(a.itl.mean));
  CHECK(b.itl.n == 2 * a.itl.n);
  CHECK(b.ttft.p99 == a.ttft.p99);
  CHECK(b.mfu == test::rel(a.mfu));
}

TEST_CASE("if service times differ, the shorter queue waits less than round robin") {
  // One request at a time, with outputs of 1 or 39 tokens at random, 1 ms each: on average 20 ms.
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    INFO(seed);
    SmallService service{.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                         .scheduler = {.name = "vllm-v1", .max_num_seqs = 1},
                         .cluster = {.replicas = 3}};
    test::Dice dice{seed};
    double at = 0;
    for (int i = 0; i < 3000; ++i) {
      at -= std::log(dice.uniform()) * 0.020 / 3 / 0.8;
      service.trace.requests.push_back(request(at, 1, dice.uniform() < 0.5 ? 1 : 39));
    }
    const double turns = service.run().queue.mean;
    service.cluster.router = RouterPolicy::kLeastLoaded;
    const double shortest = service.run().queue.mean;
    CHECK(shortest < 0.8 * turns);
  }
}

TEST_CASE("requests of one length in a steady stream: no router is better than round robin") {
  SmallService service{.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1", .max_num_seqs = 1},
                       .cluster = {.replicas = 2}};
  // 10 ms each, one every 5 ms: each arrives when its replica becomes free.
  for (int i = 0; i < 100; ++i) service.trace.requests.push_back(request(0.005 * i, 1, 10));
  const ServeResult turns = service.run();
  service.cluster.router = RouterPolicy::kLeastLoaded;
  const ServeResult shortest = service.run();
  CHECK(turns.queue.p99 == 0);
  CHECK(shortest.queue.p99 == 0);
}

/// Conversations: the prompt of each turn extends that of the previous turn.
RequestTrace conversations(int n, int turns, double rate) {
  test::Dice dice{31};
  RequestTrace trace;
  trace.prefix_block = 16;
  std::vector<int> reached(static_cast<std::size_t>(n));
  double at = 0;
  for (int i = 0; i < n * turns; ++i) {
    at -= std::log(dice.uniform()) / rate;
    auto who = static_cast<std::size_t>(dice.between(0, n - 1));
    while (reached[who] == turns) who = (who + 1) % static_cast<std::size_t>(n);
    const int blocks = 4 * ++reached[who];
    Request r = request(at, 16 * blocks, 8);
    r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
    r.prefix_count = blocks;
    for (int b = 0; b < blocks; ++b) {
      trace.prefix_ids.push_back(1000 * (who + 1) + static_cast<std::uint64_t>(b));
    }
    trace.requests.push_back(r);
  }
  return trace;
}

TEST_CASE("prefix routing finds more cached tokens than round robin") {
  for (const std::int64_t blocks : {60, 200, 2000}) {
    INFO("blocks ", blocks);
    SmallService service{.blocks = blocks,
                         .times = {.iteration = 1e-3, .per_token = 1e-4, .per_entry = 0},
                         .scheduler = {.name = "vllm-v1"},
                         .trace = conversations(30, 6, 200),
                         .cluster = {.replicas = 4}};
    const ServeResult turns = service.run();
    service.cluster.router = RouterPolicy::kPrefixAware;
    const ServeResult aware = service.run();
    REQUIRE(turns.completed == 180);
    REQUIRE(aware.completed == 180);
    CHECK(aware.prefix_hit_tokens >= turns.prefix_hit_tokens);
    if (blocks == 2000) {
      CHECK(aware.prefix_hit_tokens > turns.prefix_hit_tokens);
      // No block is evicted. All blocks of the previous turn are found if it has been computed: 4 t
      // blocks in turn t + 1.
      // blocks in turn t + 1.
      CHECK(aware.prefix_hit_tokens <= 30 * 16 * 4 * (1 + 2 + 3 + 4 + 5));
      CHECK(aware.ttft.mean <= turns.ttft.mean);
    }
  }
}

TEST_CASE("a prefix is followed until its replica's load exceeds the margin") {
  // All requests share one prefix and arrive while the first, which computed it, still decodes.
  SmallService service{.blocks = 2000,
                       .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1"},
                       .cluster = {.replicas = 2, .router = RouterPolicy::kPrefixAware}};
  RequestTrace& trace = service.trace;
  trace.prefix_block = 32;
  for (int i = 0; i < 10; ++i) {
    Request r = request(i == 0 ? 0 : 0.01 + 1e-4 * i, 64, 1000);
    r.prefix_first = static_cast<std::int32_t>(trace.prefix_ids.size());
    r.prefix_count = 2;
    trace.prefix_ids.insert(trace.prefix_ids.end(), {7, 100 + static_cast<std::uint64_t>(i)});
    trace.requests.push_back(r);
  }
  for (const std::int64_t margin : {0, 2, 5, 32}) {
    INFO("margin ", margin);
    service.cluster.prefix_margin = margin;
    const ServeResult r = service.run();
    // The first replica has margin + 1 requests before one is sent to the other. The other then
    // also has the prefix, and both alternate while loads differ by at most the margin.
    std::int64_t first = 0;
    for (const RequestOutcome& o : r.outcomes) {
      if (o.replica != 0) break;
      ++first;
    }
    CHECK(first == std::min<std::int64_t>(margin + 1, 10));
  }
}

TEST_CASE("static batches on several replicas: no request waits for a batch that never fills") {
  SmallService service{.scheduler = {.name = "static", .batch = 4}, .stack = "ideal"};
  service.cluster.replicas = 3;
  for (int i = 0; i < 7; ++i) service.trace.requests.push_back(request(0.1 * i, 10, 5));
  const ServeResult r = service.run();
  CHECK(r.completed + r.rejected == 7);
  CHECK(r.unfinished == 0);
}

TEST_CASE("KV heads are copied if there are fewer than GPUs") {
  // 2 KV heads: each of two GPUs holds one; four GPUs hold copies with the same cache per GPU.
  const Llm llm = test::small_llm();
  const std::int32_t heads = llm.layers[0].attention.n_kv_heads;
  REQUIRE(heads >= 1);
  const auto bytes = [&](std::int32_t gpus) {
    return full_cache_bytes(tensor_shard(llm, gpus), 1000, Dtype::kFp16).count();
  };
  CHECK(bytes(heads) * heads == bytes(1));
  CHECK(bytes(2 * heads) == bytes(heads));
}

TEST_CASE("an invalid cluster is refused") {
  SmallService service{.trace = test::random_trace(1, 5, 10, 10, 5)};
  const auto refused = [&](ClusterSpec cluster) {
    service.cluster = cluster;
    CHECK_THROWS_AS((void)service.run(), InputError);
  };
  refused({.replicas = 0});
  refused({.prefill_replicas = -1});
  refused({.prefix_margin = -1});
  refused({.link = BytesPerSecond{-1.0}});
  refused({.replicas = 6, .prefill_replicas = 3});  // nine GPUs without a network
}

}  // namespace
}  // namespace kvsim
