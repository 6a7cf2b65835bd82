// Schedulers under memory pressure: the engine is not idle while the first waiting request would
// fit, every request makes progress, and discarded work counts as work but not as output.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/scheduling.hpp"
#include "tests/support/waiting_rules.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::honest;
using test::request;
using test::SmallService;
using test::tokens_once;
using test::Variant;
using test::variants;
using test::WorkObserver;

std::int64_t longest_of(const RequestTrace& trace) {
  std::int64_t max = 1;
  for (const Request& r : trace.requests) {
    max =
        std::max<std::int64_t>(max, r.prompt_tokens + std::max(r.output_tokens, r.declared_tokens));
  }
  return max;
}

TEST_CASE("no scheduler leaves memory idle that its rule would give to the first waiting request") {
  std::map<std::string, std::int64_t> short_of_memory;
  for (Variant v : variants()) {
    const bool watermarks = v.spec.name == "vllm-v0" || v.spec.name == "vllm-v1";
    for (const double watermark : {0.0, 0.1}) {
      if (watermark > 0 && !watermarks) continue;
      if (watermarks) v.spec.watermark = watermark;
      for (const std::int64_t blocks : {24, 40, 90}) {
        for (const std::uint64_t seed : {7U, 12U, 31U}) {
          INFO(v.name, ", watermark ", watermark, ", ", blocks, " blocks, seed ", seed);
          SmallService service{.blocks = blocks,
                               .scheduler = v.spec,
                               .host_memory = v.spec.swap ? 1_GiB : Bytes{},
                               .trace = honest(test::random_trace(seed, 100, 400, 100, 40))};
          WorkObserver observer{
              {.spec = v.spec, .blocks = blocks, .longest = longest_of(service.trace)}};
          service.observer = &observer;
          const ServeResult r = service.run();
          CHECK(r.completed == 100);
          CHECK(observer.iterations_with_waiting > 0);
          // A rule that admits no request after a preemption is exempt at most once per preemption.
          CHECK(observer.exempt <= r.preemptions);
          short_of_memory[v.name] += observer.for_memory;
        }
      }
    }
  }
  for (const auto& [name, iterations] : short_of_memory) {
    INFO(name);
    CHECK(iterations > 100);
  }
}

TEST_CASE("static batches follow each other without a pause, with and without memory pressure") {
  const Llm llm = test::small_llm();
  Gpu gpu = test::a800();
  auto trace = std::make_shared<RequestTrace>();
  test::Dice dice{17};
  double at = 0;
  for (int i = 0; i < 50; ++i) {
    at += dice.uniform() * 2e-3;
    trace->requests.push_back(request(at, dice.between(20, 400), dice.between(1, 300)));
  }
  constexpr std::size_t kBatch = 4;
  const ServeSpec spec{.llm = &llm,
                       .gpu = &gpu,
                       .stack = &find_stack("ideal"),
                       .requests = trace,
                       .scheduler = {.name = "static", .batch = kBatch}};
  const Bytes roomy = run_serve(spec).peak_hbm;
  for (const Bytes less : {Bytes{}, Bytes{1'000'000}}) {
    INFO(less.count(), " B short");
    gpu.hbm_usable = roomy - less;
    const ServeResult r = run_serve(spec);
    // A batch of four starts when the previous batch has ended, or when its last request arrives.
    // This also applies to a smaller batch after the last arrival.
    SimTime free{};
    std::size_t raised = 0;
    for (std::size_t first = 0; first < r.outcomes.size(); first += kBatch) {
      const std::size_t end = std::min(first + kBatch, r.outcomes.size());
      const SimTime starts = std::max(free, trace->requests[end - 1].arrival);
      bool lost = false;
      for (std::size_t i = first; i < end; ++i) {
        CHECK(r.outcomes[i].scheduled == starts);
        free = std::max(free, r.outcomes[i].finish);
        lost = lost || r.outcomes[i].status == RequestStatus::kRejected;
      }
      if (!lost) continue;
      // A batch that raises ends at that moment, not at the end of its longest output.
      REQUIRE(raised < r.ooms.size());
      CHECK(r.ooms[raised].request == static_cast<std::int32_t>(first));
      free = std::max(starts, r.ooms[raised].at);
      ++raised;
    }
    CHECK(std::cmp_equal(raised, r.oom_events));
    CHECK((raised > 0) == (less > Bytes{}));
    CHECK(r.completed > 20);
  }
}

