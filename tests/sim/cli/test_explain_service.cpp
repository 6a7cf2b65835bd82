// kvsim explain of a service: its memory, times, rates and bounds. The tests run the program like a
// user.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "sim/serve/account/service_metrics.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/sim/report/explained.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::complaint;
using test::explain;
using test::kFits;
using test::Outcome;
using test::rel;
using test::run;
using test::run_kvsim;
using test::shares_of;
namespace fs = std::filesystem;
using test::fresh;
using test::has;
using test::write;

TEST_CASE(
    "explain: a service's capacity, peak and mean iteration, without metrics of static runs") {
  const fs::path folder = fresh("service");
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 40,
    "prompt_tokens": 500, "output_tokens": 20}})");
  for (const std::string key : {"kv_cache_bytes", "peak_hbm_bytes", "iteration_s"}) {
    INFO(key);
    const json out = explain(folder, key);
    double sum = 0;
    for (const json& term : out.at("terms")) sum += term.at("value").get<double>();
    CHECK(sum == doctest::Approx(out.at("value").get<double>()).epsilon(1e-8));
  }
  const json result = json::parse(std::ifstream{folder / "out/result.json"});
  const json capacity = explain(folder, "kv_capacity_tokens");
  const json& point = result.at("points").at(0);
  CHECK(capacity.at("value") == point.at("kv_capacity_tokens"));
  CHECK(capacity.at("low") == point.at("kv_capacity_tokens_low"));
  CHECK(capacity.at("interval_basis") == point.at("pool_interval_basis"));
  CHECK(has(complaint({"explain", "out", "prefill_s"}, folder), "a service explains"));
}

TEST_CASE("explain: memory reserved by static batches, also in summary and timelines") {
  const fs::path folder = fresh("service-reserved");
  const std::string scenario = R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "hf-sdpa", "memory": {"allocator": "simulate"},
    "requests": {"arrivals": {"kind": "fixed", "rate": 100}, "count": 12, "prompt_tokens": 300,
    "output_tokens": 8}})";
  run(folder, scenario);
  const json out = explain(folder, "reserved_hbm_bytes");
  double sum = 0;
  for (const json& term : out.at("terms")) sum += term.at("value").get<double>();
  CHECK(sum == doctest::Approx(out.at("value").get<double>()).epsilon(1e-8));
  const json point = json::parse(std::ifstream{folder / "out/result.json"}).at("points").at(0);
  CHECK(out.at("value") == point.at("reserved_hbm_bytes"));

  // The last column of the timeline reaches it, and each sample is a counter of the trace.
  std::ifstream csv{folder / "out/timeline.csv"};
  std::string line;
  REQUIRE(std::getline(csv, line));
  CHECK(line.ends_with(",reserved_bytes"));
  std::int64_t max = 0;
  std::size_t samples = 0;
  for (; std::getline(csv, line); ++samples) {
    max = std::max(max, std::int64_t{std::stoll(line.substr(line.rfind(',') + 1))});
  }
  CHECK(max == point.at("reserved_hbm_bytes").get<std::int64_t>());
  std::size_t counters = 0;
  const json trace = json::parse(std::ifstream{folder / "out/timeline.json"});
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "C" || event.at("name") != "allocator (GiB)") continue;
    ++counters;
    const double reserved = event.at("args").at("reserved").get<double>();
    CHECK(reserved > 0);
    CHECK(reserved * 1073741824 <= static_cast<double>(max) * 1.00001);
  }
  CHECK(counters == samples);

  const Outcome shown = run_kvsim({"run", "s.json", "--no-figures", "--verbose"}, folder);
  CHECK(has(shown.out, "reserved at most"));
  // Without the simulation, these metrics do not exist.
  write(folder / "s.json", std::string{scenario}.replace(scenario.find("simulate"), 8, "analytic"));
  CHECK_FALSE(has(run_kvsim({"run", "s.json", "-o", "plain", "--no-figures", "-v"}, folder).out,
                  "reserved at most"));
  CHECK(has(complaint({"explain", "plain", "reserved_hbm_bytes"}, folder), "was not simulated"));
}

