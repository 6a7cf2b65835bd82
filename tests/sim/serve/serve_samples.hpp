#pragma once

// A made-up service: three requests on one replica with iterations of 10 ms.

#include <memory>
#include <string>

#include "models/llm/catalogue.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim::test {

constexpr SimTime ms(std::int64_t n) { return SimTime{n * 1'000'000'000}; }

/// Iteration i ends at 10 (i + 1) ms. Request 0 (100 tokens) generates tokens at the ends of 0 to
/// 3; request 1 (200 tokens) at 1, is preempted, and then at 4 and 5; request 2 is rejected.
inline ServeResult sample_service() {
  ServeResult r;
  r.outcomes = {{.arrival = ms(0),
                 .scheduled = ms(0),
                 .first_token = ms(10),
                 .finish = ms(40),
                 .prompt_tokens = 100,
                 .output_tokens = 4,
                 .status = RequestStatus::kCompleted},
                {.arrival = ms(5),
                 .scheduled = ms(10),
                 .first_token = ms(20),
                 .finish = ms(60),
                 .prompt_tokens = 200,
                 .output_tokens = 3,
                 .preemptions = 1,
                 .status = RequestStatus::kCompleted},
                {.arrival = ms(7), .prompt_tokens = 900, .status = RequestStatus::kRejected}};
  r.iteration_ends = {{ms(10), ms(20), ms(30), ms(40), ms(50), ms(60)}};
  r.spans = {{.request = 0, .first = 0, .count = 4},
             {.request = 1, .first = 1, .count = 1},
             {.request = 1, .first = 4, .count = 2}};
  r.completed = 2;
  r.rejected = 1;
  r.preemptions = 1;
  r.oom_events = 1;
  r.iterations = 6;
  r.output_tokens = 7;
  r.prompt_tokens = 300;
  r.makespan = ms(60);
  r.ttft = {2, 0.0125, 0.010, 0.015, 0.015, 0.015};
  r.tpot = {2, 0.015, 0.010, 0.020, 0.020, 0.020};
  r.itl = {5, 0.014, 0.010, 0.030, 0.030, 0.030};
  r.e2e = {2, 0.0475, 0.040, 0.055, 0.055, 0.055};
  r.queue = {2, 0.0025, 0.0, 0.005, 0.005, 0.005};
  r.request_s = 2 / 0.06;
  r.output_tok_s = 7 / 0.06;
  r.total_tok_s = 307 / 0.06;
  r.goodput = 1 / 0.06;
  r.slo_attained = 1.0 / 3;
  r.mfu = 0.2;
  r.mbu = 0.5;
  r.busy = 1;
  r.kv_capacity_tokens = 640;
  r.kv_pool = Bytes{640 << 20};
  r.blocks = 40;
  r.block_tokens = 16;
  r.peak_blocks = 20;
  r.usable_hbm = Bytes{2048LL << 20};
  r.peak_hbm = Bytes{1900LL << 20};
  r.peak_owners = {{"weights", Bytes{1000LL << 20}},
                   {"context", Bytes{100LL << 20}},
                   {"kv_cache", Bytes{640LL << 20}},
                   {"activations", Bytes{160LL << 20}}};
  for (std::int64_t i = 0; i < 6; ++i) {
    const std::int64_t tokens = i == 0 ? 101 : i == 1 ? 303 : i < 4 ? 103 : 203;
    r.iteration_samples.push_back({ms(10 * i), ms(10 * i + 10), 0, i == 0 ? 0 : 1,
                                   i < 2 ? 100 * static_cast<std::int32_t>(i + 1) : 0});
    if (r.timeline.empty()) r.timeline.emplace_back();
    r.timeline[0].push_back({.at = ms(10 * i + 10),
                             .running = i == 1 ? 2 : 1,
                             .waiting = i == 2 || i == 3 ? 1 : 0,
                             .tokens = i == 1 ? 2 : 1,
                             .held = Bytes{1900LL << 20},
                             .kv_logical = Bytes{tokens << 20},
                             .kv_blocks = Bytes{(tokens + 15) / 16 * 16 << 20},
                             .kv_cached = Bytes{16LL << 20},
                             .in_service = tokens});
  }
  r.ooms = {{ms(20), 1, "blocks for one more token", Bytes{16 << 20}, Bytes{0}, r.peak_owners}};
  r.scheduler = "vllm-v1";
  r.calibration_id = "nominal";
  r.calibration = "data sheet";
  return r;
}

inline ScenarioPoint sample_serve_point(const std::string& method, double rate) {
  ScenarioPoint point;
  ServeSpec spec;
  spec.llm = &find_llm("llama-2-7b");
  spec.gpu = &find_gpu("A100-80GB-SXM");
  spec.stack = &find_stack("vllm");
  auto trace = std::make_shared<RequestTrace>();
  trace->name = "three";
  trace->requests = {{.arrival = ms(0), .prompt_tokens = 100, .output_tokens = 4},
                     {.arrival = ms(5), .prompt_tokens = 200, .output_tokens = 3},
                     {.arrival = ms(7), .prompt_tokens = 900, .output_tokens = 3}};
  spec.requests = trace;
  spec.slo.tpot = Seconds{0.015};
  point.serve = spec;
  point.keys = {{"model", "llama-2-7b"}, {"gpu", "A100-80GB-SXM"}, {"stack", "vllm"},
                {"method", method},      {"workload", "three"},    {"rate", rate}};
  point.label = method + " rate " + std::to_string(static_cast<int>(rate));
  return point;
}

/// Two methods at two rates.
inline Scenario sample_serve_scenario() {
  Scenario scenario;
  scenario.name = "three-requests";
  scenario.title = "Three requests";
  scenario.kind = "serve";
  scenario.hash = "0123456789abcdef";
  scenario.echo = {{"kind", "serve"}};
  for (const double rate : {1.0, 2.0}) {
    for (const char* method : {"full", "h2o"}) {
      scenario.points.push_back(sample_serve_point(method, rate));
    }
  }
  return scenario;
}

inline RunReport sample_serve_report(const Scenario& scenario) {
  RunReport report;
  report.scenario = &scenario;
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    report.serves.push_back(sample_service());
    report.serves.back().output_tok_s *= 1.0 + static_cast<double>(i);
  }
  return report;
}

}  // namespace kvsim::test
