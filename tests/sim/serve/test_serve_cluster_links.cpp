// Links and the transfers that share them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "models/units/error.hpp"
#include "sim/network/transfer.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "sim/serve/service/service_topology.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

constexpr double kGiga = 1e9;

TEST_CASE("a path has the least latency, then the fewest links") {
  Topology t;
  const auto a = t.add(PlaceKind::kGpu, "a");
  const auto b = t.add(PlaceKind::kGpu, "b");
  const auto net = t.add(PlaceKind::kSwitch, "switch");
  const auto host = t.add(PlaceKind::kHost, "host");
  const auto nvme = t.add(PlaceKind::kNvme, "nvme");
  t.join_both(a, host, BytesPerSecond{kGiga}, Seconds{1e-6}, "pcie");
  t.join_both(host, b, BytesPerSecond{kGiga}, Seconds{1e-6}, "pcie");
  t.join_both(a, net, BytesPerSecond{kGiga}, Seconds{1e-7}, "nvlink");
  t.join_both(net, b, BytesPerSecond{kGiga}, Seconds{1e-7}, "nvlink");
  const auto way = t.route(a, b);
  REQUIRE(way.size() == 2);
  CHECK(t.link(way[0]).name == "nvlink a -> switch");
  CHECK(t.link(way[1]).name == "nvlink switch -> b");
  CHECK(t.latency(way).count() == test::rel(2e-7));
  CHECK(t.route(a, a).empty());
  CHECK_THROWS_AS((void)t.route(a, nvme), InputError);
  // A direct link with the same latency takes precedence.
  (void)t.join(a, b, BytesPerSecond{kGiga}, Seconds{2e-7}, "direct");
  CHECK(t.route(a, b).size() == 1);
  CHECK(t.route(b, a).size() == 2);
}

TEST_CASE("a single transfer takes its bytes over the narrowest link, and the latency") {
  Topology t;
  const auto a = t.add(PlaceKind::kGpu, "a");
  const auto m = t.add(PlaceKind::kSwitch, "m");
  const auto b = t.add(PlaceKind::kGpu, "b");
  t.join_both(a, m, BytesPerSecond{4e9}, Seconds{3e-6}, "x");
  t.join_both(m, b, BytesPerSecond{2e9}, Seconds{4e-6}, "y");
  TransferEngine transfers{t};
  transfers.start(SimTime{500}, a, b, Bytes{1'000'000}, 1);
  // 1e6 B at 2e9 B/s take 500 us, plus 7 us.
  REQUIRE(transfers.next());
  CHECK(*transfers.next() == SimTime{500 + 500'000'000});
  CHECK(transfers.advance(*transfers.next()).empty());
  CHECK(*transfers.next() == SimTime{500 + 507'000'000});
  CHECK(transfers.advance(*transfers.next()) == std::vector<std::int64_t>{1});
  CHECK_FALSE(transfers.next());
  CHECK(transfers.moved() == 1'000'000);
  SUBCASE("zero bytes take the latency and transfers within one place take no time") {
    const SimTime now{600'000'000};
    transfers.start(now, a, b, Bytes{0}, 2);
    transfers.start(now, a, a, Bytes{1 << 30}, 3);
    CHECK(transfers.advance(now) == std::vector<std::int64_t>{3});
    CHECK(transfers.advance(now + SimTime{7'000'000}) == std::vector<std::int64_t>{2});
  }
  SUBCASE("tags are unique at any time and the clock never runs backwards") {
    transfers.start(SimTime{600'000'000}, a, b, Bytes{10}, 2);
    CHECK_THROWS_AS(transfers.start(SimTime{600'000'000}, b, a, Bytes{10}, 2), ContractError);
    CHECK_THROWS_AS(transfers.start(SimTime{1}, b, a, Bytes{10}, 3), ContractError);
  }
}

