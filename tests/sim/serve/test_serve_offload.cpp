// Entries that a step does not read are in host memory or NVMe: bytes, transfers, limits.

#include <algorithm>
#include <string>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

using test::CheckingObserver;
using test::request;
using test::SmallService;

/// Quest on four layers, the first two of which read all entries. The others read 64 entries, in
/// pages of 16 chosen by the sum over query heads. An entry of a layer has 256 B.
SmallService quest(OffloadSpec offload) {
  SmallService service{
      .blocks = 400,
      .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
      .scheduler = {.name = "vllm-v1", .prefix_caching = false},
      .method = {"quest",
                 {{"pages_chosen", std::string{"sum"}}, {"dense", std::int64_t{2}}},
                 Budget{.entries = 64}},
      .host_memory = Bytes{1 << 30}};
  service.nvme = {
      .capacity = Bytes{1 << 30}, .read = BytesPerSecond{16e6}, .write = BytesPerSecond{8e6}};
  service.offload = offload;
  return service;
}
constexpr std::int64_t kLayerEntry = 256;

TEST_CASE("a tier holds layers that a step reads in part and the link carries the reads, by hand") {
  SmallService service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 1000, 11)};
  const ServeResult r = service.run();
  REQUIRE(r.completed == 1);
  REQUIRE(r.tiers.size() == 1);
  CHECK(r.tiers[0].name == "host memory");
  CHECK(*r.tiers[0].capacity == Bytes{1 << 30});
  // The prompt and ten of eleven tokens.
  CHECK(r.tiers[0].peak == Bytes{2 * 1010 * kLayerEntry});
  CHECK(r.tiers[0].peak_owners.at("kv_offloaded") == r.tiers[0].peak);
  CHECK(r.offload_written == r.tiers[0].peak);
  CHECK(r.offload_fetched == Bytes{10 * 2 * 64 * kLayerEntry});
  service.offload.reuse = 0.75;
  CHECK(service.run().offload_fetched == Bytes{10 * 2 * 16 * kLayerEntry});
  // All entries of a short prompt are read.
  service.trace.requests = {request(0, 40, 11)};
  const ServeResult whole = service.run();
  CHECK(whole.tiers.empty());
  CHECK(whole.offload_fetched == Bytes{});
}

TEST_CASE("HBM holds only what a step reads so that more sequences run at once") {
  const auto run = [](OffloadTier to, std::size_t& max) {
    SmallService service = quest({.to = to});
    service.blocks = 150;
    for (int i = 0; i < 12; ++i) service.trace.requests.push_back(request(0, 600, 60));
    CheckingObserver observer{16, false};
    service.observer = &observer;
    const ServeResult r = service.run();
    CHECK(r.completed == 12);
    max = observer.max_running;
    for (const ServeSample& s : r.timeline[0]) CHECK(s.kv_logical <= s.kv_blocks);
    return r;
  };
  std::size_t with = 0, without = 0;
  (void)run(OffloadTier::kHost, with);
  (void)run(OffloadTier::kNone, without);
  CHECK(with > without);
}

TEST_CASE("a step waits for the longer of both, or for one after the other") {
  // 2 x 64 entries from NVMe at 16 MB/s: 2.048 ms; simultaneously, two more are written there at 8
  // MB/s, 64 us.
  const double fetch = 2 * 64 * kLayerEntry / 16e6;
  const auto tpot = [](OffloadSpec offload, double iteration) {
    SmallService service = quest(offload);
    service.times.iteration = iteration;
    service.trace.requests = {request(0, 1000, 21)};
    const ServeResult r = service.run();
    CHECK((r.link_wait > 0) == (offload.to != OffloadTier::kNone));
    return r.tpot.mean;
  };
  const OffloadSpec prefetching{.to = OffloadTier::kNvme, .prefetch = true};
  const OffloadSpec before{.to = OffloadTier::kNvme, .prefetch = false};
  CHECK(tpot({}, 1e-3) == test::rel(1e-3));
  CHECK(tpot(prefetching, 1e-3) == test::rel(fetch));
  CHECK(tpot(before, 1e-3) == test::rel(1e-3 + fetch));
  CHECK(tpot(prefetching, 5e-3) == test::rel(5e-3));
  CHECK(tpot(before, 5e-3) == test::rel(5e-3 + fetch));
  // Only over the host's link: 25 GB/s for the sum of both directions, including the writes of new
  // entries.
  const double host = (2 * 64 + 2) * kLayerEntry / 25e9;
  CHECK(tpot({.to = OffloadTier::kHost, .prefetch = false}, 1e-3) ==
        doctest::Approx(1e-3 + host).epsilon(1e-6));
}

