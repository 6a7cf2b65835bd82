// Queue orders under every scheduler: the first admitted request, the preempted sequence, and the
// benefit. Conservation, termination and repeatability are checked with the other laws, for all
// variants.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sim/serve/schedulers/queue_order.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scheduling.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::honest;
using test::request;
using test::SmallService;
using test::Variant;
using test::variants;

/// Continuous batching, and static batches under each order: a running batch occupies the whole
/// engine.
std::vector<Variant> one_by_one() {
  std::vector<Variant> out = variants(1);
  for (const QueueOrder order : kQueueOrders) {
    out.push_back({.name = fmt::format("static, {}", display_name(order)),
                   .spec = {.name = "static", .order = order, .batch = 1}});
  }
  return out;
}

SmallService service_of(const Variant& v) {
  SmallService service{.scheduler = v.spec, .host_memory = v.spec.swap ? 1_GiB : Bytes{}};
  if (v.spec.name == "static") {  // a batch has activations in addition to its cache
    service.blocks = 1'000'000;
    service.stack = "ideal";
  }
  return service;
}

std::vector<int> by_start(const ServeResult& r) {
  std::vector<int> ids;
  for (int i = 0; i < static_cast<int>(r.outcomes.size()); ++i) ids.push_back(i);
  std::sort(ids.begin(), ids.end(), [&](int a, int b) {
    return r.outcomes[static_cast<std::size_t>(a)].scheduled <
           r.outcomes[static_cast<std::size_t>(b)].scheduled;
  });
  return ids;
}

TEST_CASE("every scheduler serves waiting requests by arrival, priority or shortest declared") {
  std::map<QueueOrder, int> seen;
  for (const Variant& v : one_by_one()) {
    INFO(v.name);
    SmallService service = service_of(v);
    for (int i = 0; i < 4; ++i) service.trace.requests.push_back(request(0, 10, 3));
    auto& r = service.trace.requests;
    r[0].priority = 2, r[1].priority = 1, r[2].priority = 1, r[3].priority = 0;
    r[0].declared_tokens = 0, r[1].declared_tokens = 9, r[2].declared_tokens = 5;
    r[3].declared_tokens = 9;
    const std::vector<int> order = by_start(service.run());
    if (v.spec.order == QueueOrder::kFcfs) CHECK(order == std::vector{0, 1, 2, 3});
    if (v.spec.order == QueueOrder::kPriority) CHECK(order == std::vector{3, 1, 2, 0});
    // A request without a declaration may have the longest output.
    if (v.spec.order == QueueOrder::kShortestDeclared) CHECK(order == std::vector{2, 1, 3, 0});
    ++seen[v.spec.order];
  }
  // Each scheduler, and variants with its options.
  for (const QueueOrder order : kQueueOrders) CHECK(seen[order] >= std::ssize(scheduler_names()));
}

TEST_CASE("shortest declared first lowers the mean latency under every scheduler") {
  std::map<std::string, std::map<QueueOrder, double>> mean;
  for (const Variant& v : one_by_one()) {
    SmallService service = service_of(v);
    service.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0};
    for (const int output : {40, 5, 10}) {
      service.trace.requests.push_back(request(0, 20, output));
      service.trace.requests.back().declared_tokens = output;
    }
    const ServeResult r = service.run();
    REQUIRE(r.completed == 3);
    mean[v.spec.name][v.spec.order] = r.e2e.mean;
    INFO(v.name);
    if (v.spec.name == "static") continue;  // has additional costs
    // An output takes one iteration of 1 ms per token. In order of arrival, the ends are at 40, 45
    // and 55 ms. Shortest first: at 5, 15 and 55 ms.
    const bool shortest = v.spec.order == QueueOrder::kShortestDeclared;
    CHECK(r.e2e.mean == test::rel(1e-3 * (shortest ? 5 + 15 + 55 : 40 + 45 + 55) / 3));
  }
  CHECK(mean.size() == scheduler_names().size());
  for (auto& [name, by] : mean) {
    INFO(name);
    CHECK(by[QueueOrder::kShortestDeclared] < 0.7 * by[QueueOrder::kFcfs]);
    // All requests have the same priority.
    CHECK(by[QueueOrder::kPriority] == test::rel(by[QueueOrder::kFcfs]));
  }
}

/// Checks that no waiting request precedes a newly admitted one, and that no running sequence
/// follows a preempted one in the order.
class OrderObserver : public CheckingObserver {
 public:
  explicit OrderObserver(QueueOrder order) : order_{order} {}
  void planned(const IterationView& v) override {
    CheckingObserver::planned(v);
    const auto key = [&](std::size_t i) { return order_key(order_, (*v.sequences)[i]); };
    last_.resize(v.sequences->size(), SequenceState::kComing);
    std::vector<std::size_t> waits, left, runs, admitted;
    for (std::size_t i = 0; i < last_.size(); ++i) {
      const SequenceState now = (*v.sequences)[i].state;
      const bool ran = last_[i] == SequenceState::kRunning;
      if (now == SequenceState::kWaiting) waits.push_back(i);
      if (ran && (now == SequenceState::kWaiting || now == SequenceState::kSwapped)) {
        left.push_back(i);
      }
      if (now != SequenceState::kRunning) continue;
      runs.push_back(i);
      if (!ran && last_[i] != SequenceState::kSwapped) admitted.push_back(i);
    }
    for (const std::size_t in : admitted) {
      for (const std::size_t out : waits) {
        KVSIM_CHECK(key(in) < key(out), "request {} is admitted before {}", in, out);
        ++admissions;
      }
    }
    for (const std::size_t out : left) {
      for (const std::size_t in : runs) {
        KVSIM_CHECK(key(in) < key(out), "request {} is preempted before {}", out, in);
        ++put_out;
      }
    }
  }
  void ended(const IterationView& v) override {
    CheckingObserver::ended(v);
    last_.resize(v.sequences->size(), SequenceState::kComing);
    for (std::size_t i = 0; i < last_.size(); ++i) last_[i] = (*v.sequences)[i].state;
  }
  std::int64_t admissions = 0, put_out = 0;  // compared pairs