TEST_CASE("three transfers by hand") {
  // Link X of 10 GB/s, link Y of 4 GB/s. A uses X, B both, C uses Y.
  Topology t;
  const auto p = t.add(PlaceKind::kGpu, "p");
  const auto q = t.add(PlaceKind::kSwitch, "q");
  const auto r = t.add(PlaceKind::kGpu, "r");
  const auto x = t.join(p, q, BytesPerSecond{10e9}, Seconds{}, "X");
  const auto y = t.join(q, r, BytesPerSecond{4e9}, Seconds{}, "Y");
  TransferEngine transfers{t};
  transfers.start(SimTime{}, p, q, Bytes{8'000'000'000}, 1);   // A
  transfers.start(SimTime{}, p, r, Bytes{2'000'000'000}, 2);   // B
  transfers.start(SimTime{}, q, r, Bytes{10'000'000'000}, 3);  // C
  // Y is saturated first: B and C have 2 GB/s each; A has the other 8 of X. At 1 s A and B are
  // done.
  CHECK(transfers.rate(1) == test::rel(8e9));
  CHECK(transfers.rate(2) == test::rel(2e9));
  CHECK(transfers.rate(3) == test::rel(2e9));
  CHECK(transfers.load(x) == test::rel(10e9));
  CHECK(transfers.load(y) == test::rel(4e9));
  CHECK(*transfers.next() == SimTime{1'000'000'000'000});
  CHECK(transfers.advance(*transfers.next()) == std::vector<std::int64_t>{1, 2});
  // C has 8 GB left and all of Y: 2 s more.
  CHECK(transfers.rate(3) == test::rel(4e9));
  CHECK(*transfers.next() == SimTime{3'000'000'000'000});
  // At 2 s another B starts: both have 2 GB/s; C has 4 GB left, until 4 s.
  transfers.start(SimTime{2'000'000'000'000}, p, r, Bytes{6'000'000'000}, 4);
  CHECK(*transfers.next() == SimTime{4'000'000'000'000});
  CHECK(transfers.advance(*transfers.next()) == std::vector<std::int64_t>{3});
  // B has 2 of 6 GB left at 4 GB/s.
  CHECK(*transfers.next() == SimTime{4'500'000'000'000});
}

struct Plan {
  SimTime at{};
  std::size_t from = 0, to = 0;
  std::int64_t bytes = 0, tag = 0;
};

/// A random network, and transfers over it in order of time.
struct Case {
  Topology topology;
  std::vector<Plan> plans;

  explicit Case(std::uint64_t seed) {
    test::Dice dice{seed};
    const auto hub = topology.add(PlaceKind::kSwitch, "hub");
    for (int i = 0; i < 6; ++i) {
      const auto gpu = topology.add(PlaceKind::kGpu, std::to_string(i));
      topology.join_both(hub, gpu, BytesPerSecond{kGiga * dice.between(1, 9)},
                         Seconds{1e-6 * dice.between(0, 3)}, "link");
    }
    std::int64_t at = 0;
    for (int i = 0; i < 60; ++i) {
      at += dice.between(0, 2) * 200'000'000LL;
      const auto from = static_cast<std::size_t>(dice.between(1, 6));
      auto to = static_cast<std::size_t>(dice.between(1, 6));
      if (to == from) to = from % 6 + 1;
      plans.push_back({SimTime{at}, from, to, dice.between(1, 4'000'000), i});
    }
  }
};

void check_max_min(const Case& c, const TransferEngine& transfers,
                   const std::map<std::int64_t, Plan>& sending) {
  for (std::size_t l = 0; l < c.topology.links(); ++l) {
    CHECK(transfers.load(l) <= c.topology.link(l).bandwidth.count() * (1 + 1e-12));
  }
  // Each transfer has a saturated link on which no transfer is faster.
  for (const auto& [tag, plan] : sending) {
    const double mine = transfers.rate(tag);
    if (mine == 0) continue;
    bool bound = false;
    for (const auto l : c.topology.route(plan.from, plan.to)) {
      if (transfers.load(l) < c.topology.link(l).bandwidth.count() * (1 - 1e-9)) continue;
      double fastest = 0;
      for (const auto& [other, way] : sending) {
        const auto links = c.topology.route(way.from, way.to);
        if (std::find(links.begin(), links.end(), l) != links.end()) {
          fastest = std::max(fastest, transfers.rate(other));
        }
      }
      bound = bound || mine >= fastest * (1 - 1e-9);
    }
    CHECK(bound);
  }
}

/// Arrival time of each transfer; checks shares and bytes during the run.
std::map<std::int64_t, SimTime> run(const Case& c, const std::vector<Plan>& plans, bool check) {
  TransferEngine transfers{c.topology};
  std::map<std::int64_t, SimTime> arrived;
  std::map<std::int64_t, Plan> sending;
  std::map<std::int64_t, double> sent;  // bytes, from the rates
  SimTime clock{};
  const auto until = [&](SimTime now) {
    for (auto& [tag, plan] : sending) {
      sent[tag] += transfers.rate(tag) * to_seconds(now - clock).count();
    }
    clock = now;
  };
  const auto advance = [&](SimTime limit) {
    while (transfers.next() && *transfers.next() <= limit) {
      const SimTime now = *transfers.next();
      until(now);
      for (const std::int64_t tag : transfers.advance(now)) {
        arrived[tag] = now;
        // Within the bytes of one or two picoseconds.
        CHECK(std::abs(sent[tag] - static_cast<double>(sending[tag].bytes)) < 0.1);
        sending.erase(tag);
      }
      if (check) check_max_min(c, transfers, sending);
    }
  };
  for (const Plan& p : plans) {
    advance(p.at - SimTime{1});
    until(p.at);
    transfers.start(p.at, p.from, p.to, Bytes{p.bytes}, p.tag);
    sending[p.tag] = p;
    if (check) check_max_min(c, transfers, sending);
  }
  advance(SimTime{std::numeric_limits<std::int64_t>::max()});
  std::int64_t bytes = 0;
  for (const Plan& p : plans) bytes += p.bytes;
  CHECK(transfers.moved() == bytes);
  CHECK(transfers.under_way() == 0);
  return arrived;
}

TEST_CASE("no link exceeds its bandwidth, every transfer has a limiting link, all bytes arrive") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    INFO(seed);
    const Case c{seed};
    const auto arrived = run(c, c.plans, true);
    REQUIRE(arrived.size() == c.plans.size());
    for (const Plan& p : c.plans) {
      // Never earlier than without other transfers.
      TransferEngine alone{c.topology};
      alone.start(p.at, p.from, p.to, Bytes{p.bytes}, p.tag);
      (void)alone.advance(*alone.next());
      const SimTime min = alone.next().value_or(p.at);
      CHECK(arrived.at(p.tag) >= min - SimTime{1});
    }
    // Two runs are equal, for any order of the transfers that start simultaneously.
    CHECK(arrived == run(c, c.plans, false));
    std::vector<Plan> turned = c.plans;
    std::reverse(turned.begin(), turned.end());
    std::stable_sort(turned.begin(), turned.end(),
                     [](const Plan& a, const Plan& b) { return a.at < b.at; });
    CHECK(arrived == run(c, turned, false));
  }
}

TEST_CASE("a link without bounds limits no transfer") {
  Topology t;
  const auto a = t.add(PlaceKind::kGpu, "a");
  const auto b = t.add(PlaceKind::kGpu, "b");
  (void)t.join(a, b, BytesPerSecond{std::numeric_limits<double>::infinity()}, Seconds{1e-6}, "x");
  TransferEngine transfers{t};
  transfers.start(SimTime{5}, a, b, Bytes{1'000'000'000'000}, 1);
  transfers.start(SimTime{5}, a, b, Bytes{7}, 2);
  CHECK(transfers.advance(SimTime{1'000'005}) == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("replicas are joined by the links of their GPUs or by a given link") {
  const Llm llm = test::small_llm();
  Gpu gpu = test::a800();
  gpu.nvlink = BytesPerSecond{400e9};
  gpu.pcie = BytesPerSecond{25e9};
  ServeSpec spec{.llm = &llm, .gpu = &gpu, .requests = nullptr};
  spec.tensor_parallel = 2;
  spec.cluster = {.replicas = 2, .prefill_replicas = 1};
  const auto narrowest = [](const ServiceTopology& s, std::size_t from, std::size_t to) {
    double min = std::numeric_limits<double>::infinity();
    for (const auto l : s.topology.route(from, to)) {
      min = std::min(min, s.topology.link(l).bandwidth.count());
    }
    return min;
  };
  const ServiceTopology nvlink = service_topology(spec, gpu.pcie);
  // 400 GB/s for the sum of both directions, two GPUs.
  CHECK(narrowest(nvlink, nvlink.replicas[2], nvlink.replicas[0]) == test::rel(400e9));
  CHECK(narrowest(nvlink, nvlink.replicas[2], nvlink.hosts[2]) == test::rel(50e9));
  gpu.nvlink.reset();
  const ServiceTopology pcie = service_topology(spec, gpu.pcie);
  CHECK(narrowest(pcie, pcie.replicas[2], pcie.replicas[0]) == test::rel(50e9));
  // The share of PCIe that copies reach applies to all PCIe traffic, but not to NVLink.
  const BytesPerSecond reached{20e9};
  const ServiceTopology slower = service_topology(spec, reached);
  CHECK(narrowest(slower, slower.replicas[2], slower.replicas[0]) == test::rel(40e9));
  CHECK(narrowest(slower, slower.replicas[2], slower.hosts[2]) == test::rel(40e9));
  gpu.nvlink = BytesPerSecond{400e9};
  const ServiceTopology with_nvlink = service_topology(spec, reached);
  CHECK(narrowest(with_nvlink, with_nvlink.replicas[2], with_nvlink.replicas[0]) ==
        test::rel(400e9));
  CHECK(narrowest(with_nvlink, with_nvlink.replicas[2], with_nvlink.hosts[2]) == test::rel(40e9));
  gpu.nvlink.reset();
  spec.cluster.link = BytesPerSecond{12.5e9};
  spec.cluster.link_latency = Seconds{5e-6};
  spec.cluster.replicas = 100;
  const ServiceTopology network = service_topology(spec, gpu.pcie);
  CHECK(narrowest(network, network.replicas[100], network.replicas[7]) == test::rel(12.5e9));
  CHECK(network.topology.latency(network.topology.route(network.replicas[0], network.replicas[1]))
            .count() == test::rel(5e-6));
  spec.cluster.link = BytesPerSecond{};
  CHECK_THROWS_AS((void)service_topology(spec, gpu.pcie), InputError);
}

TEST_CASE("traffic to the host shares only PCIe with traffic to other replicas") {
  const Llm llm = test::small_llm();
  Gpu gpu = test::a800();
  gpu.pcie = BytesPerSecond{25e9};
  ServeSpec spec{.llm = &llm, .gpu = &gpu, .requests = nullptr};
  spec.cluster = {.replicas = 2, .prefill_replicas = 1};
  spec.nvme = {.capacity = 1_GiB, .read = BytesPerSecond{7e9}, .write = BytesPerSecond{5e9}};
  const auto shared = [&] {
    const ServiceTopology s = service_topology(spec, gpu.pcie);
    const auto meets = [&](std::size_t a, std::size_t b, std::size_t c, std::size_t d) {
      const auto one = s.topology.route(a, b), other = s.topology.route(c, d);
      return std::any_of(one.begin(), one.end(), [&](const auto l) {
        return std::find(other.begin(), other.end(), l) != other.end();
      });
    };
    const auto gpus = s.replicas[0], host = s.hosts[0], nvme = s.nvmes[0], other = s.replicas[2];
    // Outgoing and incoming caches; opposite directions do not share a link.
    CHECK(meets(gpus, host, gpus, other) == s.shares_host_links);
    CHECK(meets(host, gpus, other, gpus) == s.shares_host_links);
    CHECK(meets(nvme, gpus, other, gpus) == s.shares_host_links);
    CHECK_FALSE(meets(gpus, nvme, other, gpus));
    CHECK_FALSE(meets(s.replicas[1], s.hosts[1], gpus, other));
    return s.shares_host_links;
  };
  CHECK(shared());
  gpu.c2c = BytesPerSecond{450e9};
  CHECK_FALSE(shared());
  gpu.c2c.reset();
  gpu.nvlink = BytesPerSecond{400e9};
  CHECK_FALSE(shared());
  gpu.nvlink.reset();
  spec.cluster.link = BytesPerSecond{12.5e9};
  CHECK_FALSE(shared());
}

/// Schedules all requests that fit; a sequence with three generated tokens is swapped to the host
/// and returns immediately.
class SwapsOnce : public Scheduler {
 public:
  void schedule(BatchBuilder& batch) override {
    for (const RequestId id : batch.running()) {
      if (done_ || batch.sequence(id).generated() != 3) continue;
      done_ = true;
      CHECK(batch.swap_out(id));
      return;
    }
    while (!batch.swapped().empty() && batch.swap_in(batch.swapped().front())) {
    }
    for (std::size_t i = 0; i < batch.running().size(); ++i) {
      const RequestId id = batch.running()[i];
      CHECK(batch.schedule(id, batch.sequence(id).to_compute()));
    }
    while (batch.waiting() > 0) {
      const RequestId id = batch.next_waiting();
      if (!batch.admit(id, batch.sequence(id).known - batch.cached_tokens(id))) return;
    }
  }
  [[nodiscard]] std::string describe() const override { return "swaps once"; }

 private:
  bool done_ = false;
};

TEST_CASE("a cache that returns from the host shares PCIe with one that arrives for decode") {
  // 7 blocks of 16 KiB at 25 GB/s: 4.58752 us. Request 0 is prefilled at 1 ms and decodes from
  // 1.00458752 ms, at 1 ms per token: at 3.00458752 ms it has three tokens, is swapped out and
  // comes back.
  test::SmallService service{.times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                             .host_memory = 1_GiB,
                             .cluster = {.prefill_replicas = 1}};
  service.make_scheduler = [] { return std::make_unique<SwapsOnce>(); };
  service.trace.requests = {test::request(0, 100, 6)};
  const auto ps = [](double us) { return SimTime{std::llround(us * 1e6)}; };
  const ServeResult alone = service.run();
  REQUIRE(alone.completed == 1);
  REQUIRE(alone.iteration_ends[0].size() == 5);
  CHECK(alone.iteration_ends[0][1] == ps(3004.58752));
  // Both directions simultaneously, each with the link's rate.
  CHECK(alone.iteration_ends[0][2] == ps(3004.58752 + 4.58752 + 1000));
  // Six iterations of two replicas.
  CHECK(2 * alone.busy * to_seconds(alone.makespan).count() == test::rel(6e-3 + 4.58752e-6, 1e-6));

  // Request 1 is prefilled 2 us earlier: 50,000 of its 114,688 B have arrived. The other 64,688
  // take 5.17504 us at half the rate; then 50,000 B of the returning cache are left, 2 us.
  service.trace.requests.push_back(test::request(2002.58752e-6, 100, 3));
  const std::vector<Request> both_requests = service.trace.requests;
  const ServeResult both = service.run();
  REQUIRE(both.completed == 2);
  CHECK(both.iteration_ends[0][1] == ps(3004.58752));
  CHECK(both.iteration_ends[0][2] == ps(3004.58752 + 5.17504 + 2 + 1000));
  CHECK(both.transfer.p50 == test::rel(4.58752e-6));
  CHECK(both.transfer.p99 == test::rel(2e-6 + 5.17504e-6));
  // If copies reach four fifths of the link, so do transferred caches: 5.7344 us without other
  // traffic.
  service.link_reached = 0.8;
  service.trace.requests.pop_back();
  const ServeResult slow = service.run();
  CHECK(slow.iteration_ends[0][1] == ps(3005.7344));
  CHECK(slow.iteration_ends[0][2] == ps(3005.7344 + 5.7344 + 1000));
  CHECK(slow.transfer.p50 == test::rel(5.7344e-6));
  service.link_reached = 1;
  service.trace.requests = both_requests;
  // Over a separate link, neither waits for the other.
  service.cluster.link = BytesPerSecond{25e9};
  const ServeResult apart = service.run();
  CHECK(apart.transfer.p99 == test::rel(4.58752e-6));
  CHECK(apart.iteration_ends[0][2] == ps(3004.58752 + 2 * 4.58752 + 1000));
}

TEST_CASE("swapping replicas that share PCIe with moving caches lose nothing and repeat exactly") {
  for (const bool chunked : {false, true}) {
    for (const bool nvme : {false, true}) {
      INFO(chunked, " ", nvme);
      test::SmallService service{.blocks = 30,
                                 .times = {.iteration = 1e-5, .per_token = 1e-8, .per_entry = 0},
                                 .scheduler = {.name = "vllm-v0",
                                               .max_num_seqs = 12,
                                               .chunked_prefill = chunked,
                                               .swap = true},
                                 .host_memory = nvme ? 100_KiB : 1_GiB,
                                 .trace = test::random_trace(7, 100, 6000, 100, 40),
                                 .cluster = {.replicas = 2, .prefill_replicas = 1}};
      if (nvme) {
        service.nvme = {
            .capacity = 1_GiB, .read = BytesPerSecond{7e9}, .write = BytesPerSecond{5e9}};
      }
      const ServeResult r = service.run();
      CHECK(r.completed == 100);
      CHECK(r.preemptions > 5);
      CHECK(r.transfers > 50);
      CHECK(r.busy <= 1);
      const ServeResult again = service.run();
      CHECK(again.iteration_ends == r.iteration_ends);
      // With a separate link, caches are not slower.
      service.cluster.link = BytesPerSecond{25e9};
      CHECK(service.run().transfer.mean <= r.transfer.mean);
    }
  }
}

}  // namespace
}  // namespace kvsim