TEST_CASE("pages of a few KiB are fetched one by one, by hand") {
  const auto run = [](std::optional<double> reached, std::int64_t page) {
    SmallService service = quest({.to = OffloadTier::kHost, .prefetch = false});
    service.link_reached = reached;
    service.method.params["page"] = page;
    service.trace.requests = {request(0, 1000, 21)};
    ServeResult r = service.run();
    REQUIRE(r.completed == 1);
    return r;
  };
  const auto fetch = [&](std::optional<double> reached, std::int64_t page) {
    return run(reached, page).tpot.mean - 1e-3;
  };
  // 2 layers x 64 entries x 256 B are 32 copies of 1 KiB, keys or values of 16 entries of a head,
  // at 0.6 us each; new entries are written simultaneously.
  CHECK(fetch(0.8, 16) == test::rel(32 * 0.6e-6, 1e-4));
  // Twice the number of copies at half the size.
  CHECK(fetch(0.8, 8) == test::rel(64 * 0.6e-6, 1e-4));
  // Regardless of the share of the link that large copies reach.
  CHECK(fetch(std::nullopt, 16) == test::rel(32 * 0.6e-6, 1e-4));
  // At the data sheet's rate, the time of a page is its bytes divided by the link's rate.
  CHECK(fetch(1, 8) == test::rel((2 * 64 + 2) * kLayerEntry / 25e9, 1e-4));
  CHECK(fetch(1, 16) < fetch(0.8, 16));
  const auto says = [](const ServeResult& r, const char* words) {
    return std::any_of(r.notes.begin(), r.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  CHECK(says(run(0.8, 16),
             "keys and values of 16 entries per head are fetched in copies of 1 KiB, which reach "
             "1.707 GB/s of the link; large copies reach 20 GB/s"));
  CHECK(says(run(0.8, 1), "keys and values of an entry per head are fetched in copies of 64 B"));
}

TEST_CASE("a full tier is reported and no request waits for it forever") {
  SmallService service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 1000, 11), request(0, 1000, 11)};
  // Memory for one sequence with all its generated tokens.
  service.host_memory = Bytes{2 * 1010 * kLayerEntry};
  CheckingObserver observer{16, false};
  service.observer = &observer;
  const ServeResult one = service.run();
  CHECK(one.completed == 2);
  CHECK(observer.max_running == 1);
  CHECK(one.oom_events == 0);
  CHECK(one.tiers[0].peak <= service.host_memory);
  service.observer = nullptr;
  // Memory for its prompt and half of its generated tokens.
  service.host_memory = Bytes{2 * 1005 * kLayerEntry};
  const ServeResult grown = service.run();
  CHECK(grown.completed == 0);
  CHECK(grown.oom_events == 2);
  REQUIRE(!grown.ooms.empty());
  CHECK(grown.ooms[0].what.find("host memory") != std::string::npos);
  CHECK(grown.ooms[0].owners.contains("kv_offloaded"));
  CHECK(grown.ooms[0].requested > grown.ooms[0].free);
  // The host memory is too small even for the prompt.
  service.host_memory = Bytes{100 * kLayerEntry};
  const ServeResult none = service.run();
  CHECK(none.rejected == 2);
  CHECK(none.ooms[0].requested == Bytes{2 * 1000 * kLayerEntry});
  CHECK(none.ooms[0].free == service.host_memory);
  // The same for NVMe.
  service.offload.to = OffloadTier::kNvme;
  service.nvme.capacity = Bytes{100 * kLayerEntry};
  CHECK(service.run().ooms[0].what.find("NVMe") != std::string::npos);
}

TEST_CASE("memory outside is conserved if sequences are preempted for it") {
  SmallService service = quest({.to = OffloadTier::kHost});
  service.host_memory = Bytes{2 * 2500 * kLayerEntry};
  service.trace = test::random_trace(5, 40, 30, 500, 200);
  CheckingObserver observer{16, false};
  service.observer = &observer;
  const ServeResult r = service.run();
  CHECK(r.completed + r.rejected == 40);
  CHECK(r.preemptions > 0);
  CHECK(r.tiers[0].peak <= service.host_memory);
}

TEST_CASE(
    "a method that reads everything offloads nothing with a note, and conflicts are refused") {
  SmallService service = quest({.to = OffloadTier::kHost});
  service.method = {"full", {}, {}};
  service.trace.requests = {request(0, 500, 10)};
  const ServeResult full = service.run();
  CHECK(full.tiers.empty());
  CHECK(std::any_of(full.notes.begin(), full.notes.end(), [](const std::string& note) {
    return note.find("nothing is offloaded") != std::string::npos;
  }));
  const auto refused = [](const SmallService& s, const char* why) {
    CHECK_THROWS_WITH_AS((void)s.run(), doctest::Contains(why), InputError);
  };
  service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 500, 10)};
  service.host_memory = Bytes{};
  refused(service, "expected host_memory");
  service = quest({.to = OffloadTier::kNvme});
  service.trace.requests = {request(0, 500, 10)};
  service.nvme = {};
  refused(service, "expected nvme");
  service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 500, 10)};
  service.scheduler.name = "sglang";
  service.stack = "sglang";
  refused(service, "sglang");
  service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 500, 10)};
  service.cluster.prefill_replicas = 1;
  refused(service, "prefill_replicas");
}

