// Laws of every registered scheduler, for all options and any workload.

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/scheduling.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::honest;
using test::request;
using test::SmallService;
using test::tokens_once;
using test::Variant;
using test::variants;

auto key(const RequestOutcome& r) {
  return std::tuple{r.arrival,       r.scheduled,     r.first_token, r.finish, r.prompt_tokens,
                    r.output_tokens, r.cached_tokens, r.preemptions, r.status};
}

/// Checks that requests and tokens add up, and that effects follow their causes.
void check_result(const SmallService& service, const ServeResult& r) {
  CHECK(r.completed + r.rejected == std::ssize(service.trace.requests));
  CHECK(r.unfinished == 0);
  std::vector<std::int64_t> tokens(r.outcomes.size());
  for (const TokenSpan& s : r.spans) {
    tokens[static_cast<std::size_t>(s.request)] += s.count;
    CHECK(r.iteration_ends[0][static_cast<std::size_t>(s.first)] >
          r.outcomes[static_cast<std::size_t>(s.request)].scheduled);
  }
  for (std::size_t i = 0; i < r.outcomes.size(); ++i) {
    const RequestOutcome& o = r.outcomes[i];
    CHECK(tokens[i] == o.output_tokens);
    if (o.status != RequestStatus::kCompleted) continue;
    // An engine that limits its longest sequence to the pool ends a request at that length.
    const bool cut = r.truncated_requests > 0 &&
                     o.prompt_tokens + o.output_tokens == service.blocks * service.block_tokens;
    CHECK((cut || o.output_tokens == service.trace.requests[i].output_tokens));
    CHECK(o.arrival <= o.scheduled);
    CHECK(o.scheduled < o.finish);
  }
}

SmallService service_of(const Variant& v, std::int64_t blocks, std::int64_t block_tokens = 16) {
  return {.blocks = blocks,
          .block_tokens = block_tokens,
          .scheduler = v.spec,
          .host_memory = v.spec.swap ? 1_GiB : Bytes{}};
}

TEST_CASE("every scheduler conserves requests, tokens and blocks at every step") {
  std::map<std::string, std::int64_t> preempted;
  for (const Variant& v : variants()) {
    for (const bool caching : {false, true}) {
      for (const std::int64_t block : {1, 16}) {
        for (const std::int64_t blocks : {24, 40, 200}) {
          INFO(v.name, " caching ", caching, ", ", blocks, " x 16 tokens in blocks of ", block);
          CheckingObserver observer{block};
          SmallService service = service_of(v, blocks * 16 / block, block);
          service.scheduler.prefix_caching = caching;
          service.trace = honest(test::random_trace(7, 100, 40, 100, 40, caching));
          service.observer = &observer;
          const ServeResult r = service.run();
          check_result(service, r);
          CHECK(r.rejected == 0);
          CHECK(observer.planned_tokens ==
                tokens_once(r) + r.recomputed_tokens - r.prefix_hit_tokens);
          CHECK(observer.max_running <= 12);
          CHECK(r.peak_blocks <= r.blocks);
          if (caching) CHECK(r.prefix_hit_tokens > 0);
          if (blocks == 200 && v.spec.order == QueueOrder::kFcfs) CHECK(r.preemptions == 0);
          if (!v.evicts) CHECK(r.preemptions == 0);
          // Under the priority order, preempted sequences are recomputed in every mode.
          if (v.spec.swap && !caching && v.spec.order == QueueOrder::kFcfs) {
            CHECK(r.recomputed_tokens == 0);
          }
          if (blocks == 24) preempted[v.name] += r.preemptions;
        }
      }
    }
  }
  // The small pool caused preemptions for each variant.
  for (const Variant& v : variants()) {
    INFO(v.name);
    if (v.evicts && v.spec.name != "sglang") CHECK(preempted[v.name] > 0);
  }
}

