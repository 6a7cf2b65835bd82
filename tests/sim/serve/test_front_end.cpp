// The API server before an engine, and engines that schedule ahead.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

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

/// Times at which each request of `sent` (time, prompt) reaches the engine. `delivered`: times at
/// which clients receive each lot of tokens of `made` (time, tokens). `polls`: additional times at
/// which the engine polls.
struct Seen {
  std::vector<SimTime> admitted, delivered;
};
Seen drive(FrontEnd server, const std::vector<std::pair<SimTime, std::int32_t>>& sent,
           const std::vector<std::pair<SimTime, std::int64_t>>& made = {},
           std::vector<SimTime> polls = {}) {
  Seen out;
  out.admitted.resize(sent.size());
  std::size_t request = 0, lot = 0, poll = 0;
  constexpr SimTime kNever{std::numeric_limits<std::int64_t>::max()};
  const auto leave = [&](SimTime now) {
    while (const auto id = server.take(now)) out.admitted[static_cast<std::size_t>(*id)] = now;
  };
  while (true) {
    const SimTime next = server.next().value_or(kNever);
    const SimTime arrival = request < sent.size() ? sent[request].first : kNever;
    const SimTime tokens = lot < made.size() ? made[lot].first : kNever;
    const SimTime look = poll < polls.size() ? polls[poll] : kNever;
    const SimTime now = std::min({next, arrival, tokens, look});
    if (now == kNever) return out;
    if (now == look) {
      ++poll;
    } else if (now == arrival) {
      server.arrive(static_cast<RequestId>(request), now, sent[request].second);
      ++request;
    } else if (now == tokens) {
      out.delivered.push_back(server.deliver(now, made[lot].second));
      ++lot;
    }
    leave(now);
  }
}

TEST_CASE("an API server does one piece of work after another, requests and tokens alternately") {
  const FrontEnd server{{.latency = Seconds{5 * kMs},
                         .request = Seconds{2 * kMs},
                         .prompt_token = Seconds{0.01 * kMs},
                         .token = Seconds{0.1 * kMs}}};
  const Seen seen = drive(server, {{ms(0), 100}, {ms(0), 0}, {ms(5.5), 0}},
                          {{ms(1), 10}, {ms(3.5), 10}, {ms(20), 1}});
  // 2 ms + 100 x 0.01 ms of work, and 5 ms of latency.
  CHECK(in_ms(seen.admitted[0]) == test::rel(8));
  // The second waits for the 3 ms of the first: 3 + 2 + 5.
  CHECK(in_ms(seen.admitted[1]) == test::rel(10));
  // Ten tokens wait for both requests, 5 ms, and take 1 ms; the next ten follow them.
  CHECK(in_ms(seen.delivered[0]) == test::rel(6));
  CHECK(in_ms(seen.delivered[1]) == test::rel(7));
  // The third request waits only for the first lot of tokens, not for all earlier work.
  CHECK(in_ms(seen.admitted[2]) == test::rel(6 + 2 + 5));
  // The server is idle at 20 ms.
  CHECK(in_ms(seen.delivered[2]) == test::rel(20.1));
}

TEST_CASE("requests that arrive together are processed together") {
  const FrontEnd server{{.latency = Seconds{5 * kMs},
                         .request = Seconds{3 * kMs},
                         .prompt_token = {},
                         .token = {},
                         .turns = 3}};
  // A single request takes 3 ms of work. Three simultaneous requests alternate in turns of 1 ms.
  CHECK(in_ms(drive(server, {{ms(0), 9}}).admitted[0]) == test::rel(8));
  const Seen burst = drive(server, {{ms(0), 9}, {ms(0), 9}, {ms(0), 9}}, {{ms(0.5), 4}});
  CHECK(in_ms(burst.admitted[0]) == test::rel(12));
  CHECK(in_ms(burst.admitted[1]) == test::rel(13));
  CHECK(in_ms(burst.admitted[2]) == test::rel(14));
  // Tokens wait for the turns that are already queued, one per request.
  CHECK(in_ms(burst.delivered[0]) == test::rel(3));
  // A request that arrives in the second turn of the first waits only for that turn: 0, [1, 2], 0,
  // 1, 1.
  const Seen late = drive(server, {{ms(0), 9}, {ms(1.5), 9}});
  CHECK(in_ms(late.admitted[0]) == test::rel(4 + 5));
  CHECK(in_ms(late.admitted[1]) == test::rel(6 + 5));
}

