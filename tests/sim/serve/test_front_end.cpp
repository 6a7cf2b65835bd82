// The API server before an engine, and engines that schedule ahead.

#include "sim/serve/engine/front_end.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::request;
using test::SmallService;

constexpr double kMs = 1e-3;
SimTime ms(double t) { return to_sim_time(Seconds{t * kMs}); }
double in_ms(SimTime t) { return to_seconds(t).count() / kMs; }

TEST_CASE("an API server does one piece of work after the other, requests and tokens in turns") {
  FrontEnd server{{.latency = Seconds{5 * kMs},
                   .request = Seconds{2 * kMs},
                   .prompt_token = Seconds{0.01 * kMs},
                   .token = Seconds{0.1 * kMs}}};
  // 2 ms + 100 x 0.01 ms of work, and 5 ms of latency.
  CHECK(in_ms(server.admit(ms(0), 100)) == test::rel(8));
  // The second waits for the first's 3 ms: 3 + 2 + 5.
  CHECK(in_ms(server.admit(ms(0), 0)) == test::rel(10));
  // Ten tokens wait for the current request, 2 ms, and take 1 ms. The next tokens wait for the rest
  // of it.
  CHECK(in_ms(server.deliver(ms(1), 10)) == test::rel(4));
  CHECK(in_ms(server.deliver(ms(3.5), 10)) == test::rel(6));
  // It is idle at 20 ms.
  CHECK(in_ms(server.deliver(ms(20), 1)) == test::rel(20.1));
}

TEST_CASE("several API servers share requests and tokens, and none is faster for one request") {
  FrontEnd servers{{.latency = Seconds{5 * kMs},
                    .request = Seconds{2 * kMs},
                    .prompt_token = Seconds{0.01 * kMs},
                    .token = Seconds{0.1 * kMs},
                    .servers = 4}};
  // The first request takes its 3 ms and the latency; the next ones follow every 3 / 4 ms.
  CHECK(in_ms(servers.admit(ms(0), 100)) == test::rel(8));
  CHECK(in_ms(servers.admit(ms(0), 100)) == test::rel(8.75));
  CHECK(in_ms(servers.admit(ms(0), 100)) == test::rel(9.5));
  // Forty tokens, ten per server. The rest of the current work, 0.25 ms of the shares of 2.25 ms,
  // is done first.
  CHECK(in_ms(servers.deliver(ms(2), 40)) == test::rel(3.25));
  CHECK(in_ms(servers.deliver(ms(20), 40)) == test::rel(21));
}

TEST_CASE("without times an API server changes nothing") {
  FrontEnd server;
  CHECK(server.admit(ms(3), 4000) == ms(3));
  CHECK(server.deliver(ms(4), 100) == ms(4));
}

/// An iteration takes 10 ms.
SmallService service_of_ten_ms() {
  return {.times = {.iteration = 10 * kMs, .per_token = 0, .per_entry = 0},
          .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 100}};
}

TEST_CASE("a single request pays the latency to the engine once and the stream of each token") {
  SmallService service = service_of_ten_ms();
  service.front_end = {.latency = Seconds{4 * kMs},
                       .request = Seconds{1 * kMs},
                       .prompt_token = Seconds{0.02 * kMs},
                       .token = Seconds{0.5 * kMs}};
  service.trace.requests = {request(0, 50, 3)};
  const ServeResult r = service.run();
  // 1 + 50 x 0.02 + 4 = 6 ms to the engine; its iterations end at 16, 26 and 36 ms.
  CHECK(in_ms(r.outcomes[0].first_token) == test::rel(16.5));
  CHECK(in_ms(r.outcomes[0].finish) == test::rel(36.5));
  CHECK(r.ttft.mean == test::rel(16.5 * kMs));
  CHECK(r.tpot.mean == test::rel(10 * kMs));
}

TEST_CASE("a server slower than its engine delays tokens, not the engine") {
  SmallService service = service_of_ten_ms();
  service.front_end.token = Seconds{15 * kMs};
  service.trace.requests = {request(0, 50, 4)};
  const ServeResult r = service.run();
  // Iterations end at 10, 20, 30 and 40 ms, their tokens are out at 25, 40, 55 and 70 ms.
  CHECK(r.iterations == 4);
  CHECK(r.tpot.mean == test::rel(15 * kMs));
  CHECK(in_ms(r.outcomes[0].finish) == test::rel(70));
}

TEST_CASE("a server in the engine's process takes its share of each iteration, per sequence") {
  SmallService service = service_of_ten_ms();
  service.front_end.sequence = Seconds{2 * kMs};
  service.trace.requests = {request(0, 10, 3), request(0, 10, 3)};
  const ServeResult r = service.run();
  // Both sequences are in all three iterations: 10 + 2 x 2 ms each.
  CHECK(r.iterations == 3);
  CHECK(in_ms(r.outcomes[0].first_token) == test::rel(14));
  CHECK(r.tpot.mean == test::rel(14 * kMs));
}

TEST_CASE("in a closed loop a user sends the next request when the answer has arrived") {
  SmallService service = service_of_ten_ms();
  service.front_end = {.latency = Seconds{2 * kMs}, .request = {}, .prompt_token = {}, .token = {}};
  Request next = request(0, 50, 1);
  next.after = 0;
  service.trace.requests = {request(0, 50, 1), next};
  const ServeResult r = service.run();
  CHECK(in_ms(r.outcomes[0].finish) == test::rel(12));
  CHECK(in_ms(r.outcomes[1].arrival) == test::rel(12));
  CHECK(in_ms(r.outcomes[1].finish) == test::rel(24));
}

TEST_CASE("an engine that schedules ahead takes a request one iteration later unless it is idle") {
  SmallService service = service_of_ten_ms();
  service.trace.requests = {request(0, 50, 6), request(0.012, 50, 1)};
  const ServeResult in_step = service.run();
  service.async_scheduling = true;
  const ServeResult ahead = service.run();
  // The first request reaches an idle engine.
  CHECK(in_ms(in_step.outcomes[0].first_token) == test::rel(10));
  CHECK(in_ms(ahead.outcomes[0].first_token) == test::rel(10));
  // The second one arrives during the iteration that ends at 20 ms: it is in the one that ends at
  // 30 ms or, if that one is already formed, in the next one.
  CHECK(in_ms(in_step.outcomes[1].first_token) == test::rel(30));
  CHECK(in_ms(ahead.outcomes[1].first_token) == test::rel(40));
}

TEST_CASE("laws of an engine hold at every step if it schedules ahead behind a slow server") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    test::CheckingObserver observer;
    SmallService service{.blocks = 40, .observer = &observer};
    service.async_scheduling = true;
    service.front_end = {.latency = Seconds{3 * kMs},
                         .request = Seconds{0.5 * kMs},
                         .prompt_token = Seconds{1e-6},
                         .token = Seconds{1e-5}};
    service.trace = test::random_trace(seed, 200, 100, 60, 20);
    const ServeResult r = service.run();
    CHECK(r.completed + r.rejected == 200);
    CHECK(r.unfinished == 0);
    service.observer = nullptr;
    const ServeResult again = service.run();
    CHECK(again.makespan == r.makespan);
    for (std::size_t i = 0; i < r.outcomes.size(); ++i) {
      const RequestOutcome& o = r.outcomes[i];
      if (o.status != RequestStatus::kCompleted) continue;
      CHECK(again.outcomes[i].finish == o.finish);
      CHECK(o.finish >= o.first_token);
      CHECK(o.finish - o.arrival >= ms(3.5));
    }
  }
}

}  // namespace
}  // namespace kvsim
