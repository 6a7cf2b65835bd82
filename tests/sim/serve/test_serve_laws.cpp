// Laws of every service for any workload: conservation at every step, causality, determinism,
// independence of the future, and no collapse under thrashing.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "sim/serve/cache/active_array.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::SmallService;

auto key(const RequestOutcome& r) {
  return std::tuple{r.arrival,       r.scheduled,     r.first_token, r.finish,  r.prompt_tokens,
                    r.output_tokens, r.cached_tokens, r.preemptions, r.replica, r.status};
}
auto key(const TokenSpan& s) { return std::tuple{s.request, s.replica, s.first, s.count}; }

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return key(x) == key(y); });
}

void check_outcomes(const SmallService& service, const ServeResult& r) {
  const auto n = static_cast<std::int64_t>(service.trace.requests.size());
  CHECK(r.completed + r.rejected + r.unfinished == n);
  CHECK(r.unfinished == 0);
  std::vector<std::int64_t> tokens(r.outcomes.size());
  std::vector<SimTime> last(r.outcomes.size(), SimTime{-1});
  for (const TokenSpan& s : r.spans) {
    const auto i = static_cast<std::size_t>(s.request);
    tokens[i] += s.count;
    const auto& ends = r.iteration_ends[static_cast<std::size_t>(s.replica)];
    REQUIRE(static_cast<std::size_t>(s.first + s.count) <= ends.size());
    CHECK(ends[static_cast<std::size_t>(s.first)] > last[i]);
    last[i] = ends[static_cast<std::size_t>(s.first + s.count - 1)];
  }
  for (std::size_t i = 0; i < r.outcomes.size(); ++i) {
    const RequestOutcome& o = r.outcomes[i];
    const Request& requested = service.trace.requests[i];
    CHECK(tokens[i] == o.output_tokens);
    if (o.status != RequestStatus::kCompleted) continue;
    CHECK(o.output_tokens == requested.output_tokens);
    CHECK(o.arrival <= o.scheduled);
    CHECK(o.scheduled < o.finish);
    if (requested.output_tokens > 0) {
      CHECK(o.scheduled < o.first_token);
      CHECK(o.first_token <= o.finish);
      CHECK(last[i] == o.finish);
    }
    if (requested.after >= 0) {
      const RequestOutcome& before = r.outcomes[static_cast<std::size_t>(requested.after)];
      if (before.finish >= SimTime{}) CHECK(o.arrival == before.finish + requested.arrival);
    } else {
      CHECK(o.arrival == requested.arrival);
    }
  }
}

void conserve(QueueOrder order, bool caching, std::int64_t blocks, std::int64_t long_prefill,
              std::uint64_t seed) {
  INFO(static_cast<int>(order), " caching ", caching, " blocks ", blocks, " threshold ",
       long_prefill, " seed ", seed);
  CheckingObserver observer;
  const SmallService service{.blocks = blocks,
                             .scheduler = {.name = "vllm-v1",
                                           .order = order,
                                           .max_num_batched_tokens = 256,
                                           .max_num_seqs = 12,
                                           .long_prefill_token_threshold = long_prefill,
                                           .prefix_caching = caching},
                             .trace = test::random_trace(seed, 150, 40, 100, 40, caching),
                             .observer = &observer};
  const ServeResult r = service.run();
  check_outcomes(service, r);
  // Computed tokens: each once, plus recomputed tokens, minus tokens found in the prefix cache.
  std::int64_t once = 0;
  for (const RequestOutcome& o : r.outcomes) {
    if (o.status == RequestStatus::kCompleted) {
      once += o.prompt_tokens + std::max(o.output_tokens - 1, 0);
    }
  }
  if (r.rejected == r.oom_events && r.rejected == 0) {
    CHECK(observer.planned_tokens == once + r.recomputed_tokens - r.prefix_hit_tokens);
  }
  CHECK(r.prefix_hit_tokens <= r.prefix_query_tokens);
  CHECK(observer.max_running <= 12);
  CHECK(r.peak_blocks <= r.blocks);
  CHECK(r.blocks == blocks);
  if (blocks == 200) CHECK(r.preemptions == 0);
  if (blocks == 24) CHECK(r.preemptions > 0);
  if (caching) CHECK(r.prefix_hit_tokens > 0);
}