TEST_CASE("every scheduler gives the same bytes when repeated") {
  for (const Variant& v : variants()) {
    INFO(v.name);
    CheckingObserver first, second;
    SmallService service = service_of(v, 30);
    service.trace = honest(test::random_trace(3, 120, 60, 80, 30, true));
    service.scheduler.prefix_caching = true;
    service.observer = &first;
    const ServeResult a = service.run();
    service.observer = &second;
    const ServeResult b = service.run();
    CHECK(first.decisions == second.decisions);
    CHECK(a.iteration_ends == b.iteration_ends);
    CHECK(std::equal(a.outcomes.begin(), a.outcomes.end(), b.outcomes.begin(), b.outcomes.end(),
                     [](const auto& x, const auto& y) { return key(x) == key(y); }));
  }
}

TEST_CASE("no scheduler decides by the future length of an output") {
  for (const Variant& v : variants()) {
    INFO(v.name);
    CheckingObserver first, second;
    SmallService service = service_of(v, 40);
    service.max_model_len = 512;
    service.trace = test::random_trace(11, 80, 60, 80, 40);
    // The requests may continue for longer, within the declared length.
    for (Request& r : service.trace.requests) {
      if (r.declared_tokens > 0)
        r.declared_tokens = std::max(r.declared_tokens, r.output_tokens) + 50;
    }
    service.observer = &first;
    const ServeResult a = service.run();
    std::vector<SimTime> finishes;
    for (const RequestOutcome& o : a.outcomes) finishes.push_back(o.finish);
    std::sort(finishes.begin(), finishes.end());
    const SimTime cut = finishes[finishes.size() / 2];
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
      if (a.outcomes[i].finish <= cut) continue;
      ++changed;
      service.trace.requests[i].output_tokens += 50;
    }
    REQUIRE(changed > 10);
    service.observer = &second;
    (void)service.run();
    const auto up_to = [&](const CheckingObserver& o) {
      auto kept = o.decisions;
      std::erase_if(kept, [&](const auto& d) { return std::get<0>(d) > cut; });
      return kept;
    };
    CHECK(up_to(first).size() > 20);
    CHECK(up_to(first) == up_to(second));
    CHECK(first.decisions != second.decisions);
  }
}

TEST_CASE("no scheduler stops if the cache holds half to twice the demand") {
  // 12 sequences of at most 200 + 60 tokens: 17 blocks each.
  for (const Variant& v : variants()) {
    double before = 0;
    for (const double share : {0.5, 0.75, 1.0, 1.25, 2.0}) {
      for (const bool caching : {false, true}) {
        INFO(v.name, " ", share, " caching ", caching);
        CheckingObserver observer;
        SmallService service = service_of(v, static_cast<std::int64_t>(share * 12 * 17));
        service.scheduler.prefix_caching = caching;
        service.times = {.iteration = 1e-3, .per_token = 2e-5, .per_entry = 1e-8};
        service.observer = &observer;
        for (int i = 0; i < 100; ++i) {
          service.trace.requests.push_back(request(0, 180 + i % 21, 40 + i % 21));
        }
        const ServeResult r = service.run();
        CHECK(r.completed == 100);
        CHECK(r.recomputed_tokens < 100 * 250);
        if (share >= 1.25) CHECK(r.preemptions == 0);
        // More memory does not reduce the throughput.
        if (share == 0.5 && !caching) before = r.output_tok_s;
        CHECK(r.output_tok_s >= 0.95 * before);
      }
    }
  }
}

/// Checks that no request waits and no running sequence is omitted, except for batches of only
/// prompts.
class BusyObserver : public CheckingObserver {
 public:
  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    KVSIM_CHECK(v.waiting == 0, "{} wait though there is room for all", v.waiting);
    if (v.plan.size() == v.running.size()) return;
    for (const Planned& p : v.plan) {
      KVSIM_CHECK((*v.sequences)[static_cast<std::size_t>(p.id)].prefills(),
                  "request {} decodes while others are left out", p.id);
    }
    ++prompts_alone;
  }
  std::int64_t prompts_alone = 0;
};