/// Checks progress: between two preemptions a request has generated tokens, or was preempted for a
/// request that did.
class ProgressObserver : public CheckingObserver {
 public:
  using CheckingObserver::CheckingObserver;
  void ended(const IterationView& v) override {
    CheckingObserver::ended(v);
    const std::size_t n = v.sequences->size();
    known_.resize(n);
    left_.resize(n);
    state_.resize(n, SequenceState::kComing);
    ++without_token_;
    for (std::size_t i = 0; i < n; ++i) {
      const Sequence& s = (*v.sequences)[i];
      const bool leaves =
          state_[i] == SequenceState::kRunning &&
          (s.state == SequenceState::kWaiting || s.state == SequenceState::kSwapped);
      state_[i] = s.state;
      if (s.known > known_[i] && s.generated() > 0) {
        left_[i] = 0;
        without_token_ = 0;
      }
      known_[i] = s.known;
      if (s.state == SequenceState::kEnded) without_token_ = 0;
      if (leaves) max_leaves_without = std::max(max_leaves_without, ++left_[i]);
    }
    max_without_token = std::max(max_without_token, without_token_);
  }
  std::int64_t max_leaves_without = 0;  // of one request, without a token in between
  std::int64_t max_without_token = 0;   // in iterations of the whole engine

 private:
  std::vector<std::int32_t> known_;
  std::vector<std::int64_t> left_;
  std::vector<SequenceState> state_;
  std::int64_t without_token_ = 0;
};

TEST_CASE("every request makes progress if preempted sequences are compressed again or swapped") {
  std::map<std::string, std::int64_t> thrashed;
  for (Variant v : variants()) {
    // sglang reserves the declared output: requests declare too little.
    const bool estimates = v.spec.name == "sglang";
    if (estimates) v.spec.conservativeness = 0;
    for (const std::string method : {"full", "streaming-llm", "snapkv", "pyramidkv", "h2o"}) {
      // An iteration takes about as long as transferring a cache of 200 KiB over the link.
      SmallService service{.times = {.iteration = 1e-5, .per_token = 2e-7, .per_entry = 1e-10},
                           .scheduler = v.spec,
                           .host_memory = v.spec.swap ? 1_GiB : Bytes{}};
      if (method != "full") service.method = {method, {}, Budget{.entries = 64}};
      for (int i = 0; i < 60; ++i) {
        service.trace.requests.push_back(request(0, 180 + i % 21, 40 + i % 21));
        if (estimates) service.trace.requests.back().declared_tokens = 4;
      }
      service.blocks = 12 * 17 * 2;
      const ServeResult roomy = service.run();
      const std::int64_t wanted = roomy.peak_blocks;
      service.scheduler.max_num_seqs = 1;
      const ServeResult alone = service.run();
      service.scheduler.max_num_seqs = v.spec.max_num_seqs;
      REQUIRE(alone.completed == 60);
      for (const double share : {0.5, 0.75, 1.0, 1.5, 2.0}) {
        INFO(v.name, ", ", method, ", ", share, " of ", wanted, " blocks");
        service.blocks =
            std::max<std::int64_t>(18, std::llround(share * static_cast<double>(wanted)));
        ProgressObserver observer{16, method == "full"};
        service.observer = &observer;
        const ServeResult r = service.run();
        service.observer = nullptr;
        CHECK(r.completed == 60);
        std::int32_t max = 0;
        SimTime longest{};
        for (const RequestOutcome& o : r.outcomes) {
          max = std::max(max, o.preemptions);
          longest = std::max(longest, o.finish - o.scheduled);
        }
        // Each admission produces a token, except for sequences preempted before their prompt is
        // complete.
        CHECK(observer.max_leaves_without <= 3);
        CHECK(observer.max_without_token <= 2);
        CHECK(max <= 60);
        // Even with many preemptions it is not slower than serving requests one by one. No request
        // is in service for longer than twenty requests would take in that way.
        const double one_by_one = to_seconds(alone.makespan).count();
        CHECK(to_seconds(r.makespan).count() < one_by_one);
        CHECK(to_seconds(longest).count() < 20.0 / 60 * one_by_one);
        if (share >= 1.5) CHECK(r.preemptions == 0);
        // Swapped caches are not recomputed, unless they are preempted by the queue's order.
        if (v.spec.swap && v.spec.order == QueueOrder::kFcfs) CHECK(r.recomputed_tokens == 0);
        thrashed[v.name] += r.preemptions;
      }
    }
    INFO(v.name);
    CHECK((thrashed[v.name] > 20) == v.evicts);
  }
}

