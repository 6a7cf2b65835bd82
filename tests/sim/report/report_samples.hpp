#pragma once

// Made-up results of realistic size: Llama-2-7B in fp32 on an 80 GB A800, 20,000 prompt tokens and
// 34,000 generated ones; the full cache runs out of memory meanwhile, the others hold 18,000
// entries.

#include <cmath>
#include <string>

#include "sim/run/run_report.hpp"

namespace kvsim::test {

inline Bytes gib(double value) {
  return Bytes{static_cast<std::int64_t>(std::llround(value * 1024 * 1024 * 1024))};
}

inline ScenarioPoint sample_point(const std::string& method, std::int64_t budget) {
  ScenarioPoint point;
  point.spec.batch = 1;
  point.spec.prompt_tokens = 20000;
  point.spec.output_tokens = 34000;
  point.keys = {
      {"model", "Llama-2-7B"}, {"gpu", "A800-80GB-SXM"}, {"stack", "hf-sdpa"}, {"method", method}};
  if (budget > 0) point.keys["budget"] = budget;
  point.keys["dtype"] = "fp32";
  point.keys["batch"] = 1;
  point.keys["prompt_tokens"] = 20000;
  point.keys["output_tokens"] = 34000;
  point.kv_bytes_wanted = gib(static_cast<double>(budget > 0 ? budget : 54000) / 1024);
  point.label = budget > 0 ? method + " budget " + std::to_string(budget) : method;
  return point;
}

/// `entries`: the maximum number held; the prefill peaks at `prefill_gib`.
inline StaticResult sample_result(std::int64_t entries, double prefill_gib, double side_gib) {
  constexpr double kWeights = 25.1, kContext = 0.44, kPerToken = 1.0 / 1024;  // GiB
  constexpr std::int64_t kPrompt = 20000, kOutput = 34000;
  constexpr double kUsable = 79.0;
  StaticResult result;
  result.usable_hbm = gib(kUsable);
  result.calibration = "nominal roofline, uncalibrated";
  result.prefill_peak = gib(prefill_gib);
  result.prefill_time = Seconds{4.2};
  result.timeline.push_back({0, kPrompt, gib(prefill_gib), gib(45.2),
                             gib(static_cast<double>(kPrompt) * kPerToken), Seconds{4.2}, 0.24});
  double time = 0;
  for (std::int64_t step = 1; step < kOutput; step += 66) {
    const std::int64_t tokens = kPrompt + step;
    const double kv = static_cast<double>(std::min(tokens, entries)) * kPerToken;
    const double peak = kWeights + kContext + kv + side_gib + kv / 32 * 0.5;
    const double step_s = 0.0142 + (kWeights + kv) / 1600;
    time += step_s * 66;
    if (peak > kUsable) {
      OomEvent oom;
      oom.step = step;
      oom.tokens = tokens;
      oom.phase = "decode";
      oom.what = "concatenated keys of layer 17";
      oom.requested = gib(0.823);
      oom.free = gib(0.303);
      oom.owners = {{"weights", gib(kWeights)},
                    {"context", gib(kContext)},
                    {"kv_cache", gib(kv)},
                    {"concat_copy", gib(kv / 64)}};
      result.oom = oom;
      result.prefill_time.reset();
      break;
    }
    result.timeline.push_back({step, tokens, gib(peak), gib(peak - kv / 64), gib(kv + side_gib),
                               Seconds{step_s}, 1 / step_s});
    result.kv_bytes = gib(kv + side_gib);
    if (gib(peak) > result.decode_peak) {
      result.decode_peak = gib(peak);
      result.peak_owners = {{"weights", gib(kWeights)}, {"context", gib(kContext)},
                            {"kv_cache", gib(kv)},      {"concat_copy", gib(kv / 64)},
                            {"activations", gib(0.05)}, {"logits", gib(0.002)}};
      if (side_gib > 0) result.peak_owners["side_data"] = gib(side_gib);
      result.peak_phase = "decode";
    }
  }
  if (result.prefill_peak > result.decode_peak) {
    result.peak_phase = "prefill";
    result.peak_owners = {{"weights", gib(kWeights)},
                          {"context", gib(kContext)},
                          {"kv_cache", gib(20000 * kPerToken)},
                          {"activations", gib(2.6)},
                          {"logits", gib(0.12)},
                          {"scores", gib(prefill_gib - kWeights - kContext - 19.53 - 2.72)}};
  }
  result.peak_hbm = std::max(result.prefill_peak, result.decode_peak);
  for (int layer = 0; layer < 32; ++layer) {
    result.kv_bytes_per_layer.push_back(Bytes{result.kv_bytes.count() / 32});
  }
  if (!result.oom) {
    result.decode_time = Seconds{time};
    result.decode_tok_s = kOutput / time;
    result.throughput_tok_s = kOutput / (time + 4.2);
  }
  return result;
}

inline Scenario sample_scenario() {
  Scenario scenario;
  scenario.name = "zeromerge-a800";
  scenario.title = "ZeroMerge, section 4.2: growth from 20K to 54K tokens on one A800";
  scenario.kind = "static";
  scenario.seed = 7;
  scenario.hash = "0123456789abcdef";
  scenario.echo = {{"model", "Llama-2-7B"}, {"gpu", "A800-80GB-SXM"}};
  scenario.points = {sample_point("full", 0), sample_point("zeromerge", 18000),
                     sample_point("h2o", 18000), sample_point("streaming-llm", 18000)};
  scenario.published = {
      {0, "oom_tokens", 54000, "54K tokens", "ZeroMerge, section 4.2", ""},
      {1, "decode_peak_bytes", 46e9, "46 GB", "ZeroMerge, figure 5", "read off the figure"}};
  return scenario;
}

inline ReplayResult sample_replay() {
  ReplayResult replay;
  replay.trace = "books-treasure-512";
  const auto add = [&](const std::string& name, double budget, double error, double growth) {
    ReplayMethod method;
    method.name = name;
    if (budget > 0) method.budget = budget;
    method.budget_reached = budget > 0 ? budget : 1.0;
    method.params = {{"budget", std::int64_t{102}}, {"alpha", 0.5}};
    method.steps = 256;
    for (std::int64_t step = 1; step <= method.steps; ++step) {
      ReplayStep s;
      s.step = step;
      s.tokens = 256 + step;
      const double kept = budget > 0 ? 256 * budget : static_cast<double>(256 + step);
      s.entries_held = static_cast<std::int64_t>(kept) * 48;
      s.entries_attended = s.entries_held + 48;
      s.bytes_held = static_cast<std::int64_t>(s.entries_held) * 256;
      s.bytes_read = static_cast<double>(s.bytes_held);
      s.bytes_written = 48 * 256;
      const double wobble = 1 + 0.35 * std::sin(0.7 * static_cast<double>(step) + error * 40);
      s.rel_error = error * wobble * (1 + growth * static_cast<double>(step) / 256);
      s.cosine = 1 - s.rel_error * s.rel_error / 2;
      if (name != "zeromerge") s.retained_mass = 1 - s.rel_error / 2;
      method.series.push_back(s);
    }
    const ReplayStep& last = method.series.back();
    method.entries_held_final = static_cast<std::int64_t>(last.entries_held);
    method.bytes_held_final = last.bytes_held;
    method.bytes_full_final = 512 * 48 * 256;
    method.closed_form_bytes_final = last.bytes_held;
    method.rel_error_mean = error * (1 + growth / 2);
    method.rel_error_p99 = error * 1.9;
    method.cosine_mean = 1 - error * error / 2;
    if (name != "zeromerge") method.retained_mass_mean = 1 - error / 2;
    for (std::int32_t layer = 0; layer < 6; ++layer) {
      method.layers.push_back({layer,
                               -1,
                               method.entries_held_final / 6,
                               method.bytes_held_final / 6,
                               error,
                               1 - error * error / 2,
                               {},
                               {}});
    }
    method.kept = {{{{0}, {1}, {7, 9}}, {{0}, {5}}}};
    replay.methods.push_back(method);
  };
  add("full", 0, 0, 0);
  add("zeromerge", 0.2, 0.06, 0.8);
  add("h2o", 0.2, 0.08, 1.0);
  add("streaming-llm", 0.2, 0.31, 0.2);
  return replay;
}

inline TimeTerm sample_term(const std::string& what, const std::string& bound, double seconds) {
  return {.what = what,
          .family = "gemm",
          .layers = 32,
          .calls = 1,
          .flops = 1e12,
          .bytes_read = 2e9,
          .bytes_written = 1e6,
          .launches = 32,
          .bound = bound,
          .time = Seconds{seconds},
          .formula = "32 layers x (4 us + 1 B / 2 TB/s)",
          .basis = "stack",
          .source = "gpu A800-80GB-SXM: hbm_bandwidth"};
}

/// A report does not own its scenario: the caller keeps `scenario` alive.
inline RunReport sample_report(const Scenario& scenario) {
  RunReport report;
  report.scenario = &scenario;
  report.results = {sample_result(1 << 30, 47.8, 0), sample_result(18000, 57.9, 0.14),
                    sample_result(18000, 57.9, 0.07), sample_result(18000, 47.8, 0)};
  report.results[1].explained = {
      {.step = 0,
       .tokens = 20000,
       .time = Seconds{4.2},
       .interval = {},
       .terms = {sample_term("query, \"up\" of 32 layers", "compute", 3.15),
                 sample_term("attention of 32 layers", "memory", 1.05)}},
      {.step = 34000,
       .tokens = 54000,
       .time = Seconds{0.04},
       .interval = Interval{Seconds{0.03}, Seconds{0.05}},
       .terms = {sample_term("attention of 32 layers", "memory", 0.01),
                 sample_term("waiting for the host", "host", 0.03)}}};
  report.replay = sample_replay();
  return report;
}

}  // namespace kvsim::test