TEST_CASE("with room for all no request waits and every sequence is in every iteration") {
  for (Variant v : variants(200)) {
    INFO(v.name);
    v.spec.max_num_batched_tokens.reset();
    BusyObserver observer;
    SmallService service = service_of(v, 4000);
    service.trace = test::random_trace(13, 150, 60, 60, 40);
    service.observer = &observer;
    const ServeResult r = service.run();
    CHECK(r.completed == 150);
    CHECK(r.preemptions == 0);
    const bool prompts_first = (v.spec.name == "sglang" && !v.spec.mixed_chunk) ||
                               (v.spec.name == "vllm-v0" && !*v.spec.chunked_prefill);
    CHECK((observer.prompts_alone > 0) == prompts_first);
  }
}

TEST_CASE("under first come first served the first request never starves") {
  for (const Variant& v : variants(6)) {
    if (v.spec.order != QueueOrder::kFcfs) continue;
    for (const std::int64_t blocks : {24, 60}) {
      INFO(v.name, " ", blocks);
      SmallService service = service_of(v, blocks);
      service.trace = honest(test::random_trace(5, 150, 80, 90, 30));
      const ServeResult r = service.run();
      std::vector<std::pair<SimTime, SimTime>> started;
      for (const RequestOutcome& o : r.outcomes) started.emplace_back(o.arrival, o.scheduled);
      std::sort(started.begin(), started.end());
      for (std::size_t i = 1; i < started.size(); ++i) {
        if (started[i].first > started[i - 1].first) {
          CHECK(started[i].second >= started[i - 1].second);
        }
      }
    }
  }
}

TEST_CASE(
    "too large requests are refused, others are served, and none waits behind a refused one") {
  for (const Variant& v : variants()) {
    for (const bool caching : {false, true}) {
      INFO(v.name, " caching ", caching);
      CheckingObserver observer;
      SmallService service = service_of(v, 8);
      service.scheduler.prefix_caching = caching;
      service.observer = &observer;
      // 8 blocks of 16: 128 tokens; the last one is never computed.
      service.trace.requests = {request(0, 100, 29), request(0, 129, 0), request(0, 100, 30),
                                request(0, 128, 0), request(0, 20, 5)};
      const ServeResult r = service.run();
      check_result(service, r);
      // vllm-v0 touches one block more than the sequence fills, so the sequence is preempted. If it
      // is swapped, it never returns: it requires its eight blocks and one to touch.
      const bool never = v.spec.swap.has_value();
      CHECK((r.outcomes[0].status == RequestStatus::kCompleted) == !never);
      CHECK(r.outcomes[1].status == RequestStatus::kRejected);
      const bool cuts = find_scheduler(v.spec.name).clips;
      CHECK((r.outcomes[2].status == RequestStatus::kCompleted) == cuts);
      CHECK(r.truncated_requests == (cuts ? 2 : 0));
      CHECK(r.outcomes[3].status == RequestStatus::kCompleted);
      CHECK(r.outcomes[4].status == RequestStatus::kCompleted);
    }
  }
}

TEST_CASE("no block is counted twice: sequences that fill the pool exactly are not preempted") {
  for (const Variant& v : variants()) {
    // This engine requires one more block (see the case of vllm-v0).
    const std::int64_t touched = v.spec.name == "vllm-v0" ? 1 : 0;
    for (const bool caching : {false, true}) {
      INFO(v.name, " caching ", caching);
      SmallService service = service_of(v, 24 + touched);
      service.scheduler.prefix_caching = caching;
      // 33 + 64 - 1 = 96 tokens: exactly six blocks.
      for (int i = 0; i < 4; ++i) {
        service.trace.requests.push_back(request(0, 33, 64));
        service.trace.requests.back().declared_tokens = 64;
      }
      const ServeResult exact = service.run();
      CHECK(exact.preemptions == 0);
      CHECK(exact.completed == 4);
      CHECK(exact.peak_blocks <= 24);
      // Two sequences that fit together run together, regardless of reservation.
      CHECK(exact.iterations < 3 * 64);
    }
  }
}

