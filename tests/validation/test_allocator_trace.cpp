#include <random>
#include <string>
#include <vector>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/allocator/allocator_replay.hpp"
#include "validation/allocator/allocator_trace.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kHeader = "{\"format\": \"kvsim.allocator-trace/1\"}\n";

std::string said(const std::string& lines) {
  try {
    (void)parse_allocator_trace(std::string{kHeader} + lines, "t.jsonl");
  } catch (const InputError& error) {
    return error.what();
  }
  return "taken";
}

/// Records a run of the model itself: each event with its reported totals.
std::string record(const AllocatorDevice& device, const AllocatorConfig& config,
                   std::uint64_t seed) {
  CachingAllocator allocator{device, config};
  const auto owner = allocator.owner("x");
  std::mt19937_64 random{seed};
  std::vector<std::pair<std::int64_t, CachingAllocator::BlockId>> live;
  std::string out{kHeader};
  std::int64_t next = 0;
  const auto totals = [&] {
    return fmt::format("\"reserved\": {}, \"allocated\": {}, \"segments\": {}}}\n",
                       allocator.reserved().count(), allocator.allocated().count(),
                       allocator.segments());
  };
  for (int step = 0; step < 600; ++step) {
    if (random() % 100 < 60 || live.empty()) {
      const auto n =
          static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (random() % 26)));
      const auto got = allocator.malloc(Bytes{n}, owner);
      if (got) {
        out += fmt::format("{{\"op\": \"alloc\", \"id\": {}, \"size\": {}, {}", next, n, totals());
        live.emplace_back(next++, got.value());
      } else {
        out += fmt::format("{{\"op\": \"oom\", \"size\": {}, {}", n, totals());
      }
    } else if (random() % 40 == 0) {
      allocator.empty_cache();
      out += fmt::format("{{\"op\": \"empty_cache\", {}", totals());
    } else {
      const std::size_t at = random() % live.size();
      allocator.free(live[at].second);
      out += fmt::format("{{\"op\": \"free\", \"id\": {}, {}", live[at].first, totals());
      live[at] = live.back();
      live.pop_back();
    }
  }
  return out;
}

TEST_CASE("a recording of the model itself is predicted to the byte only with its settings") {
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:20"}) {
    INFO(conf);
    const AllocatorDevice device{.total = 120_MiB};
    const AllocatorConfig config = parse_alloc_conf(conf, "conf");
    const auto trace = parse_allocator_trace(record(device, config, 7), "t.jsonl");
    const AllocatorReplay same = replay_allocations(trace, device, config);
    CHECK(same.recorded_refusals > 0);
    CHECK(same.agreed_refusals == same.recorded_refusals);
    CHECK(same.predicted_refusals == same.recorded_refusals);
    REQUIRE(same.quantities.size() == 3);
    for (const ReplayedQuantity& q : same.quantities) {
      INFO(q.name);
      CHECK(q.compared == 600);
      CHECK(q.exact == 600);
      CHECK(q.mean_abs_error == 0);
      CHECK(q.worst_error == 0);
      CHECK(q.recorded_peak > 0);
      CHECK(q.peak_error() == 0);
    }
    AllocatorConfig other = config;
    other.expandable_segments = !other.expandable_segments;
    const AllocatorReplay wrong = replay_allocations(trace, device, other);
    CHECK(wrong.quantities.front().exact < 600);
    CHECK(wrong.quantities.front().mean_abs_error > 0);
    CHECK(wrong.quantities.front().worst_line > 1);
  }
}

TEST_CASE("segment events are compared if totals are missing") {
  // 3 MiB: a segment of 20 MiB; then 20 MiB: a segment of 20 MiB that is recorded as 22 MiB.
  const auto trace = parse_allocator_trace(
      std::string{kHeader} +
          "{\"op\": \"segment_alloc\", \"size\": 20971520, \"address\": 4096}\n"
          "{\"op\": \"alloc\", \"id\": 1, \"size\": 3145728}\n"
          "{\"op\": \"segment_alloc\", \"size\": 23068672}\n"
          "{\"op\": \"alloc\", \"id\": 2, \"size\": 20971520}\n",
      "t.jsonl");
  const AllocatorReplay replay = replay_allocations(trace, {.total = 1_GiB}, {});
  REQUIRE(replay.quantities.size() == 2);
  const ReplayedQuantity& reserved = replay.quantities[0];
  CHECK(reserved.name == "reserved");
  CHECK(reserved.compared == 2);
  CHECK(reserved.exact == 1);
  CHECK(reserved.worst_error == -2097152);
  CHECK(reserved.worst_line == 5);
  CHECK(reserved.mean_abs_error == 1048576);
  CHECK(reserved.peak_error() == test::rel(-2.0 / 42.0));
  CHECK(replay.quantities[1].name == "segments");
  CHECK(replay.quantities[1].exact == 2);
}

TEST_CASE("tensors that do not fit in the model are reported and their frees are skipped") {
  const auto trace = parse_allocator_trace(
      std::string{kHeader} +
          "{\"op\": \"alloc\", \"id\": 1, \"size\": 41943040, \"reserved\": 41943040}\n"
          "{\"op\": \"free_requested\", \"id\": 1}\n{\"op\": \"free_completed\", \"id\": 1}\n",
      "t.jsonl");
  const AllocatorReplay replay = replay_allocations(trace, {.total = 30_MiB}, {});
  CHECK(replay.predicted_refusals == 1);
  CHECK(replay.agreed_refusals == 0);
  CHECK(replay.first_refusal.value().starts_with("line 2: CUDA out of memory"));
  REQUIRE(replay.notes.size() == 1);
  CHECK(replay.notes[0].starts_with("1 frees"));
}

TEST_CASE("an impossible trace is refused with its line") {
  CHECK(said("") == "taken");
  CHECK(said("\n{\"op\": \"alloc\", \"id\": 0, \"size\": 1}\r\n") == "taken");
  CHECK(said("{\"op\": \"aloc\", \"id\": 1, \"size\": 1}").starts_with("t.jsonl:2: /op: "));
  CHECK(said("{\"op\": \"alloc\", \"id\": 1}").find("size") != std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 0}").find("/size: expected an integer") !=
        std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1.5}").find("/size") != std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1e300}").find("/size") != std::string::npos);
  CHECK(said("{\"op\": \"free\", \"id\": 4}").find("is not in use") != std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1}\n{\"op\": \"alloc\", \"id\": 1, "
             "\"size\": 1}")
            .find("t.jsonl:3: /id: is in use already") != std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1}\n{\"op\": \"free_completed\", \"id\": 1}")
            .find("was not requested") != std::string::npos);
  CHECK(
      said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1}\n{\"op\": \"free_requested\", \"id\": 1}\n"
           "{\"op\": \"free\", \"id\": 1}")
          .find("is being released") != std::string::npos);
  CHECK(said("{\"op\": \"alloc\", \"id\": 1, \"size\": 1, \"sise\": 2}").find("unknown key") !=
        std::string::npos);
  CHECK(said("[1]").find("expected an object") != std::string::npos);
  CHECK(said("{\"op\": ").find("t.jsonl:2") != std::string::npos);
  CHECK_THROWS_AS((void)parse_allocator_trace("", "t"), InputError);
  CHECK_THROWS_AS((void)parse_allocator_trace("{\"format\": \"other/1\"}", "t"), InputError);
  CHECK_THROWS_AS((void)read_allocator_trace("no/such/trace.jsonl"), InputError);
}

}  // namespace
}  // namespace kvsim
