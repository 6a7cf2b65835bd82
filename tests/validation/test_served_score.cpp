// Served runs simulated and scored: laws of the comparison, and windows computed by hand.

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/cli/validate/served/served_report.hpp"
#include "tests/support/check.hpp"
#include "validation/served/served_predict.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {
namespace {

using test::rel;

const std::string kHeader =
    "run_id,source,date,gpu,gpu_count,tp,pp,ep_dp,model,weight_dtype,kv_dtype,engine,engine_"
    "version,"
    "engine_options,workload,input_tokens,input_spread,output_tokens,output_spread,arrival,rate_"
    "rps,"
    "concurrency,num_requests,seed,metric,stat,value,unit,not_stated,note\n";

/// A run of Llama-3.1-8B on an H100 under vLLM 0.11.
std::string rows(const std::string& id, const std::string& load,
                 const std::vector<std::string>& metrics) {
  std::string out;
  for (const std::string& metric : metrics) {
    out += fmt::format(
        "{},own/bench "
        "a.csv,2025-10,H100-80GB-SXM,1,1,1,,llama-3.1-8b,bf16,auto,vLLM,0.11.0,,random,"
        "128,fixed,16,fixed (ignore_eos),{},0,{},,\n",
        id, load, metric);
  }
  return out;
}

const std::string kLoop = "concurrency,,4,24";
const std::string kPoisson = "poisson,2,,24";
const std::string kBurst = "burst,inf,,24";

ServedScore score_of(const std::string& lines, int threads = 1) {
  return score_served(parse_served_runs(kHeader + lines, "small.csv"), {.threads = threads});
}

TEST_CASE("errors, coverage, width and interval score by hand") {
  // Errors -0.5, 0.1 and 0.2: median of absolute values 0.2, p90 0.2 + 0.8 * (0.5 - 0.2) = 0.44,
  // bias 0.1. The first value is 1 above its interval of [0.5, 1]: 0.5 / 2 + 20 * 1 / 2 = 10.25.
  std::vector<ServedComparison> all(3);
  all[0] = {.measured = 2, .predicted = 1, .low = 0.5, .high = 1};
  all[1] = {.measured = 1, .predicted = 1.1, .low = 1, .high = 2};
  all[2] = {.measured = 1, .predicted = 1.2, .low = {}, .high = {}};
  CHECK(all[0].error() == rel(-0.5));
  CHECK(all[0].interval_score() == rel(10.25));
  CHECK(all[1].interval_score() == rel(1.0));
  const ServedGroup group = group_of({&all[0], &all[1], &all[2]});
  CHECK(group.n == 3);
  CHECK(group.median_ape == rel(0.2));
  CHECK(group.p90_ape == rel(0.44));
  CHECK(group.bias == rel(0.1));
  CHECK(*group.coverage == rel(0.5));
  CHECK(*group.width_median == rel(2.0));
  CHECK(*group.interval_score == rel((10.25 + 1) / 2));
}

TEST_CASE("a prediction used as its measurement has no error and is covered") {
  const std::string lines =
      rows("a", kLoop,
           {"ttft,mean,1,s", "tpot,mean,1,s", "e2e,median,1,s", "output_throughput,total,1,tok/s"});
  const ServedScore first = score_of(lines);
  REQUIRE(first.comparisons.size() == 4);
  std::vector<std::string> again;
  for (const ServedComparison& c : first.comparisons) {
    const bool rate = c.metric == "output_throughput";
    again.push_back(
        fmt::format("{},{},{},{}", c.metric, c.stat, c.predicted, rate ? "tok/s" : "s"));
  }
  const ServedScore second = score_of(rows("a", kLoop, again));
  for (const ServedComparison& c : second.comparisons) {
    INFO(c.metric);
    CHECK(std::abs(c.error()) < 1e-12);
    REQUIRE(c.low);
    CHECK(*c.low <= c.predicted);
    CHECK(c.predicted <= *c.high);
    CHECK(c.is_covered());
  }
}

TEST_CASE("laws of one run's metrics") {
  const ServedScore score = score_of(
      rows("loop", kLoop,
           {"ttft,mean,1,s", "tpot,mean,1,s", "e2e,mean,1,s", "request_throughput,total,1,req/s",
            "duration,total,1,s", "output_throughput,total,1,tok/s"}));
  const ServedPrediction& p = score.runs[0].predicted;
  REQUIRE(p.failed.empty());
  const auto value = [&](const char* metric, const char* stat) {
    const PredictedMetric* m = p.find(metric, stat);
    REQUIRE(m != nullptr);
    return m->value;
  };
  // 16 tokens of each request: E2E = TTFT + 15 gaps; 24 requests in all.
  CHECK(value("e2e", "mean") ==
        rel(value("ttft", "mean") + 15 * value("tpot", "mean")).epsilon(1e-6));
  CHECK(value("duration", "total") * value("request_throughput", "total") == rel(24.0));
  CHECK(value("output_throughput", "total") == rel(16 * value("request_throughput", "total")));
  CHECK(value("ttft", "median") <= value("ttft", "p99"));
}

TEST_CASE("load: a burst is at saturation and a slow Poisson stream far below") {
  const ServedScore score = score_of(rows("b", kBurst, {"output_throughput,total,1,tok/s"}) +
                                     rows("p", kPoisson, {"ttft,mean,1,s"}));
  CHECK(score.runs[0].load == "high");
  CHECK(score.runs[1].load == "low");
  CHECK(*score.runs[1].predicted.load > 0);
}

TEST_CASE("the result does not depend on threads or on other runs") {
  const std::string a = rows("a", kLoop, {"ttft,mean,1,s", "ttft,p99,1,s"});
  const std::string b = rows("b", kPoisson, {"tpot,mean,1,s"});
  const std::string one = served_json(score_of(a + b, 1), "x.csv", true).dump();
  CHECK(one == served_json(score_of(a + b, 2), "x.csv", true).dump());
  const ServedScore only = score_of(a);
  const ServedScore both = score_of(b + a);
  CHECK(only.comparisons[0].predicted == both.comparisons[1].predicted);
}

TEST_CASE("the document has the groups and counts of its runs") {
  const ServedScore score =
      score_of(rows("a", kLoop, {"ttft,mean,1,s", "waiting_requests,max,3,requests"}) +
               rows("odd", "trace,,,24", {"ttft,mean,1,s"}));
  CHECK(score.expressed() == 1);
  CHECK(score.reasons.at("arrivals without a rate or a log") == 1);
  CHECK(score.uncompared.at("waiting_requests max") == 1);
  const auto json = served_json(score, "small.csv", false);
  CHECK(json.at("schema") == "kvsim.validate-served/1");
  CHECK(json.at("runs_total") == 2);
  CHECK(json.at("runs_expressed") == 1);
  REQUIRE(json.at("pooled").size() == 1);
  const auto& pool = json.at("pooled")[0];
  for (const char* key : {"metric", "stat", "complete", "load", "n", "median_ape", "p90_ape",
                          "bias", "coverage", "width_median", "interval_score"}) {
    CHECK(pool.contains(key));
  }
  CHECK_FALSE(pool.contains("engine"));
  CHECK(json.at("groups")[0].at("engine") == "vLLM");
  CHECK(json.at("groups")[0].at("version") == "0.11.0");
  CHECK(json.at("groups")[0].at("source") == "own/bench");
}

/// A closed loop of one user: three requests of two tokens, at 0, 10 and 20 s, each token after 2
/// s.
ServeResult hand_run() {
  ServeResult result;
  const auto at = [](double s) { return to_sim_time(Seconds{s}); };
  result.iteration_ends = {{at(2), at(4), at(12), at(14), at(22), at(24)}};
  for (int i = 0; i < 3; ++i) {
    const double t = 10.0 * i;
    result.outcomes.push_back({.arrival = at(t),
                               .scheduled = at(t),
                               .first_token = at(t + 2),
                               .finish = at(t + 4),
                               .prompt_tokens = 5,
                               .output_tokens = 2,
                               .status = RequestStatus::kCompleted});
    result.spans.push_back({.request = i, .first = 2 * i, .count = 2, .replica = 0});
  }
  return result;
}

TEST_CASE("windows of clients, by hand") {
  MappedRun run;
  ServedClient client;
  run.client = &client;
  run.workload.arrivals = ServedArrivals::kClosed;
  run.workload.users = 1;
  run.workload.scale = 3;
  const ServeResult result = hand_run();
  const auto value = [&](std::string_view metric, std::string_view stat) {
    for (const PredictedMetric& m : client_metrics(result, run)) {
      if (m.metric == metric && m.stat == stat) return m.value;
    }
    return -1.0;
  };
  // Whole run: 24 s, 6 tokens; three equal engines.
  CHECK(value("duration", "total") == rel(24.0));
  CHECK(value("output_throughput", "total") == rel(3 * 6 / 24.0));
  CHECK(value("running_requests", "mean") == rel(3 * 12 / 24.0));
  CHECK(value("ttft", "mean") == rel(2.0));
  // Steady part: from the first response (4 s) to the last arrival (20 s): tokens at 12 and 14 s,
  // and one request ends.
  client.window = MeasureWindow::kSteady;
  CHECK(value("output_throughput", "total") == rel(3 * 2 / 16.0));
  CHECK(value("request_throughput", "total") == rel(3 * 1 / 16.0));
  CHECK(value("running_requests", "mean") == rel(3 * 4 / 16.0));
  // Until the last request starts at 20 s, including the start of the run: tokens at 2, 4, 12 and
  // 14 s.
  client.window = MeasureWindow::kQueued;
  CHECK(value("output_throughput", "total") == rel(3 * 4 / 20.0));
  CHECK(value("running_requests", "mean") == rel(3 * 8 / 20.0));
  // A time-out of 3 s: no request counts.
  client.time_out = Seconds{3.0};
  CHECK(value("ttft", "mean") == -1);
}

TEST_CASE("TPOT of requests and of an engine's iterations, ITL between chunks, by hand") {
  MappedRun run;
  ServedClient client;
  run.client = &client;
  run.workload.arrivals = ServedArrivals::kAtOnce;
  // One request has tokens at 1, 2, 3 and 10 s, the other at 1 and 3 s after a pause.
  ServeResult result;
  result.iteration_ends = {{to_sim_time(Seconds{1.0}), to_sim_time(Seconds{2.0}),
                            to_sim_time(Seconds{3.0}), to_sim_time(Seconds{10.0})}};
  const auto request = [&](std::int32_t tokens, double finish) {
    result.outcomes.push_back({.arrival = SimTime{},
                               .scheduled = SimTime{},
                               .first_token = to_sim_time(Seconds{1.0}),
                               .finish = to_sim_time(Seconds{finish}),
                               .prompt_tokens = 5,
                               .output_tokens = tokens,
                               .status = RequestStatus::kCompleted});
  };
  request(4, 10);
  request(2, 3);
  result.spans = {{.request = 0, .first = 0, .count = 4, .replica = 0},
                  {.request = 1, .first = 0, .count = 1, .replica = 0},
                  {.request = 1, .first = 2, .count = 1, .replica = 0}};
  const auto mean = [&](std::string_view metric) {
    for (const PredictedMetric& m : client_metrics(result, run)) {
      if (m.metric == metric && m.stat == "mean") return m.value;
    }
    return -1.0;
  };
  // 9 s / 3 and 2 s / 1.
  CHECK(mean("tpot") == rel(2.5));
  CHECK(mean("itl") == rel((1 + 1 + 7 + 2) / 4.0));
  // A chat endpoint sends each request's role just before its first token.
  client.times_role = true;
  CHECK(mean("tpot") == rel(2.5));
  CHECK(mean("itl") == rel((1 + 1 + 7 + 2) / 6.0));
  client.times_role = false;
  // Iterations: 1 s; 1 and 2 s; 7 s.
  client.tpot_of_iterations = true;
  CHECK(mean("tpot") == rel((1 + 1.5 + 7) / 3));

  // With drafts the first request has one token at 1 s and three in one chunk at 10 s.
  client.tpot_of_iterations = false;
  result.outcomes.clear();
  request(4, 10);
  result.spans = {{.request = 0, .first = 0, .count = 1, .replica = 0},
                  {.request = 0, .first = 3, .count = 3, .replica = 0, .stride = 0}};
  CHECK(mean("tpot") == rel(3));
  CHECK(mean("itl") == rel(9));
}

}  // namespace
}  // namespace kvsim