TEST_CASE("cached blocks of preempted sequences do not count as output") {
  for (const Variant& v : variants()) {
    for (const bool caching : {false, true}) {
      INFO(v.name, " caching ", caching);
      CheckingObserver observer;
      SmallService service = service_of(v, 20);
      service.scheduler.prefix_caching = caching;
      service.observer = &observer;
      for (int i = 0; i < 12; ++i) service.trace.requests.push_back(request(0, 64, 48));
      const ServeResult r = service.run();
      CHECK(r.output_tokens == 12 * 48);
      CHECK(r.prompt_tokens == 12 * 64);
      CHECK(r.total_tok_s == test::rel(12 * 112 / to_seconds(r.makespan).count()));
      CHECK(r.prefix_hit_tokens == 0);
      CHECK(observer.planned_tokens == 12 * 111 + r.recomputed_tokens);
    }
  }
}

TEST_CASE("every scheduler serves methods that keep fewer than all tokens") {
  for (const Variant& v : variants()) {
    for (const std::string method : {"streaming-llm", "snapkv", "pyramidkv"}) {
      for (const std::int64_t blocks : {40, 120}) {
        INFO(v.name, " ", method, " ", blocks);
        CheckingObserver observer{16, false};
        SmallService service = service_of(v, blocks);
        service.method = {method, {}, Budget{.entries = 64}};
        service.trace = honest(test::random_trace(9, 40, 40, 90, 40));
        service.observer = &observer;
        const ServeResult r = service.run();
        CHECK(r.completed + r.rejected == 40);
        CHECK(r.rejected == r.oom_events);
        if (blocks == 120) CHECK(r.rejected == 0);
        if (!v.evicts) CHECK(r.preemptions == 0);
      }
    }
  }
}

/// Follows caches to host memory and back, and checks the time of each iteration against their
/// bytes.
class SwapObserver : public CheckingObserver {
 public:
  explicit SwapObserver(Bytes host) : host_{host} {}
  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    states_.resize(v.sequences->size(), SequenceState::kComing);
    Bytes moved;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const Sequence& s = (*v.sequences)[i];
      const Bytes bytes = 16_KiB * ((s.computed + 15) / 16);  // 1 KiB per token, whole blocks
      if (s.state == SequenceState::kSwapped && states_[i] != s.state) {
        out += bytes;
        inside += bytes;
        moved += bytes;
      }
      if (s.state != SequenceState::kSwapped && states_[i] == SequenceState::kSwapped) {
        back += bytes;
        inside -= bytes;
        moved += bytes;
      }
      states_[i] = s.state;
    }
    KVSIM_CHECK(inside <= host_, "{} bytes in host memory", inside.count());
    max = std::max(max, inside);
    const double took = to_seconds(v.end - v.start).count();
    const double wanted = 1e-3 + (moved / BytesPerSecond{25e9}).count();
    KVSIM_CHECK(std::abs(took - wanted) < 2e-12, "{} s, not {}", took, wanted);
  }
  Bytes out, back, inside, max;

 private:
  Bytes host_;
  std::vector<SequenceState> states_;
};

TEST_CASE("swapped bytes leave and return within host memory at the link's rate") {
  for (const bool chunked : {false, true}) {
    for (const Bytes host : {1_GiB, 200_KiB, 60_KiB}) {
      INFO(chunked, " ", host.count());
      SwapObserver observer{host};
      SmallService service{.blocks = 30,
                           .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                           .scheduler = {.name = "vllm-v0",
                                         .max_num_seqs = 12,
                                         .chunked_prefill = chunked,
                                         .swap = true},
                           .host_memory = host,
                           .trace = test::random_trace(7, 100, 60, 100, 40),
                           .observer = &observer};
      const ServeResult r = service.run();
      CHECK(r.completed == 100);
      CHECK(observer.out > Bytes{});
      CHECK(observer.out == observer.back);
      CHECK(observer.inside == Bytes{});
      CHECK(observer.max <= host);
      // Sequences that do not fit there are recomputed.
      CHECK((r.recomputed_tokens > 0) == (observer.max + 300_KiB > host));
    }
  }
}

}  // namespace
}  // namespace kvsim