TEST_CASE("requests, tokens and blocks are conserved at every step and time advances") {
  for (const QueueOrder order :
       {QueueOrder::kFcfs, QueueOrder::kPriority, QueueOrder::kShortestDeclared}) {
    for (const bool caching : {false, true}) {
      for (const std::int64_t blocks : {24, 40, 200}) {
        for (const std::int64_t long_prefill : {0, 40}) {
          for (const std::uint64_t seed : {7U, 40U, 47U}) {
            conserve(order, caching, blocks, long_prefill, seed);
          }
        }
      }
    }
  }
}

TEST_CASE("the same service gives the same bytes") {
  const SmallService service{.blocks = 30,
                             .scheduler = {.name = "vllm-v1", .max_num_seqs = 16},
                             .trace = test::random_trace(3, 200, 60, 80, 30, true)};
  const ServeResult a = service.run();
  const ServeResult b = service.run();
  CHECK(same(a.outcomes, b.outcomes));
  CHECK(same(a.spans, b.spans));
  CHECK(a.iteration_ends == b.iteration_ends);
  CHECK(a.itl.p99 == b.itl.p99);
  CHECK(a.preemptions > 0);
}

TEST_CASE("the scheduler never decides by the future length of an output") {
  for (const QueueOrder order :
       {QueueOrder::kFcfs, QueueOrder::kPriority, QueueOrder::kShortestDeclared}) {
    INFO(static_cast<int>(order));
    CheckingObserver first, second;
    SmallService service{
        .blocks = 40,
        .max_model_len = 640,  // otherwise the limit would depend on later requests
        .scheduler = {.name = "vllm-v1", .order = order, .max_num_batched_tokens = 128},
        .trace = test::random_trace(11, 80, 60, 80, 40),
        .observer = &first};
    const ServeResult a = service.run();
    // Halfway, each unfinished request is changed to continue for longer or to end sooner.
    std::vector<SimTime> finishes;
    for (const RequestOutcome& o : a.outcomes) finishes.push_back(o.finish);
    std::sort(finishes.begin(), finishes.end());
    const SimTime cut = finishes[finishes.size() / 2];
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
      if (a.outcomes[i].finish <= cut) continue;
      ++changed;
      // Some exceed the capacity of the engine.
      service.trace.requests[i].output_tokens += changed % 2 == 0 ? 50 : 5000;
    }
    REQUIRE(changed > 10);
    service.observer = &second;
    const ServeResult b = service.run();
    for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
      if (a.outcomes[i].finish <= cut) CHECK(key(a.outcomes[i]) == key(b.outcomes[i]));
    }
    const auto up_to = [&](const CheckingObserver& o) {
      auto kept = o.decisions;
      std::erase_if(kept, [&](const auto& d) { return std::get<0>(d) > cut; });
      return kept;
    };
    CHECK(up_to(first) == up_to(second));
    CHECK(first.decisions != second.decisions);
  }
}

/// The list of running sequences shrinks while it is iterated over: no sequence is skipped.
class NobodySkipped : public CheckingObserver {
 public:
  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    KVSIM_CHECK(v.plan.size() == v.running.size(), "{} of {} that run are planned", v.plan.size(),
                v.running.size());
  }
};

TEST_CASE("a sequence preempted while a batch is formed does not make others miss it") {
  NobodySkipped observer;
  SmallService service{.blocks = 20, .scheduler = {.name = "vllm-v1"}, .observer = &observer};
  service.scheduler.max_num_batched_tokens = 4096;
  for (int i = 0; i < 16; ++i) service.trace.requests.push_back(test::request(0, 20 + i, 60));
  const ServeResult r = service.run();
  CHECK(r.completed == 16);
  CHECK(r.preemptions > 4);
}