 private:
  QueueOrder order_;
  std::vector<SequenceState> last_;
};

TEST_CASE("no scheduler admits out of order or preempts any but the last in order") {
  for (const Variant& v : variants()) {
    if (v.spec.order == QueueOrder::kFcfs) continue;
    std::int64_t admissions = 0, put_out = 0;
    for (const bool caching : {false, true}) {
      for (const std::int64_t blocks : {24, 40, 90}) {
        for (const std::uint64_t seed : {7U, 12U, 31U}) {
          INFO(v.name, ", caching ", caching, ", ", blocks, " blocks, seed ", seed);
          OrderObserver observer{v.spec.order};
          SmallService service{
              .blocks = blocks,
              .scheduler = v.spec,
              .host_memory = v.spec.swap ? 1_GiB : Bytes{},
              .trace = honest(test::random_trace(seed, 100, 400, 100, 40, caching)),
              .observer = &observer};
          service.scheduler.prefix_caching = caching;
          // sglang reserves the declared output: with 0 it admits more than it can hold.
          if (v.spec.name == "sglang") service.scheduler.conservativeness = 0;
          CHECK(service.run().completed == 100);
          admissions += observer.admissions;
          put_out += observer.put_out;
        }
      }
    }
    INFO(v.name);
    CHECK(admissions > 1000);
    // With its reservation, sglang rarely has to preempt.
    CHECK((put_out > (v.spec.name == "sglang" ? 0 : 20)) == v.evicts);
  }
}

TEST_CASE("of two sequences that outgrow the cache the last in order is preempted") {
  int evicting = 0;
  for (const Variant& v : variants()) {
    if (!v.evicts) continue;
    INFO(v.name);
    SmallService service{.blocks = 9,
                         .scheduler = v.spec,
                         .host_memory = v.spec.swap ? 1_GiB : Bytes{},
                         .trace = {}};
    if (v.spec.name == "sglang") service.scheduler.conservativeness = 0;
    // Both requests are equal except for the keys of the orders. By both keys, the first request is
    // served last.
    service.trace.requests = {request(0, 40, 60), request(0, 40, 60)};
    service.trace.requests[0].priority = 1;
    service.trace.requests[0].declared_tokens = 8;
    service.trace.requests[1].declared_tokens = 4;
    const ServeResult r = service.run();
    CHECK(r.completed == 2);
    const bool first = v.spec.order != QueueOrder::kFcfs;
    CHECK((r.outcomes[0].preemptions > 0) == first);
    CHECK((r.outcomes[1].preemptions > 0) != first);
    ++evicting;
  }
  CHECK(evicting > 20);
}

TEST_CASE("a higher priority preempts a running sequence only if the engine supports it") {
  for (const QueueOrder order : {QueueOrder::kPriority, QueueOrder::kShortestDeclared}) {
    for (const bool first : {true, false}) {
      INFO(display_name(order), ", the running one comes first: ", first);
      const auto run = [&](SchedulerSpec spec, std::int64_t blocks) {
        spec.order = order;
        spec.max_num_seqs = 1;
        SmallService service{.blocks = blocks, .block_tokens = 4, .scheduler = std::move(spec)};
        service.trace.requests = {request(0, 6, 3), request(1.5e-3, 5, 2)};
        service.trace.requests[first ? 1 : 0].priority = 1;
        service.trace.requests[0].declared_tokens = first ? 3 : 9;
        service.trace.requests[1].declared_tokens = first ? 9 : 3;
        test::PlanObserver observer{4};
        service.observer = &observer;
        CHECK(service.run().completed == 2);
        return observer.plans;
      };
      using Plans = std::vector<std::string>;
      const Plans in_turn{"0:6", "0:1", "0:1", "1:5", "1:1"};
      // vllm-v0, whole prompts: the second request arrives while the first decodes, and replaces
      // it. With chunks it waits, as under vllm-v1.
      const Plans in_place{"0:6", "0:1", "1:5", "1:1", "0:8"};
      CHECK(run({.name = "vllm-v0", .chunked_prefill = false}, 100) ==
            (first ? in_turn : in_place));
      CHECK(run({.name = "vllm-v0", .max_num_batched_tokens = 64, .chunked_prefill = true}, 100) ==
            in_turn);
      CHECK(run({.name = "vllm-v1"}, 100) == in_turn);
      CHECK(run({.name = "sglang"}, 100) == in_turn);
      CHECK(run({.name = "trtllm"}, 100) == in_turn);
    }
  }
}

}  // namespace
}  // namespace kvsim
