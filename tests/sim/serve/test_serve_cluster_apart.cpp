// Prefill and decode on separate replicas: transferred bytes, memory held during transfers, and the
// benefit.

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/served.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

double s(SimTime t) { return to_seconds(t).count(); }
constexpr BytesPerSecond kNoBound{std::numeric_limits<double>::infinity()};

/// Checks the memory of several engines in every iteration.
class MemoryObserver : public ServeObserver {
 public:
  void planned(const IterationView& v) override {
    v.memory->check();
    KVSIM_CHECK(!v.plan.empty(), "an iteration of nothing");
    if (v.replica >= first_prefill) {
      for (const Planned& p : v.plan) {
        KVSIM_CHECK((*v.sequences)[static_cast<std::size_t>(p.id)].prefills(),
                    "request {} decodes where prompts are computed", p.id);
      }
    }
  }
  void ended(const IterationView& v) override {
    v.memory->check();
    std::int64_t held = 0;
    for (const RequestId id : v.running) held += v.memory->held(id);
    // Caches in transit are held in addition to those of running sequences.
    max_in_transit =
        std::max(max_in_transit, v.memory->private_units() + v.memory->pinned() - held);
  }
  std::int32_t first_prefill = 1;
  std::int64_t max_in_transit = 0;
};

TEST_CASE("one request by hand: the first token from one replica and the others from another") {
  // 100 prompt tokens: 7 blocks of 16 KiB move at 1.6384e6 B/s in 70 ms, plus 1 ms of latency.
  SmallService service{
      .times = {.iteration = 1e-3, .per_token = 1e-5, .per_entry = 0},
      .scheduler = {.name = "vllm-v1"},
      .cluster = {
          .prefill_replicas = 1, .link = BytesPerSecond{1.6384e6}, .link_latency = Seconds{1e-3}}};
  service.trace.requests = {request(0.5, 100, 3)};
  const ServeResult r = service.run();
  const RequestOutcome& o = r.outcomes[0];
  CHECK(s(o.first_token) == test::rel(0.502));
  CHECK(s(o.finish) == test::rel(0.502 + 0.071 + 2 * 1.01e-3));
  CHECK(o.replica == 0);
  CHECK(r.transfers == 1);
  CHECK(r.transferred == Bytes{7 * 16 * 1024});
  CHECK(r.transfer.mean == test::rel(0.071));
  CHECK(r.transfer_wait.mean == 0);
  CHECK(r.gpus == 2);
  CHECK(r.itl.n == 2);
  CHECK(r.itl.p99 == test::rel(0.071 + 1.01e-3));
  CHECK(r.itl.p50 == test::rel(1.01e-3));
  CHECK(r.tpot.mean == test::rel((0.071 + 2 * 1.01e-3) / 2));
  REQUIRE(r.replicas.size() == 2);
  CHECK(r.replicas[0].role == ReplicaRole::kDecode);
  CHECK(r.replicas[1].role == ReplicaRole::kPrefill);
  CHECK(r.replicas[0].output_tokens == 2);
  CHECK(r.replicas[1].output_tokens == 1);
  CHECK(r.replicas[1].prompt_tokens == 100);
  CHECK(r.replicas[0].completed == 1);
  SUBCASE("a request that ends with its first token, or has none, moves nothing") {
    service.trace.requests = {request(0, 100, 1), request(0, 50, 0)};
    const ServeResult none = service.run();
    CHECK(none.completed == 2);
    CHECK(none.transfers == 0);
    CHECK(none.replicas[1].completed == 2);
  }
  SUBCASE("two caches share the link") {
    service.trace.requests = {request(0, 100, 2), request(0, 100, 2)};
    const ServeResult two = service.run();
    // One replica's link: each has half of it, and both arrive after 140 ms and 1 ms.
    CHECK(two.transfer.p50 == test::rel(0.141));
    CHECK(two.transfer.p99 == test::rel(0.141));
  }
}