/// A service of 200 simultaneous requests, with its bound.
json bound_of(const std::string& name, const std::string& more) {
  const fs::path folder = fresh(name);
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "requests": {"arrivals": {"kind": "fixed", "rate": 1000}, "count": 200,
    "prompt_tokens": 600, "output_tokens": 60})" +
                  more + "}");
  const json out = explain(folder, "bound");
  const json point = json::parse(std::ifstream{folder / "out/result.json"}).at("points").at(0);
  // Phases sum to the makespan and equal those of the result.
  double sum = 0;
  for (const json& term : out.at("terms")) sum += term.at("value").get<double>();
  CHECK(sum == rel(point.at("makespan_s").get<double>()).epsilon(1e-8));
  double phases = 0;
  for (const auto& phase : point.at("phases").items()) phases += phase.value().get<double>();
  CHECK(phases == rel(1.0).epsilon(1e-9));
  CHECK(point.at("phases").at("idle").get<double>() ==
        doctest::Approx(1 - point.at("busy").get<double>()));
  // Only the limiting resource is marked.
  REQUIRE(out.at("tables").size() == 3);
  int binding = 0;
  for (const json& row : out.at("tables").at(0).at("rows")) {
    binding += row.at("what").get<std::string>().ends_with("(binds)") ? 1 : 0;
    if (!row.at("share").is_null()) CHECK(row.at("share").get<double>() <= 1 + 1e-9);
  }
  CHECK(binding == 1);
  // All families of a mean iteration.
  CHECK(shares_of(out.at("tables").at(1)) == rel(1.0).epsilon(1e-9));
  const Outcome text = run_kvsim({"explain", "out", "bound"}, folder);
  CHECK(has(text.out, "sensitivity: "));
  return {{"explained", out}, {"point", point}};
}

const json& row_of(const json& table, const std::string& what) {
  for (const json& row : table.at("rows")) {
    if (row.at("what").get<std::string>().starts_with(what)) return row;
  }
  FAIL("no row ", what);
  return table;
}
double sum_of_terms(const json& explained) {
  double sum = 0;
  for (const json& term : explained.at("terms")) sum += term.at("value").get<double>();
  return sum;
}
json first_point(const fs::path& folder) {
  return json::parse(std::ifstream{folder / "out/result.json"}).at("points").at(0);
}

TEST_CASE("explain: a service's latencies by queue, prompt and output, with the unexplained rest") {
  const fs::path folder = fresh("latencies");
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm",
    "requests": {"arrivals": {"kind": "fixed", "rate": 1000}, "count": 200, "prompt_tokens": 100,
    "output_tokens": 400}, "memory": {"hbm": "24 GiB"}, "engine": {"max_model_len": 2048}})");
  const json point = first_point(folder);
  REQUIRE(point.at("preemptions") > 0);
  const std::map<std::string, std::size_t> terms{
      {"queue_s", 1}, {"ttft_s", 2}, {"e2e_s", 3}, {"tpot_s", 0}, {"itl_s", 0}};
  for (const auto& [key, n] : terms) {
    INFO(key);
    const json out = explain(folder, key);
    const double mean = point.at(key).at("mean");
    CHECK(out.at("value") == point.at(key).at("mean"));
    CHECK(out.at("low") == point.at(key + "_low").at("mean"));
    CHECK(out.at("high") == point.at(key + "_high").at("mean"));
    CHECK(out.at("interval_basis") == point.at("intervals").at("basis"));
    REQUIRE(out.at("terms").size() == n);
    if (n > 0) CHECK(sum_of_terms(out) == rel(mean).epsilon(1e-9));
    const json result = json::parse(std::ifstream{folder / "out/result.json"});
    CHECK(out.at("notes").at(0) == result.at("definitions").at(key));
    CHECK(out.at("tables").at(0).at("rows").size() == 4);
    const std::string waits =
        row_of(out.at("tables").back(), "preemptions").at("text").get<std::string>();
    CHECK(has(waits, "is not in the result"));
  }
  const json ttft = explain(folder, "ttft_s");
  CHECK(ttft.at("terms").at(0).at("value") == point.at("queue_s").at("mean"));
  CHECK(ttft.at("terms").at(0).at("high") == point.at("queue_s_high").at("mean"));
  const json tpot = explain(folder, "tpot_s");
  CHECK(has(tpot.at("notes").dump(), "no terms sum to it"));
  REQUIRE(tpot.at("tables").size() == 4);
  CHECK(shares_of(tpot.at("tables").at(1)) == rel(1.0).epsilon(1e-9));
  CHECK(shares_of(tpot.at("tables").at(2)) == rel(1.0).epsilon(1e-9));
}

