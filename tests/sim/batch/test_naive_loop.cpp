// The loop that bench_serve compares with kvsim: by hand, and compared with kvsim for equal work.

#include "tests/bench/naive_loop.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using peer::naive_loop;
using peer::NaiveResult;
using test::rel;
using test::request;
using test::SmallService;

TEST_CASE("the naive loop by hand: a prompt together with a decode, and an idle wait") {
  RequestTrace trace;
  trace.requests = {request(0, 10, 2), request(0.5, 20, 1), request(100, 5, 1)};
  // 1 s, 0.1 s per prompt token, 0.01 s per decode, 0.001 s per entry. First: 1 + 1 = 2 s. Then the
  // second prompt with a decode of 11 entries: 1 + 2 + 0.01 + 0.011 s. The third: 1 + 0.5 s.
  const NaiveResult r = naive_loop(
      trace, {.iteration = 1, .prompt_token = 0.1, .decode = 0.01, .entry = 0.001}, 8, 64);
  CHECK(r.completed == 3);
  CHECK(r.output_tokens == 4);
  CHECK(r.iterations == 3);
  CHECK(r.ttft_mean == rel((2 + (5.021 - 0.5) + 1.5) / 3));
  CHECK(r.e2e_mean == rel((5.021 + (5.021 - 0.5) + 1.5) / 3));
  CHECK(naive_loop({}, {}, 8, 64).completed == 0);
}

TEST_CASE("the naive loop admits prompts while tokens and places remain, or a single long one") {
  RequestTrace trace;
  trace.requests = {request(0, 30, 1), request(0, 30, 1), request(0, 100, 1), request(0, 5, 1)};
  const auto iterations = [&](std::size_t seqs, std::int64_t tokens) {
    const NaiveResult r = naive_loop(trace, {.iteration = 1}, seqs, tokens);
    CHECK(r.completed == 4);
    CHECK(r.output_tokens == 4);
    return r.iterations;
  };
  CHECK(iterations(8, 64) == 3);   // two prompts, the long one, the last
  CHECK(iterations(8, 200) == 1);  // all at once
  CHECK(iterations(1, 200) == 4);
}

TEST_CASE("kvsim and the naive loop agree if memory, chunks and entries have no effect") {
  SmallService service{.blocks = 4000,
                       .times = {.iteration = 1e-3, .per_token = 1e-6, .per_entry = 0},
                       .scheduler = {.name = "vllm-v1",
                                     .max_num_batched_tokens = 1 << 20,
                                     .max_num_seqs = 256,
                                     .prefix_caching = false}};
  service.trace = test::random_trace(5, 200, 100, 40, 20);
  for (Request& r : service.trace.requests) {
    r.after = -1;
    r.output_tokens = std::max(r.output_tokens, 1);
    r.declared_tokens = 0;
  }
  std::sort(service.trace.requests.begin(), service.trace.requests.end(),
            [](const Request& a, const Request& b) { return a.arrival < b.arrival; });
  const ServeResult mine = service.run();
  const NaiveResult naive = naive_loop(
      service.trace, {.iteration = 1e-3, .prompt_token = 1e-6, .decode = 1e-6}, 256, 1 << 20);
  REQUIRE(mine.preemptions == 0);
  CHECK(naive.completed == mine.completed);
  CHECK(naive.output_tokens == mine.output_tokens);
  CHECK(naive.iterations == mine.iterations);
  CHECK(naive.ttft_mean == rel(mine.ttft.mean, 1e-6));
  CHECK(naive.e2e_mean == rel(mine.e2e.mean, 1e-6));
}

}  // namespace
}  // namespace kvsim
