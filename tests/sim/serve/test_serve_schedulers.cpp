// Interfaces used by schedulers: queue order, swapping, watermarks, unusual schedulers; every
// method of the catalogue through the pool; no allocation in the loop.

#include <algorithm>
#include <string>

#include "models/units/error.hpp"
#include "sim/serve/cache/swap_time.hpp"
#include "tests/support/check.hpp"
#include "tests/support/heap.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::request;
using test::SmallService;

TEST_CASE("waiting requests are served by arrival, by priority or by the shortest declared") {
  SmallService service{.scheduler = {.name = "vllm-v1", .max_num_seqs = 1}};
  for (int i = 0; i < 4; ++i) service.trace.requests.push_back(request(0, 10, 3));
  auto& r = service.trace.requests;
  r[0].priority = 2, r[1].priority = 1, r[2].priority = 1, r[3].priority = 0;
  r[0].declared_tokens = 0, r[1].declared_tokens = 9, r[2].declared_tokens = 5;
  r[3].declared_tokens = 9;
  const auto order = [&](QueueOrder by) {
    service.scheduler.order = by;
    const ServeResult out = service.run();
    std::vector<int> ids{0, 1, 2, 3};
    std::sort(ids.begin(), ids.end(), [&](int a, int b) {
      return out.outcomes[static_cast<std::size_t>(a)].scheduled <
             out.outcomes[static_cast<std::size_t>(b)].scheduled;
    });
    return ids;
  };
  CHECK(order(QueueOrder::kFcfs) == std::vector{0, 1, 2, 3});
  CHECK(order(QueueOrder::kPriority) == std::vector{3, 1, 2, 0});
  // A request without a declaration may have the longest output.
  CHECK(order(QueueOrder::kShortestDeclared) == std::vector{2, 1, 3, 0});
}

TEST_CASE("the last running sequence in order is preempted first") {
  for (const QueueOrder order : {QueueOrder::kFcfs, QueueOrder::kPriority}) {
    SmallService service{.blocks = 9,
                         .scheduler = {.name = "vllm-v1", .order = order, .prefix_caching = false}};
    service.trace.requests = {request(0, 40, 60), request(0, 40, 60)};
    service.trace.requests[0].priority = 1;
    const ServeResult r = service.run();
    CHECK(r.completed == 2);
    const bool first = order == QueueOrder::kPriority;
    CHECK((r.outcomes[0].preemptions > 0) == first);
    CHECK((r.outcomes[1].preemptions > 0) != first);
    // Both hold 64 tokens in four blocks each; one of them uses the ninth block, and the other's 64
    // tokens are recomputed.
    CHECK(r.preemptions == 1);
    CHECK(r.recomputed_tokens == 64);
  }
}

TEST_CASE("a watermark keeps blocks free when requests are admitted, except for a single one") {
  SmallService service{.blocks = 20, .scheduler = {.name = "vllm-v1", .watermark = 0.5}};
  for (int i = 0; i < 6; ++i) service.trace.requests.push_back(request(0, 64, 10));
  CheckingObserver half;
  service.observer = &half;
  CHECK(service.run().completed == 6);
  // 20 blocks, 10 of which stay free: two prompts of 4, but not a third.
  CHECK(half.max_running == 2);
  service.scheduler.watermark = 0.95;
  CheckingObserver one;
  service.observer = &one;
  CHECK(service.run().completed == 6);
  CHECK(one.max_running == 1);
}

TEST_CASE("sequences preempted one after another for one chunk are not refused") {
  // Chunks of 512 tokens require many blocks at once: the two sequences that are served last are
  // preempted one after another, and return.
  SmallService service{.blocks = 70,
                       .scheduler = {.name = "vllm-v1",
                                     .order = QueueOrder::kPriority,
                                     .max_num_batched_tokens = 512,
                                     .prefix_caching = false,
                                     .reserve_full_isl = false}};
  service.trace.requests = {request(0, 900, 30), request(0.0001, 200, 200),
                            request(0.0002, 1000, 40), request(0.0003, 1000, 100),
                            request(0.0004, 64, 300)};
  for (int i = 0; i < 5; ++i) service.trace.requests[static_cast<std::size_t>(i)].priority = 5 - i;
  CheckingObserver observer;
  service.observer = &observer;
  const ServeResult r = service.run();
  CHECK(r.preemptions > 2);
  CHECK(r.completed == 5);
  CHECK(r.oom_events == 0);
}