TEST_CASE("several API servers share requests and tokens, and none is faster for one request") {
  const FrontEnd servers{{.latency = Seconds{5 * kMs},
                          .request = Seconds{2 * kMs},
                          .prompt_token = Seconds{0.01 * kMs},
                          .token = Seconds{0.1 * kMs},
                          .servers = 4}};
  // Each of four servers accepts one request; the fifth waits for the first.
  const Seen seen =
      drive(servers, {{ms(0), 100}, {ms(0), 100}, {ms(0), 100}, {ms(0), 100}, {ms(1), 100}},
            {{ms(2), 40}, {ms(20), 40}});
  for (const std::size_t i : {0U, 1U, 2U, 3U}) CHECK(in_ms(seen.admitted[i]) == test::rel(8));
  CHECK(in_ms(seen.admitted[4]) == test::rel(11));
  // Forty tokens, ten per server: the last ones wait for the server with two requests.
  CHECK(in_ms(seen.delivered[0]) == test::rel(7));
  CHECK(in_ms(seen.delivered[1]) == test::rel(21));
}

TEST_CASE("without times an API server changes nothing") {
  const Seen seen = drive(FrontEnd{}, {{ms(3), 4000}, {ms(3), 1}}, {{ms(4), 100}});
  CHECK(seen.admitted == std::vector<SimTime>{ms(3), ms(3)});
  CHECK(seen.delivered == std::vector<SimTime>{ms(4)});
}

TEST_CASE("laws of an API server: order, conservation of work, and independence of polling") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    test::Dice dice{seed};
    const std::int32_t turns = dice.between(1, 4);
    const SimTime work = ms(dice.between(1, 7));
    const double token_ms = dice.between(0, 1) == 0 ? 0 : 0.5;
    const FrontEnd server{{.latency = Seconds{2 * kMs},
                           .request = to_seconds(work),
                           .prompt_token = {},
                           .token = Seconds{token_ms * kMs},
                           .turns = turns}};
    std::vector<std::pair<SimTime, std::int32_t>> sent;
    std::vector<std::pair<SimTime, std::int64_t>> made;
    std::vector<SimTime> polls;
    SimTime at{};
    for (int i = 0; i < 80; ++i) {
      at += ms(dice.between(0, 40) / 4.0);
      sent.emplace_back(at, 1);
      if (dice.between(0, 2) == 0) made.emplace_back(at, dice.between(0, 20));
      polls.push_back(at + ms(0.1));
    }
    const Seen seen = drive(server, sent, made);
    // No request leaves sooner than it would alone, or before an earlier one.
    for (std::size_t i = 0; i < sent.size(); ++i) {
      CHECK(seen.admitted[i] >= sent[i].first + work + ms(2));
      if (i > 0) CHECK(seen.admitted[i] >= seen.admitted[i - 1]);
    }
    CHECK(std::is_sorted(seen.delivered.begin(), seen.delivered.end()));
    for (std::size_t i = 0; i < made.size(); ++i) {
      CHECK(seen.delivered[i] >= made[i].first + ms(token_ms) * made[i].second);
    }
    if (token_ms == 0) {
      // One queue: the last request of each busy period leaves when all of its work is done; with
      // one turn this applies to every request.
      SimTime busy{};
      for (std::size_t i = 0; i < sent.size(); ++i) {
        busy = std::max(busy, sent[i].first) + work;
        const bool is_last = i + 1 == sent.size() || sent[i + 1].first > busy;
        if (turns == 1 || is_last) CHECK(seen.admitted[i] == busy + ms(2));
        CHECK(seen.admitted[i] >= busy + ms(2));
      }
    }
    const Seen polled = drive(server, sent, made, polls);
    CHECK(polled.admitted == seen.admitted);
    CHECK(polled.delivered == seen.delivered);
  }
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
  // Iterations end at 10, 20, 30 and 40 ms; their tokens are delivered at 25, 40, 55 and 70 ms.
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

TEST_CASE("in a closed loop a user sends the next request after the answer has arrived") {
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
  // The second request arrives during the iteration that ends at 20 ms. It joins the iteration that
  // ends at 30 ms or, if that one is already formed, the next one.
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