TEST_CASE("a client has the first token before the second, however busy the API server is") {
  const ServeSpec spec{
      .llm = &find_llm("llama-3.2-1b"),
      .gpu = &find_gpu("B200"),
      .stack = &find_stack("vllm"),
      .calibration = &builtin_calibration(),
      .requests = std::make_shared<RequestTrace>(test::random_trace(7, 300, 150, 100, 4)),
      .cluster = {.prefill_replicas = 1}};
  const ServeResult r = run_serve(spec);
  CHECK(r.completed == 300);
  for (const RequestOutcome& one : r.outcomes) {
    if (one.output_tokens > 0) CHECK(one.finish >= one.first_token);
  }
  CHECK(r.tpot.p50 > 0);
  CHECK(r.itl.p50 > 0);
}

TEST_CASE("requests and bytes are conserved for any memory and link") {
  for (const RouterPolicy router : {RouterPolicy::kRoundRobin, RouterPolicy::kPrefixAware}) {
    for (const std::int64_t blocks : {24, 40, 400}) {
      for (const double link : {1e6, 1e8, 0.0}) {
        for (const bool chunked : {true, false}) {
          INFO(static_cast<int>(router), " blocks ", blocks, " link ", link, " chunked ", chunked);
          MemoryObserver observer;
          observer.first_prefill = 2;
          const SmallService service{
              .blocks = blocks,
              .scheduler = {.name = "vllm-v1", .max_num_seqs = 12, .chunked_prefill = chunked},
              .trace = test::random_trace(7, 200, 60, 80, 40, true),
              .observer = &observer,
              .cluster = {.replicas = 2,
                          .router = router,
                          .prefill_replicas = 2,
                          .link = BytesPerSecond{link}}};
          const ServeResult r = service.run();
          CHECK(r.completed + r.rejected == 200);
          CHECK(r.unfinished == 0);
          std::int64_t bytes = 0, moved = 0;
          for (std::size_t i = 0; i < r.outcomes.size(); ++i) {
            const RequestOutcome& o = r.outcomes[i];
            const Request& requested = service.trace.requests[i];
            if (o.status != RequestStatus::kCompleted) continue;
            CHECK(o.output_tokens == requested.output_tokens);
            if (o.output_tokens < 2) {
              CHECK(o.replica >= 2);
              continue;
            }
            CHECK(o.replica < 2);
            ++moved;
            bytes += (o.prompt_tokens + 15) / 16 * 16 * 1024;
          }
          CHECK(r.transfers == moved);
          CHECK(r.transferred.count() == bytes);
          CHECK(observer.max_in_transit > 0);
          std::vector<std::int64_t> tokens(r.outcomes.size());
          std::vector<SimTime> last(r.outcomes.size(), SimTime{-1});
          for (const TokenSpan& span : r.spans) {
            const auto i = static_cast<std::size_t>(span.request);
            const auto& ends = r.iteration_ends[static_cast<std::size_t>(span.replica)];
            CHECK(ends[static_cast<std::size_t>(span.first)] > last[i]);
            last[i] = ends[static_cast<std::size_t>(span.last())];
            tokens[i] += span.count;
          }
          for (std::size_t i = 0; i < tokens.size(); ++i) {
            CHECK(tokens[i] == r.outcomes[i].output_tokens);
          }
          CHECK(test::same(r, service.run()));
        }
      }
    }
  }
}

TEST_CASE("if a decoding replica has no room, caches wait on the replica that computed them") {
  // The decoding replica holds two sequences of 8 blocks, and no other blocks for their 100 tokens.
  SmallService service{.blocks = 17,
                       .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1"},
                       .cluster = {.prefill_replicas = 1, .link = kNoBound}};
  for (int i = 0; i < 4; ++i) service.trace.requests.push_back(request(0, 112, 17));
  const ServeResult r = service.run();
  CHECK(r.completed == 4);
  CHECK(r.preemptions == 0);
  CHECK(r.transfers == 4);
  CHECK(r.transfer.p99 == 0);
  // Two prompts of 7 blocks each are prefilled simultaneously, and the pool of the prefilling
  // replica is full until the first two are done.
  CHECK(r.transfer_wait.p50 == 0);
  CHECK(r.transfer_wait.p99 == test::rel(15e-3));
  CHECK(s(r.outcomes[3].first_token) == test::rel(2e-3));
  CHECK(s(r.outcomes[3].finish) == test::rel(1e-3 + 16e-3 + 16e-3));
}