TEST_CASE("a cache between half and twice the demand slows a service down and never stops it") {
  // 12 sequences of at most 200 + 60 tokens: 17 blocks each.
  double before = 0;
  for (const double share : {0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0}) {
    for (const bool caching : {false, true}) {
      INFO(share, " caching ", caching);
      CheckingObserver observer;
      SmallService service{
          .blocks = static_cast<std::int64_t>(share * 12 * 17),
          .times = {.iteration = 1e-3, .per_token = 2e-5, .per_entry = 1e-8},
          .scheduler = {.name = "vllm-v1", .max_num_seqs = 12, .prefix_caching = caching},
          .observer = &observer};
      for (int i = 0; i < 200; ++i) {
        service.trace.requests.push_back(test::request(0, 180 + i % 21, 40 + i % 21));
      }
      const ServeResult r = service.run();
      CHECK(r.completed == 200);
      // Discarded work stays a fraction of the useful work.
      CHECK(r.recomputed_tokens < 200 * 250);
      if (share >= 1) CHECK(r.preemptions == 0);
      if (share == 0.5 && !caching) {
        CHECK(r.preemptions > 0);
        before = r.output_tok_s;
      }
      CHECK(r.output_tok_s >= 0.95 * before);
    }
  }
}

TEST_CASE("gaps kept as spans give the distribution of the gaps themselves") {
  const SmallService service{.blocks = 30,
                             .scheduler = {.name = "vllm-v1", .max_num_batched_tokens = 64},
                             .trace = test::random_trace(5, 120, 50, 70, 30)};
  const ServeResult r = service.run();
  REQUIRE(r.preemptions > 0);
  std::vector<std::vector<SimTime>> tokens(r.outcomes.size());
  for (const TokenSpan& s : r.spans) {
    for (std::int32_t i = 0; i < s.count; ++i) {
      tokens[static_cast<std::size_t>(s.request)].push_back(
          r.iteration_ends[0][static_cast<std::size_t>(s.first + i)]);
    }
  }
  std::vector<SimTime> gaps;
  for (const auto& of : tokens) {
    for (std::size_t i = 1; i < of.size(); ++i) gaps.push_back(of[i] - of[i - 1]);
  }
  const Distribution plain = distribution_of(gaps);
  CHECK(plain.n == r.itl.n);
  CHECK(plain.mean == test::rel(r.itl.mean));
  CHECK(plain.p50 == r.itl.p50);
  CHECK(plain.p90 == r.itl.p90);
  CHECK(plain.p95 == r.itl.p95);
  CHECK(plain.p99 == r.itl.p99);
  auto listed = token_gaps({r.spans, r.iteration_ends, r.outcomes});
  const Distribution of_list = distribution_of(listed);
  CHECK(of_list.mean == r.itl.mean);
  CHECK(of_list.n == r.itl.n);
}

TEST_CASE("a released group of requests is zero again, others keep their values") {
  constexpr std::size_t kGroup = ActiveArray<std::int32_t>::kGroup;
  constexpr std::size_t kMany = ZeroPages::kMinBytes / sizeof(std::int32_t);
  static_assert(kMany > 3 * kGroup);
  ActiveArray<std::int32_t> array(kMany + 100);
  CHECK(array.size() == kMany + 100);
  for (std::size_t i = 0; i < array.size(); ++i) {
    REQUIRE(array[i] == 0);
    array[i] = static_cast<std::int32_t>(i) + 1;
  }
  array.release_group(1);
  array.release_group(kMany / kGroup);  // less than a page may be kept
  for (std::size_t i = 0; i < kGroup; ++i) {
    REQUIRE(array[i] == static_cast<std::int32_t>(i) + 1);
#ifdef __linux__
    REQUIRE(array[kGroup + i] == 0);
#endif
  }
  for (std::size_t i = 2 * kGroup; i < kMany; ++i) {
    REQUIRE(array[i] == static_cast<std::int32_t>(i) + 1);
  }
  // A released group of few bytes may be kept.
  ActiveArray<std::int32_t> few(2 * kGroup);
  for (std::size_t i = 0; i < few.size(); ++i) {
    REQUIRE(few[i] == 0);
    few[i] = 7;
  }
  few.release_group(1);
  CHECK(few[kGroup - 1] == 7);
  CHECK(ActiveArray<std::int32_t>{0}.size() == 0);
}