TEST_CASE("explain: latencies of fewer requests than were served are not divided into parts") {
  const fs::path folder = fresh("silent");
  std::ofstream{folder / "t.csv"} << "arrival_s,prompt_tokens,output_tokens\n0,900,9\n0,900,0\n";
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "requests": {"file": "t.csv"}})");
  const json ttft = explain(folder, "ttft_s");
  CHECK(ttft.at("terms").empty());
  CHECK(has(ttft.at("notes").dump(), "1 of 2 completed requests have a first token"));
  const json whole = explain(folder, "e2e_s");
  REQUIRE(whole.at("terms").size() == 2);
  CHECK(sum_of_terms(whole) == rel(whole.at("value").get<double>()).epsilon(1e-9));
  CHECK(has(complaint({"explain", "out", "goodput"}, folder), "bounds no times"));
}

TEST_CASE("explain: a service's rates, goodput and utilization are parts of its makespan") {
  const fs::path folder = fresh("rates");
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "stack": "vllm",
    "requests": {"arrivals": {"kind": "fixed", "rate": 100}, "count": 200, "prompt_tokens": 600,
    "output_tokens": 60}, "slo": {"ttft": "600 ms", "tpot": "1 s"}})");
  const json point = first_point(folder);
  const double makespan = point.at("makespan_s");
  for (const std::string key : {"output_tok_s", "total_tok_s", "request_s", "mfu", "mbu"}) {
    INFO(key);
    const json out = explain(folder, key);
    CHECK(out.at("value") == point.at(key));
    CHECK(out.at("terms_of") == "makespan_s");
    CHECK(sum_of_terms(out) == rel(makespan).epsilon(1e-8));
    CHECK_FALSE(out.at("formula").is_null());
    if (key[0] != 'm') CHECK(out.at("high") == point.at(key + "_high"));
  }
  const double mfu = point.at("mfu");
  const json use = explain(folder, "mfu");
  CHECK(use.at("terms").at(0).at("value").get<double>() == rel(mfu * makespan));
  CHECK(shares_of(use.at("tables").at(0)) == rel(1.0).epsilon(1e-9));
  const json good = explain(folder, "goodput");
  CHECK(sum_of_terms(good) == rel(point.at("request_s").get<double>()).epsilon(1e-9));
  // Statements about percentiles and a bound are valid for the individual requests.
  const json& bounds = good.at("tables").at(0);
  REQUIRE(bounds.at("rows").size() == 2);
  CHECK(has(row_of(bounds, "tpot_s").at("text").get<std::string>(), ": at most 1 % of 200"));
  std::ifstream requests{folder / "out/requests.csv"};
  int missed = 0, all = -1;  // the first line is the header
  for (std::string line; std::getline(requests, line); ++all)
    missed += line.ends_with(",0") ? 1 : 0;
  REQUIRE(all == 200);
  CHECK(good.at("value").get<double>() == rel((all - missed) / makespan));
  REQUIRE(missed > 0);
  const std::string text = row_of(bounds, "ttft_s").at("text");
  double min = -1, max = 100;
  const std::size_t ends = text.find("more than ");
  REQUIRE_MESSAGE(ends != std::string::npos, text);
  CHECK(std::sscanf(text.c_str() + ends, "more than %lf %% and at most %lf", &min, &max) >= 1);
  CHECK(100.0 * missed / all > min);
  CHECK(100.0 * missed / all <= max);
  // A rate that differs from the completed work over the makespan.
  json changed = json::parse(std::ifstream{folder / "out/result.json"});
  changed.at("points").at(0).at("output_tok_s") = 1.0;
  write(folder / "changed.json", changed.dump());
  CHECK(
      has(complaint({"explain", "changed.json", "output_tok_s"}, folder), "over a makespan_s of"));
  const fs::path other = fresh("static_rates");
  run(other, kFits);
  CHECK(has(complaint({"explain", "out", "goodput"}, other), "needs \"kind\": \"serve\""));
}