/// Swaps where V1 would recompute; new requests wait until the swapped ones have returned.
class Swapping : public Scheduler {
 public:
  void schedule(BatchBuilder& batch) override {
    while (!batch.swapped().empty() && batch.swap_in(batch.swapped().front())) {
    }
    for (std::size_t i = 0; i < batch.running().size();) {
      const RequestId id = batch.running()[i];
      if (batch.schedule(id, batch.sequence(id).to_compute())) {
        ++i;
        continue;
      }
      const RequestId last = batch.running().back();
      if (!batch.swap_out(last)) batch.preempt(last);
      if (last == id) break;
    }
    while (batch.swapped().empty() && batch.waiting() > 0 && batch.running().size() < 16) {
      const RequestId id = batch.next_waiting();
      if (!batch.admit(id, batch.sequence(id).known - batch.cached_tokens(id))) return;
    }
  }
  [[nodiscard]] std::string describe() const override { return "swapping"; }
};

/// Never plans any work.
class Idle : public Scheduler {
 public:
  void schedule(BatchBuilder& /*batch*/) override {}
  [[nodiscard]] std::string describe() const override { return "idle"; }
};

TEST_CASE("swapped caches return unchanged over the link") {
  SmallService service{.blocks = 24,
                       .scheduler = {.name = "vllm-v1", .prefix_caching = false},
                       .host_memory = 1_GiB};
  for (int i = 0; i < 10; ++i) service.trace.requests.push_back(request(0, 64, 40));
  service.make_scheduler = [] { return std::make_unique<Swapping>(); };
  CheckingObserver observer;
  service.observer = &observer;
  const ServeResult swapped = service.run();
  CHECK(swapped.completed == 10);
  CHECK(swapped.preemptions > 0);
  CHECK(swapped.recomputed_tokens == 0);
  CHECK(observer.planned_tokens == 10 * 103);
  CHECK(swapped.scheduler.starts_with("swapping"));
  // If host memory is too small, they are recomputed.
  service.host_memory = Bytes{};
  service.observer = nullptr;
  const ServeResult recomputed = service.run();
  CHECK(recomputed.completed == 10);
  CHECK(recomputed.recomputed_tokens > 0);
}

TEST_CASE("swapped caches share the link and NVMe takes additional time, by hand") {
  const SwapRates rates{
      .link = BytesPerSecond{10.0}, .write = BytesPerSecond{4.0}, .read = BytesPerSecond{8.0}};
  const auto time = [&](std::int64_t host, std::int64_t out, std::int64_t in) {
    return swap_time({.host = Bytes{host}, .to_nvme = Bytes{out}, .from_nvme = Bytes{in}}, rates)
        .count();
  };
  CHECK(time(0, 0, 0) == 0);
  CHECK(time(100, 0, 0) == test::rel(10));
  CHECK(time(0, 100, 0) == test::rel(25));
  CHECK(time(0, 0, 100) == test::rel(12.5));
  // Both at 5 until the host has its 10; then NVMe reads the remaining 70 at 8.
  CHECK(time(10, 0, 80) == test::rel(2 + 70.0 / 8));
  // Writing leaves 6 to the host, and afterwards the full 10 of the link.
  CHECK(time(100, 4, 0) == test::rel(1 + 94.0 / 10));
  // A third each until the reads end after 3 s; then 4 and 6 until the writes end, 4.5 s more.
  CHECK(time(100, 28, 10) == test::rel(3 + 4.5 + 63.0 / 10));
  for (const std::int64_t more : {1, 10, 1000}) {
    CHECK(time(100 + more, 50, 50) >= time(100, 50, 50));
    CHECK(time(100, 50 + more, 50) >= time(100, 50, 50));
    CHECK(time(100, 50, 50 + more) >= time(100, 50, 50));
  }
  // Never faster than the link or the device permits, never slower than in sequence.
  CHECK(time(100, 50, 50) >= 200.0 / 10);
  CHECK(time(100, 50, 50) <= 100.0 / 10 + 50.0 / 4 + 50.0 / 8);
}

