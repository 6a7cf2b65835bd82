// The service compared with a reference of vLLM's V1 scheduler: it visits every sequence in every
// iteration, without an event queue and without state between iterations.

#include <deque>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::SmallService;

struct ReferenceRequest {
  std::int64_t known = 0, computed = 0, planned = 0, blocks = 0, generated = 0;
  SimTime first{-1}, finish{-1}, scheduled{-1};
  std::int32_t preemptions = 0;
};

struct ReferenceResult {
  std::vector<ReferenceRequest> requests;
  std::vector<SimTime> ends;
};

ReferenceResult reference_v1(const SmallService& s) {
  const auto& requested = s.trace.requests;
  const std::int64_t budget = *s.scheduler.max_num_batched_tokens;
  const auto seqs = static_cast<std::size_t>(*s.scheduler.max_num_seqs);
  const std::int64_t threshold = *s.scheduler.long_prefill_token_threshold;
  ReferenceResult out;
  out.requests.resize(requested.size());
  for (std::size_t i = 0; i < requested.size(); ++i)
    out.requests[i].known = requested[i].prompt_tokens;
  std::deque<std::size_t> waiting;
  std::vector<std::size_t> running;
  std::size_t next = 0;
  SimTime now{};
  const auto blocks_of = [&](std::int64_t tokens) {
    return (tokens + s.block_tokens - 1) / s.block_tokens;
  };
  const auto grow = [&](ReferenceRequest& r, std::int64_t tokens) {
    std::int64_t used = 0;
    for (const std::size_t i : running) used += out.requests[i].blocks;
    const std::int64_t want = blocks_of(r.computed + tokens);
    if (used - r.blocks + want > s.blocks) return false;
    r.blocks = want;
    r.planned = tokens;
    return true;
  };
  for (;;) {
    while (next < requested.size() && requested[next].arrival <= now) {
      // The output length is unknown at this point.
      if (blocks_of(requested[next].prompt_tokens) <= s.blocks) waiting.push_back(next);
      ++next;
    }
    if (running.empty() && waiting.empty()) {
      if (next == requested.size()) return out;
      now = requested[next].arrival;
      continue;
    }
    std::int64_t left = budget;
    bool preempted = false;
    const auto share = [&](const ReferenceRequest& r) {
      std::int64_t n = r.known - r.computed;
      if (threshold > 0) n = std::min(n, threshold);
      return std::min(n, left);
    };
    for (std::size_t at = 0; at < running.size() && left > 0; ++at) {
      const std::size_t id = running[at];
      const std::int64_t n = share(out.requests[id]);
      bool fits = grow(out.requests[id], n);
      while (!fits) {
        const std::size_t victim = running.back();
        running.pop_back();
        ReferenceRequest& v = out.requests[victim];
        v.computed = v.blocks = v.planned = 0;
        preempted = true;
        // A sequence that exceeds the pool while it runs alone ends. Otherwise it is recomputed.
        if (running.empty()) break;
        waiting.push_front(victim);
        ++v.preemptions;
        if (victim == id) break;
        fits = grow(out.requests[id], n);
      }
      if (!fits) break;
      left -= n;
    }
    while (!preempted && !waiting.empty() && left > 0 && running.size() < seqs) {
      const std::size_t id = waiting.front();
      ReferenceRequest& r = out.requests[id];
      const std::int64_t n = share(r);
      if (s.scheduler.reserve_full_isl.value_or(false) && !running.empty()) {
        std::int64_t used = 0;
        for (const std::size_t i : running) used += out.requests[i].blocks;
        if (used + blocks_of(r.known) > s.blocks) break;
      }
      if (!grow(r, n)) break;
      waiting.pop_front();
      running.push_back(id);
      if (r.scheduled < SimTime{}) r.scheduled = now;
      left -= n;
    }
    std::int64_t tokens = 0;
    for (const std::size_t id : running) tokens += out.requests[id].planned;
    if (tokens == 0) continue;  // the next iteration has the memory of preempted sequences
    now +=
        to_sim_time(Seconds{s.times.iteration + s.times.per_token * static_cast<double>(tokens)});
    out.ends.push_back(now);
    std::vector<std::size_t> stay;
    for (const std::size_t id : running) {
      ReferenceRequest& r = out.requests[id];
      r.computed += std::exchange(r.planned, 0);
      if (r.computed == r.known) {
        if (requested[id].output_tokens > 0) {
          if (r.generated++ == 0) r.first = now;
          ++r.known;
        }
        if (r.generated == requested[id].output_tokens) {
          r.finish = now;
          r.blocks = 0;
          continue;
        }
      }
      stay.push_back(id);
    }
    running = stay;
  }
}

TEST_CASE("the service equals a reference of V1 iteration by iteration") {
  std::int64_t preemptions = 0, rejected = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    for (const std::int64_t blocks : {9, 12, 24, 60}) {
      for (const std::int64_t threshold : {0, 33, 34}) {
        const bool whole = threshold == 34;
        INFO("seed ", seed, " blocks ", blocks, " threshold ", threshold);
        SmallService service{.blocks = blocks,
                             .times = {.iteration = 1e-3, .per_token = 2e-5, .per_entry = 0},
                             .scheduler = {.name = "vllm-v1",
                                           .max_num_batched_tokens = 70,
                                           .max_num_seqs = 9,
                                           .long_prefill_token_threshold = threshold,
                                           .prefix_caching = false,
                                           .reserve_full_isl = whole}};
        for (Request r : test::random_trace(seed, 80, 60, 60, 30).requests) {
          if (r.after >= 0) continue;
          service.trace.requests.push_back(r);
        }
        const ServeResult got = service.run();
        const ReferenceResult want = reference_v1(service);
        REQUIRE(got.iteration_ends[0].size() == want.ends.size());
        CHECK(got.iteration_ends[0] == want.ends);
        for (std::size_t i = 0; i < want.requests.size(); ++i) {
          const ReferenceRequest& w = want.requests[i];
          const RequestOutcome& g = got.outcomes[i];
          CHECK(g.scheduled == w.scheduled);
          CHECK(g.first_token == w.first);
          CHECK(g.finish == w.finish);
          CHECK(g.preemptions == w.preemptions);
          preemptions += w.preemptions;
          rejected += w.finish < SimTime{} ? 1 : 0;
        }
      }
    }
  }
  CHECK(preemptions > 100);
  CHECK(rejected > 0);
}

}  // namespace
}  // namespace kvsim