TEST_CASE("explain: every metric of a service, also those without terms") {
  const fs::path folder = fresh("every_metric");
  run(folder, R"({"kind": "serve", "model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm", "slo": {"ttft": "1 s"}, "requests": {"arrivals": {"kind": "fixed", "rate": 9},
    "count": 30, "prompt_tokens": 600, "output_tokens": 20}})");
  const json point = first_point(folder);
  for (const Metric<ServeResult>& metric : service_metrics()) {
    const std::string key{metric.info.key};
    INFO(key);
    if (metric.info.kind == MetricKind::kText) {
      CHECK(has(complaint({"explain", "out", key}, folder), "unknown figure"));
      continue;
    }
    const bool is_bound = key == "busy";  // a column of the summary that calls `explain bound`
    if (!point.contains(key) || point.at(key).is_null() || is_bound) continue;
    const json out = explain(folder, key);
    const json& value =
        metric.info.kind == MetricKind::kLatency ? point.at(key).at("mean") : point.at(key);
    CHECK(out.at("value").get<double>() == value.get<double>());
  }
  const json preempted = explain(folder, "preemptions");
  CHECK(preempted.at("terms").empty());
  CHECK(preempted.at("notes").at(0) == "sequences put back into the queue");
  const json busy = explain(folder, "makespan_s");
  CHECK(busy.at("low").get<double>() < busy.at("value").get<double>());
  CHECK_FALSE(busy.at("interval_basis").is_null());
}

TEST_CASE("explain: the bound of a service, its phases, resources and sensitivity: ") {
  const json few = bound_of("few", R"(, "scheduler": {"name": "vllm-v1", "max_num_seqs": 4})");
  CHECK(few.at("point").at("bound") == "max_num_seqs");
  CHECK(few.at("point").at("resources").at("max_num_seqs") == 4);
  CHECK(few.at("point").at("resources").at("most_running") == 4);
  CHECK(few.at("point").at("resources").at("seqs_full") > 0.9);
  const json small =
      bound_of("small", R"(, "memory": {"hbm": "24 GiB"}, "engine": {"max_model_len": 2048})");
  CHECK(small.at("point").at("bound") == "kv_capacity");
  // If the cache is the limit, the improvement of the cache is listed first.
  const json& first = small.at("explained").at("tables").at(2).at("rows").at(0);
  CHECK(has(first.at("text").get<std::string>(), "more cache"));
  // A budget of 16 tokens is always used up while prompts wait; four sequences do not fill 8,192.
  const json tight =
      bound_of("tight", R"(, "scheduler": {"name": "vllm-v1", "max_num_batched_tokens": 16})");
  CHECK(tight.at("point").at("resources").at("tokens_full") > 0.9);
  CHECK(few.at("point").at("resources").at("tokens_full") <
        tight.at("point").at("resources").at("tokens_full"));
}

}  // namespace
}  // namespace kvsim