TEST_CASE("transfers in pieces take their own rate and leave the rest of the link, by hand") {
  const auto time = [](std::int64_t host, std::int64_t pieces, double rate) {
    return swap_time({.host = Bytes{host}, .pieces = Bytes{pieces}},
                     {.link = BytesPerSecond{10.0}, .pieces = BytesPerSecond{rate}})
        .count();
  };
  CHECK(time(0, 100, 2) == test::rel(50));
  // The host has 8 B/s until its 80 B are transferred; the pieces continue at 2 B/s.
  CHECK(time(80, 100, 2) == test::rel(50));
  CHECK(time(80, 10, 2) == test::rel(5 + (80 - 5 * 8.0) / 10));
  // Pieces as fast as the link: equal shares.
  CHECK(time(100, 100, 10) == test::rel(20));
  CHECK(time(100, 100, 10) == time(200, 0, 0));
  double last = 0;
  for (const double rate : {10.0, 7.0, 3.0, 0.5}) {
    const double t = time(100, 60, rate);
    CHECK(t >= last);
    CHECK(time(101, 60, rate) >= t);
    CHECK(time(100, 61, rate) > t);
    last = t;
  }
  CHECK_THROWS_AS((void)time(0, 1, 0), ContractError);
}

TEST_CASE("caches that do not fit in host memory move to NVMe and return unchanged") {
  SmallService service{.blocks = 60,
                       .scheduler = {.name = "vllm-v0", .prefix_caching = false, .swap = true},
                       .trace = test::random_trace(5, 60, 80, 80, 60)};
  const auto with = [&](Bytes host, Bytes nvme, double bandwidth) {
    CheckingObserver observer;
    service.observer = &observer;
    service.host_memory = host;
    service.nvme = {
        .capacity = nvme, .read = BytesPerSecond{bandwidth}, .write = BytesPerSecond{bandwidth}};
    const ServeResult r = service.run();
    CHECK(r.completed + r.rejected == 60);
    return r;
  };
  const auto says = [](const ServeResult& r, const char* words) {
    return std::any_of(r.notes.begin(), r.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  const ServeResult host = with(1_GiB, Bytes{}, 0);
  REQUIRE(host.preemptions > 0);
  CHECK(host.recomputed_tokens == 0);
  CHECK_FALSE(says(host, "NVMe"));
  CHECK(says(host, "swap: copies between a GPU and its host reach 25 GB/s of PCIe's 25 GB/s"));
  // A disk as fast as the link is equivalent to host memory.
  const ServeResult fast = with(Bytes{}, 1_GiB, 25e9);
  CHECK(fast.iteration_ends == host.iteration_ends);
  CHECK(fast.recomputed_tokens == 0);
  CHECK(says(fast, "moved to NVMe"));
  const ServeResult slow = with(Bytes{}, 1_GiB, 1e8);
  CHECK(slow.makespan > host.makespan);
  // Both tiers are too small. Sequences that do not fit are recomputed, and the result reports it.
  const ServeResult none = with(64_KiB, 64_KiB, 1e9);
  CHECK(none.recomputed_tokens > 0);
  CHECK(says(none, "did not fit into host memory and NVMe"));
  CHECK_THROWS_WITH_AS((void)with(Bytes{}, 1_GiB, 0), doctest::Contains("nvme"), InputError);
}

TEST_CASE("a scheduler that plans nothing refuses and does not hang") {
  SmallService service{};
  for (int i = 0; i < 5; ++i) service.trace.requests.push_back(request(0, 64, 40));
  service.make_scheduler = [] { return std::make_unique<Idle>(); };
  const ServeResult r = service.run();
  CHECK(r.rejected == 5);
  CHECK(r.oom_events == 5);
}

TEST_CASE("every method of the catalogue is served or names its missing input") {
  std::int64_t served = 0, measured = 0;
  for (const MethodInfo& info : builtin_methods()) {
    INFO(info.name);
    CheckingObserver observer{16, false};
    SmallService service{.blocks = 120,
                         .scheduler = {.name = "vllm-v1",
                                       .max_num_batched_tokens = 128,
                                       .max_num_seqs = 8,
                                       .prefix_caching = false},
                         .method = {info.name, {}, {}},
                         .trace = test::random_trace(9, 30, 40, 120, 40),
                         .observer = &observer};
    if (takes_budget(info.name)) service.method.budget = Budget{.entries = 64};
    ServeResult r;
    try {
      r = service.run();
      ++served;
    } catch (const InputError&) {
      // The method's size depends on data, or on inputs that are missing.
      service.measured =
          std::make_shared<MeasuredLaw>(MeasuredLaw{.trace = "a trace",
                                                    .kept = std::vector<double>(4, 0.5),
                                                    .growth = std::vector<double>(4, 0.25)});
      CheckingObserver again{16, false};
      service.observer = &again;
      try {
        r = service.run();
        ++measured;
      } catch (const InputError&) {
        continue;
      }
    }
    CHECK(r.completed == 30);
    for (const ServeSample& sample : r.timeline[0]) {
      CHECK(sample.kv_logical.count() <= sample.kv_blocks.count());
    }
  }
  CHECK(served > 20);
  CHECK(measured >= 5);
}

TEST_CASE("prompts too short for the method hold every token and a note says so") {
  SmallService service{.scheduler = {.name = "vllm-v1"},
                       .method = {"snapkv", {}, Budget{.fraction = 0.1}}};
  for (const std::int32_t prompt : {400, 3, 400, 500, 5}) {
    service.trace.requests.push_back(request(0, prompt, 5));
  }
  const ServeResult r = service.run();
  CHECK(r.completed == 5);
  const auto found = std::find_if(r.notes.begin(), r.notes.end(), [](const std::string& note) {
    return note.starts_with("prompts of 2 lengths from 3 to 5 tokens hold every token");
  });
  CHECK(found != r.notes.end());
  // If the typical prompt is one of these, the run is refused.
  service.trace.requests = {request(0, 3, 5)};
  CHECK_THROWS_AS((void)service.run(), InputError);
}

TEST_CASE("a service reports its assumptions like a static run") {
  const auto says = [](const SmallService& service, const std::string& words) {
    const ServeResult r = service.run();
    return std::any_of(r.notes.begin(), r.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  SmallService service{.scheduler = {.name = "trtllm"}};
  service.trace.requests = {request(0, 40, 5), request(0, 60, 5)};
  service.trace.requests[1].declared_tokens = 5;
  CHECK_FALSE(says(service, "no service of this kind was compared with a real one"));
  SmallService compressed = service;
  compressed.method = {"streaming-llm", {}, Budget{.entries = 32}};
  CHECK(says(compressed, "no service of this kind was compared with a real one"));
  CHECK(says(service, "1 of 2 requests declare no output length (declared_tokens)"));
  CHECK(service.run().undeclared == 1);
  CHECK(says(service, "65 tokens, the longest of the workload"));
  service.max_model_len = 100;
  CHECK(says(service, "the longest sequence, 100 tokens"));
  CHECK_FALSE(says(service, "the longest of the workload"));
  CHECK_FALSE(says(service, "memory, work and traffic are per GPU"));
  service.tensor_parallel = 2;
  CHECK(says(service, "memory, work and traffic are per GPU"));
  // No length is assumed if all requests declare one, or if the scheduler does not use it.
  service.trace.requests[0].declared_tokens = 5;
  CHECK_FALSE(says(service, "declare no length"));
  service.trace.requests[0].declared_tokens = 0;
  service.scheduler.policy = "max-utilization";
  CHECK_FALSE(says(service, "declare no length"));
  CHECK(service.run().undeclared == 0);
  // A conversation of two turns: a prefill-only replica does not hold generated tokens.
  service.scheduler = {.name = "vllm-v1"};
  service.cluster = {.prefill_replicas = 1};
  service.trace.prefix_block = 16;
  service.trace.prefix_ids = {1, 2, 3, 1, 2, 4, 5};
  service.trace.requests[0].prefix_count = 3;
  service.trace.requests[1].prefix_first = 3;
  service.trace.requests[1].prefix_count = 4;
  CHECK_FALSE(says(service, "tokens of the previous answer"));
  service.trace.requests[1].after = 0;
  CHECK(says(service, "tokens of the previous answer"));
  service.cluster = {};
  CHECK_FALSE(says(service, "tokens of the previous answer"));
  service.cluster = {.prefill_replicas = 1};
  service.scheduler.prefix_caching = false;
  CHECK_FALSE(says(service, "tokens of the previous answer"));
}

TEST_CASE("an iteration allocates nothing") {
  SmallService service{.blocks = 64, .scheduler = {.name = "vllm-v1", .prefix_caching = false}};
  const auto allocations = [&](std::int32_t output) {
    service.trace.requests.clear();
    for (int i = 0; i < 8; ++i) service.trace.requests.push_back(request(0, 40, output));
    const std::int64_t before = test::heap_allocations();
    const ServeResult r = service.run();
    CHECK(r.iterations == output);
    return test::heap_allocations() - before;
  };
  (void)allocations(10);
  // With 50 more iterations, the vector of their ends and the samples are reallocated.
  CHECK(allocations(60) - allocations(10) < 20);
}

}  // namespace
}  // namespace kvsim