TEST_CASE("a decoding replica that is short of memory recomputes its preempted sequences itself") {
  SmallService service{.blocks = 20,
                       .scheduler = {.name = "vllm-v1"},
                       .cluster = {.prefill_replicas = 1, .link = kNoBound}};
  for (int i = 0; i < 6; ++i) service.trace.requests.push_back(request(0.001 * i, 80, 120));
  const ServeResult r = service.run();
  CHECK(r.completed == 6);
  CHECK(r.preemptions > 0);
  CHECK(r.replicas[0].preemptions == r.preemptions);
  CHECK(r.replicas[0].prompt_tokens > 0);
}

TEST_CASE("other requests' prompts no longer delay tokens and tokens no longer delay prompts") {
  SmallService together{.blocks = 4000,
                        .times = {.iteration = 2e-3, .per_token = 2e-5, .per_entry = 1e-7},
                        .scheduler = {.name = "vllm-v1"},
                        .trace = test::random_trace(23, 300, 60, 300, 60)};
  SmallService apart = together;
  together.cluster = {.replicas = 2};
  apart.cluster = {.replicas = 1, .prefill_replicas = 1, .link = kNoBound};
  const ServeResult a = together.run();
  const ServeResult b = apart.run();
  REQUIRE(a.completed == b.completed);
  // No gap except the first includes a chunk of 512 tokens, which takes 10 ms.
  CHECK(a.itl.p99 > 10e-3);
  CHECK(b.itl.p99 < 10e-3);
  // Prompts on the same replica wait only for prompts.
  together.cluster = {};
  CHECK(b.ttft.mean < together.run().ttft.mean);
}

TEST_CASE("a slower link delays the second token and never the first of a single request") {
  double before = 0;
  for (const double link : {1e9, 1e8, 1e7, 1e6}) {
    SmallService service{.scheduler = {.name = "vllm-v1"},
                         .cluster = {.prefill_replicas = 1, .link = BytesPerSecond{link}}};
    service.trace.requests = {request(0, 200, 20)};
    const ServeResult r = service.run();
    CHECK(r.itl.p99 > before);
    CHECK(r.ttft.mean == test::rel(1e-3 + 200e-6));
    before = r.itl.p99;
  }
}

TEST_CASE("a method that compresses before its cache moves sends the kept entries") {
  SmallService service{.method = {"snapkv", {}, Budget{.entries = 64}},
                       .cluster = {.prefill_replicas = 1, .link = BytesPerSecond{1e7}}};
  service.scheduler.name = "vllm-v1";
  for (int i = 0; i < 5; ++i) service.trace.requests.push_back(request(0.2 * i, 320, 10));
  const ServeResult before = service.run();
  service.cluster.compress_before_transfer = false;
  const ServeResult after = service.run();
  REQUIRE(before.completed == 5);
  REQUIRE(after.completed == 5);
  CHECK(after.transferred == Bytes{5 * 320 * 1024});
  CHECK(before.transferred < after.transferred);
  CHECK(before.transferred >= Bytes{5 * 64 * 1024});
  CHECK(before.itl.mean < after.itl.mean);
  // Afterwards both hold only the kept entries, so their steps are equal.
  CHECK(before.itl.p50 == test::rel(after.itl.p50));
}

TEST_CASE("caches of static batches do not move") {
  SmallService service{.scheduler = {.name = "static", .batch = 2},
                       .trace = test::random_trace(1, 5, 10, 10, 5),
                       .cluster = {.prefill_replicas = 1}};
  CHECK_THROWS_AS((void)service.run(), InputError);
}

}  // namespace
}  // namespace kvsim
