// The files of a service that is small enough to derive every number by hand.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/report/service/serve_csv.hpp"
#include "sim/report/service/serve_events.hpp"
#include "tests/sim/serve/serve_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

/// vLLM V1, iterations of 1 ms each, 4 blocks of 16 tokens, 1 KiB per token. Iteration i is from i
/// to i + 1 ms.
///
///   0  request 0 computes its 30 tokens: 2 blocks, its first token at 1 ms
///   1  request 0 decodes with the 20 tokens of request 1, which arrived at 0.5 ms: 4 blocks
///   2  both decode; request 2 arrives, whose 70 tokens exceed the pool of 64: rejected
///   3  the 33rd token of request 0 needs a third block: request 1 is preempted and frees both
///   4, 5  request 0 decodes and ends at 6 ms; one free block is too small for request 1
///   6  request 1 computes its 20 tokens and the 2 generated ones again; 21 had been computed
///   before 7, 8  it decodes and ends at 9 ms
ServeResult small_case() {
  test::SmallService service{.blocks = 4,
                             .times = {.iteration = 1e-3, .per_token = 0, .per_entry = 0},
                             .scheduler = {.name = "vllm-v1", .prefix_caching = false},
                             .slo = {.ttft = Seconds{1.2e-3}, .tpot = {}, .e2e = {}}};
  service.trace.requests = {test::request(0, 30, 6), test::request(0.5e-3, 20, 5),
                            test::request(2.5e-3, 70, 2)};
  return service.run();
}

RunReport report_of(const Scenario& scenario) {
  RunReport report;
  report.scenario = &scenario;
  report.serves.push_back(small_case());
  return report;
}

Scenario scenario_of_it() {
  Scenario scenario = test::sample_serve_scenario();
  scenario.points.resize(1);
  scenario.points[0].label = "by hand";
  scenario.points[0].serve->slo = {.ttft = Seconds{1.2e-3}, .tpot = {}, .e2e = {}};
  return scenario;
}

/// Golden: the lines derived above. tests/golden/README.md describes how to regenerate them.
void check_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path file =
      std::filesystem::path{KVSIM_SOURCE_DIR} / "tests/golden/service-by-hand" / name;
  if (std::getenv("KVSIM_REMAKE_GOLDEN") != nullptr) test::write(file, text);
  CHECK(text == test::text_of(file));
}

TEST_CASE("the files of a service worked out by hand") {
  const Scenario scenario = scenario_of_it();
  const RunReport report = report_of(scenario);
  const ServeResult& r = report.serves[0];
  CHECK(r.recomputed_tokens == 21);
  CHECK(r.preemptions == 1);
  CHECK(r.makespan == test::ms(9));
  // Cache at each iteration's end: 30, 31 + 20, 32 + 21, 33, 34, none, 22, 23 tokens and none.
  const std::vector<std::int64_t> tokens{30, 51, 53, 33, 34, 0, 22, 23, 0};
  const std::vector<std::int64_t> blocks{2, 4, 4, 3, 3, 0, 2, 2, 0};
  REQUIRE(r.timeline[0].size() == tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CHECK(r.timeline[0][i].kv_logical == Bytes{1024 * tokens[i]});
    CHECK(r.timeline[0][i].kv_blocks == Bytes{16384 * blocks[i]});
  }
  check_golden("requests.csv", requests_csv(report));
  check_golden("timeline.csv", serve_timeline_csv(report));
  check_golden("timeline.json", serve_events_json(report));
}

}  // namespace
}  // namespace kvsim