TEST_CASE("requests are handled the same way for any number of earlier requests") {
  // The same burst is repeated, each after the end of the previous one. (Static batches wait for
  // the next burst, and sglang's ratio of new tokens depends on the past.)
  constexpr std::int32_t kBurst = 40, kBursts = 700;
  static_assert(sizeof(Sequence) * kBurst * kBursts > ZeroPages::kMinBytes);
  constexpr double kApart = 1000;
  const RequestTrace burst = test::random_trace(11, kBurst, 50, 70, 30);
  RequestTrace all = burst;
  all.requests.clear();
  for (std::int32_t b = 0; b < kBursts; ++b) {
    for (Request r : burst.requests) {
      if (r.after >= 0) {
        r.after += b * kBurst;
      } else {
        r.arrival += to_sim_time(Seconds{b * kApart});
      }
      all.requests.push_back(r);
    }
  }
  for (const std::string scheduler : {"vllm-v1", "vllm-v0", "trtllm"}) {
    INFO(scheduler);
    const SmallService service{.blocks = 30, .scheduler = {.name = scheduler}, .trace = all};
    const ServeResult r = service.run();
    REQUIRE(r.unfinished == 0);
    std::int64_t differ = 0;
    for (std::size_t i = kBurst; i < r.outcomes.size(); ++i) {
      const RequestOutcome& one = r.outcomes[i];
      const RequestOutcome& first = r.outcomes[i % kBurst];
      const SimTime shift = to_sim_time(Seconds{static_cast<double>(i / kBurst) * kApart});
      const auto moved = [&](SimTime t) { return t < SimTime{} ? t : t + shift; };
      const bool is_equal =
          one.arrival == moved(first.arrival) && one.scheduled == moved(first.scheduled) &&
          one.first_token == moved(first.first_token) && one.finish == moved(first.finish) &&
          one.status == first.status && one.preemptions == first.preemptions &&
          one.output_tokens == first.output_tokens;
      differ += is_equal ? 0 : 1;
    }
    CHECK(differ == 0);
  }
}

TEST_CASE("users of a shared list take its next request when any request has ended") {
  constexpr std::size_t kUsers = 3;
  RequestTrace trace = test::random_trace(3, 40, 1000, 70, 30);
  trace.shared_list = true;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    trace.requests[i].arrival = SimTime{};
    trace.requests[i].after = i < kUsers ? -1 : static_cast<std::int32_t>(i - kUsers);
  }
  const ServeResult r = SmallService{.blocks = 64, .trace = trace}.run();
  REQUIRE(r.unfinished == 0);
  std::vector<SimTime> ends;
  for (const RequestOutcome& one : r.outcomes) ends.push_back(one.finish);
  std::sort(ends.begin(), ends.end());
  for (std::size_t i = kUsers; i < r.outcomes.size(); ++i) {
    CHECK(r.outcomes[i].arrival == ends[i - kUsers]);
  }
  // With a list per user, a user with long answers ends after the others.
  trace.shared_list = false;
  const ServeResult own = SmallService{.blocks = 64, .trace = trace}.run();
  CHECK(own.makespan > r.makespan);
}

TEST_CASE("quantiles are values of the sample") {
  std::vector<SimTime> sample;
  for (std::int64_t i = 100; i >= 1; --i) sample.push_back(SimTime{i * 1'000'000'000'000});
  const Distribution d = distribution_of(sample);
  CHECK(d.n == 100);
  CHECK(d.mean == test::rel(50.5));
  CHECK(d.p50 == test::rel(50));
  CHECK(d.p90 == test::rel(90));
  CHECK(d.p99 == test::rel(99));
  std::vector<SimTime> one{SimTime{5'000'000'000'000}};
  CHECK(distribution_of(one).p50 == test::rel(5));
  CHECK(distribution_of(one).p99 == test::rel(5));
  std::vector<SimTime> none;
  CHECK(distribution_of(none).n == 0);
}

}  // namespace
}  // namespace kvsim