TEST_CASE("entries that a method places in host memory count there against the host's memory") {
  SmallService service = quest({});
  service.method = {"shadowkv", {{"rank", std::int64_t{16}}}, Budget{.entries = 128}};
  service.trace.requests = {request(0, 2000, 5)};
  service.host_memory = Bytes{};
  const ServeResult free = service.run();
  REQUIRE(free.completed == 1);
  REQUIRE(free.tiers.size() == 1);
  CHECK_FALSE(free.tiers[0].capacity);
  CHECK(free.tiers[0].peak > Bytes{});
  service.host_memory = free.tiers[0].peak - Bytes{1};
  CHECK(service.run().completed == 0);
  service.host_memory = free.tiers[0].peak;
  CHECK(service.run().completed == 1);
}

TEST_CASE("coded pages take their bytes in the tier and on the link, by hand") {
  // NVFP4: 128 elements of an entry in 64 + 8 B instead of 256.
  constexpr std::int64_t kCoded = 72;
  SmallService service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 1000, 11)};
  const ServeResult plain = service.run();
  service.tier_codec = "nvfp4";
  const ServeResult r = service.run();
  REQUIRE(r.completed == 1);
  REQUIRE(r.tiers.size() == 1);
  CHECK(r.tiers[0].peak == Bytes{2 * 1010 * kCoded});
  CHECK(r.offload_written == r.tiers[0].peak);
  CHECK(r.offload_fetched == Bytes{10 * 2 * 64 * kCoded});
  CHECK(r.peak_blocks == plain.peak_blocks);
  CHECK(std::any_of(r.notes.begin(), r.notes.end(), [](const std::string& note) {
    return note.find("tier_codec nvfp4: a page has 0.2812 of its bytes on the link") !=
           std::string::npos;
  }));
  // The same codec as part of the method has the same result.
  service.tier_codec.clear();
  service.method.name = "quest+tier=nvfp4";
  CHECK(service.run().offload_fetched == r.offload_fetched);
  // ANS reserves memory for whole pages.
  service.method.name = "quest";
  service.tier_codec = "ans";
  const ServeResult ans = service.run();
  CHECK(ans.tiers[0].peak == plain.tiers[0].peak);
  CHECK(ans.offload_fetched < plain.offload_fetched);
}

TEST_CASE("a smaller page never costs more time of the link, and swaps shrink with it") {
  for (const bool prefetch : {false, true}) {
    double last = 0;
    for (const char* codec : {"nvfp4", "ans", ""}) {  // in order of increasing bytes on the link
      SmallService service = quest({.to = OffloadTier::kNvme, .prefetch = prefetch});
      service.trace.requests = {request(0, 1000, 21)};
      service.tier_codec = codec;
      const ServeResult r = service.run();
      CAPTURE(codec);
      CHECK(r.tpot.mean >= last);
      last = r.tpot.mean;
    }
  }
  const auto swaps = [](const std::string& codec, Bytes host) {
    SmallService service{.blocks = 24,
                         .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                         .scheduler = {.name = "vllm-v0", .prefix_caching = false, .swap = true},
                         .host_memory = host};
    for (int i = 0; i < 10; ++i) service.trace.requests.push_back(request(0, 64, 40));
    service.tier_codec = codec;
    ServeResult r = service.run();
    CHECK(r.completed == 10);
    return r;
  };
  const ServeResult raw = swaps("", Bytes{1 << 30});
  const ServeResult coded = swaps("nvfp4", Bytes{1 << 30});
  REQUIRE(raw.tiers.size() == 1);
  CHECK(raw.preemptions > 0);
  CHECK(coded.tiers[0].peak == Bytes{raw.tiers[0].peak.count() / 256 * 72});
  CHECK(coded.makespan <= raw.makespan);
  // A third of that host memory is sufficient only for coded caches.
  const Bytes third{raw.tiers[0].peak.count() / 3};
  CHECK(swaps("", third).recomputed_tokens > 0);
  CHECK(swaps("nvfp4", third).recomputed_tokens == 0);
}

TEST_CASE("a codec is refused if no page leaves the GPU or if two are set") {
  SmallService service = quest({.to = OffloadTier::kHost});
  service.trace.requests = {request(0, 1000, 11)};
  service.tier_codec = "nvfp4";
  service.method.name = "quest+tier=ans";
  CHECK_THROWS_AS((void)service.run(), InputError);
  service.method.name = "quest";
  service.offload = {};
  CHECK_THROWS_AS((void)service.run(), InputError);
  service.method = {"full", {}, {}};
  CHECK_THROWS_AS((void)service.run(), InputError);
  // A method's codec without offloaded pages: a note.
  service.tier_codec.clear();
  service.method = {"nvfp4-cold-pages", {}, {}};
  const ServeResult r = service.run();
  CHECK(std::any_of(r.notes.begin(), r.notes.end(), [](const std::string& note) {
    return note.find("nothing is coded") != std::string::npos;
  }));
}

}  // namespace
}  // namespace kvsim