TEST_CASE("recomputation adds work and time but no output, with and without shared prefixes") {
  for (const Variant& v : variants()) {
    for (const bool shared : {false, true}) {
      for (const bool caching : {false, true}) {
        INFO(v.name, ", shared ", shared, ", caching ", caching);
        SmallService service{.blocks = 28,
                             .times = {.iteration = 1e-3, .per_token = 1e-5, .per_entry = 0},
                             .scheduler = v.spec,
                             .host_memory = v.spec.swap ? 1_GiB : Bytes{},
                             .trace = honest(test::random_trace(23, 80, 400, 90, 50, shared))};
        service.scheduler.prefix_caching = caching;
        CheckingObserver observer;
        service.observer = &observer;
        const ServeResult r = service.run();
        REQUIRE(r.completed == 80);
        const double span = to_seconds(r.makespan).count();
        std::int64_t requested = 0, prompts = 0;
        for (const Request& one : service.trace.requests) {
          requested += one.output_tokens;
          prompts += one.prompt_tokens;
        }
        // Each output token counts only once, even if it was recomputed or found in the cache.
        CHECK(r.output_tokens == requested);
        CHECK(r.prompt_tokens == prompts);
        CHECK(r.output_tok_s == test::rel(static_cast<double>(requested) / span));
        CHECK(r.total_tok_s == test::rel(static_cast<double>(requested + prompts) / span));
        // Lost tokens that are not found are recomputed at the same cost as the first time.
        const std::int64_t computed = tokens_once(r) + r.recomputed_tokens - r.prefix_hit_tokens;
        CHECK(observer.planned_tokens == computed);
        CHECK(r.replicas[0].prompt_tokens >= 0);
        CHECK(r.mfu * span == test::rel(1e-9 * static_cast<double>(computed), 1e-6));
        if (!v.spec.swap) {  // otherwise iterations also wait for the link
          const double busy =
              1e-3 * static_cast<double>(r.iterations) + 1e-5 * static_cast<double>(computed);
          CHECK(r.busy * span == test::rel(busy, 1e-6));
        }
        if (!shared) CHECK(r.prefix_hit_tokens == 0);
        if (shared && caching) CHECK(r.prefix_hit_tokens > 0);
        if (!caching) CHECK(r.prefix_hit_tokens == 0);
        // A small pool is never better than a pool that holds all requests, if no prefix is shared
        // and only discarded work could be found.
        if (!shared && v.evicts) {
          service.blocks = 4000;
          service.observer = nullptr;
          const ServeResult roomy = service.run();
          // Under the priority order, an earlier request also replaces others.
          if (v.spec.order == QueueOrder::kFcfs) CHECK(roomy.preemptions == 0);
          CHECK(r.output_tok_s <= roomy.output_tok_s * (1 + 1e-9));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvsim
