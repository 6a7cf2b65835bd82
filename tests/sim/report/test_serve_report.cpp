// Output of a service: documents, tables, trace events, figures, summary.

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_figures.hpp"
#include "sim/report/run/run_folder.hpp"
#include "sim/report/run/run_summary.hpp"
#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/service/serve_csv.hpp"
#include "sim/report/service/serve_events.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_report.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/sim/serve/serve_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using test::ms;
using test::rel;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("a request's times by hand") {
  const ServeResult r = test::sample_service();
  const RequestTimes times = times_of(r.outcomes[1]);
  CHECK(times.queue.value() == rel(0.005));
  CHECK(times.ttft.value() == rel(0.015));
  CHECK(times.tpot.value() == rel(0.020));  // (60 - 20) ms over two tokens
  CHECK(times.e2e.value() == rel(0.055));
  CHECK_FALSE(times_of(r.outcomes[2]).ttft.has_value());
  const SloSpec slo{.ttft = {}, .tpot = Seconds{0.015}, .e2e = {}};
  CHECK(keeps(slo, r.outcomes[0]));
  CHECK_FALSE(keeps(slo, r.outcomes[1]));
  CHECK_FALSE(keeps(SloSpec{}, r.outcomes[2]));
}

TEST_CASE("a request is good in the table of requests exactly if goodput counts it") {
  Scenario scenario = test::sample_serve_scenario();
  RunReport report = test::sample_serve_report(scenario);
  // It generates no token and ends after 30 ms: its answer is late.
  ServeResult& r = report.serves[0];
  r.outcomes[0] = {.arrival = ms(0),
                   .scheduled = ms(0),
                   .finish = ms(30),
                   .prompt_tokens = 100,
                   .status = RequestStatus::kCompleted};
  r.spans.erase(r.spans.begin());
  const SloSpec slo{.ttft = Seconds{0.020}, .tpot = {}, .e2e = {}};
  scenario.points[0].serve->slo = slo;
  ServeResult measured;
  measured.outcomes = r.outcomes;
  measured.iteration_ends = r.iteration_ends;
  measured.spans = r.spans;
  measure(measured, slo);
  CHECK(measured.slo_attained.value() == rel(1.0 / 3));
  const auto lines = lines_of(requests_csv(report));
  CHECK(lines[1].ends_with(",0"));
  CHECK(lines[2].ends_with(",1"));
  CHECK(lines[3].ends_with(",0"));
}

TEST_CASE("gaps between tokens by hand: within spans and over a preemption") {
  // Request 0: 10, 10, 10 ms. Request 1: 30 ms from iteration 1 to 4, then 10 ms.
  const auto gaps = token_gaps(test::sample_service());
  std::map<std::int64_t, std::int64_t> count;
  for (const Weighted& gap : gaps) count[std::llround(gap.value * 1e3)] += gap.count;
  CHECK(count == std::map<std::int64_t, std::int64_t>{{10, 4}, {30, 1}});
  // Gaps of a request that is rejected later are excluded from itl_s and from its figure.
  ServeResult refused = test::sample_service();
  refused.outcomes[1].status = RequestStatus::kRejected;
  std::int64_t gaps_left = 0;
  for (const Weighted& gap : token_gaps(refused)) gaps_left += gap.count;
  CHECK(gaps_left == 3);
}

/// A service of the full cache with the keys `more` added to the scenario.
ServeResult service_with(const std::string& more) {
  const Field document = Field::parse(
      R"({"kind": "serve", "model": "llama-2-7b", "gpu": "A100-80GB-SXM", "dtype": "fp16",
          "engine": {"block_tokens": 1}, )" +
          more + "}",
      "service");
  Scenario scenario = scenario_of(document.raw(), "service", "service", false);
  return run_serve(*scenario.points.at(0).serve, {});
}

TEST_CASE("tokens in service are those with allocated blocks, under every scheduler") {
  constexpr double kTokenBytes = 2.0 * 32 * 4096 * 2;
  std::int64_t preemptions = 0;
  for (const std::string stack : {"vllm", "vllm@0.8", "sglang", "trtllm"}) {
    for (const std::string requests :
         {R"({"arrivals": {"kind": "poisson", "rate": 4}, "count": 100, "prompt_tokens": 1000,
              "output_tokens": 100})",
          R"({"arrivals": {"kind": "poisson", "rate": 0.5}, "count": 40, "prompt_tokens": 3800,
              "output_tokens": 100})",
          R"({"arrivals": {"kind": "closed", "users": 60}, "count": 120, "prompt_tokens": 2000,
              "output_tokens": 600})"}) {
      const ServeResult r = service_with("\"stack\": \"" + stack + "\", \"requests\": " + requests);
      INFO(r.scheduler, " ", requests);
      REQUIRE(r.timeline[0].size() > 10);
      for (const ServeSample& sample : r.timeline[0]) {
        // One block for each token.
        CHECK(static_cast<double>(sample.kv_blocks.count()) ==
              kTokenBytes * static_cast<double>(sample.in_service));
      }
      preemptions += r.preemptions;
    }
  }
  CHECK(preemptions > 50);
}

TEST_CASE("HBM by owner sums to the stack's usable memory") {
  const ServeResult r = test::sample_service();
  for (const ServeSample& s : r.timeline[0]) {
    Bytes sum;
    for (const Bytes part : hbm_parts(r, s)) {
      CHECK(part >= Bytes{});
      sum += part;
    }
    CHECK(sum == r.usable_hbm);
  }
}

TEST_CASE("a point of a service has the contract's keys") {
  const Scenario scenario = test::sample_serve_scenario();
  const ordered_json document = run_document(test::sample_serve_report(scenario));
  CHECK(document.at("schema") == "kvsim.run/1");
  CHECK(document.at("kind") == "serve");
  CHECK(document.at("definitions").at("tpot_s").get<std::string>().find("(output tokens - 1)") !=
        std::string::npos);
  CHECK_FALSE(document.contains("run"));
  REQUIRE(document.at("points").size() == 4);
  const ordered_json& point = document.at("points")[0];
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"}) {
    for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"}) {
      CHECK(point.at(key).at(statistic).is_number());
    }
  }
  CHECK(point.at("requests") == 3);
  CHECK(point.at("completed") == 2);
  CHECK(point.at("rejected") == 1);
  CHECK(point.at("preemptions") == 1);
  CHECK(point.at("oom_events") == 1);
  CHECK(point.at("kv_capacity_tokens") == 640);
  CHECK(point.at("peak_hbm_bytes") == 1900LL << 20);
  for (const char* key : {"output_tok_s", "total_tok_s", "request_s", "goodput"}) {
    CHECK(point.at(key).is_number());
  }
  CHECK(point.at("workload") == "three");
  CHECK(point.at("slo").at("tpot_s") == 0.015);
  CHECK(point.at("slo").at("ttft_s").is_null());
  CHECK(point.at("ooms")[0].at("request") == 1);
  CHECK(point.at("prefix_hit_rate").is_null());  // no queries to the prefix cache
  CHECK(point.at("host_tier").is_null());
  RunReport report = test::sample_serve_report(scenario);
  report.serves[0].tiers = {{.name = "NVMe",
                             .capacity = Bytes{100},
                             .peak = Bytes{70},
                             .peak_owners = {{"kv_offloaded", Bytes{70}}}}};
  report.serves[0].kv_dropped = Bytes{9};
  report.serves[0].kv_reclaimed = Bytes{4};
  const ordered_json tiered = run_document(report).at("points")[0];
  CHECK(tiered.at("host_tier").is_null());
  CHECK(tiered.at("nvme_tier").at("capacity_bytes") == 100);
  CHECK(tiered.at("nvme_tier").at("peak_bytes") == 70);
  CHECK(tiered.at("nvme_tier").at("kv_offloaded_bytes") == 70);
  CHECK(tiered.at("nvme_tier").at("kv_swapped_bytes") == 0);
  CHECK(tiered.at("kv_dropped_bytes") == 9);
  CHECK(tiered.at("kv_reclaimed_bytes") == 4);
}

TEST_CASE("missing values are null") {
  Scenario scenario = test::sample_serve_scenario();
  RunReport report = test::sample_serve_report(scenario);
  report.serves[0].ttft = {};
  report.serves[0].goodput.reset();
  const ordered_json document = run_document(report);
  CHECK(document.at("points")[0].at("ttft_s").at("p99").is_null());
  CHECK(document.at("points")[0].at("goodput").is_null());
}

TEST_CASE(
    "tables of a service: a line per request, sample and point, with as many fields as columns") {
  const Scenario scenario = test::sample_serve_scenario();
  const RunReport report = test::sample_serve_report(scenario);
  const auto check = [](const std::string& text, std::size_t rows) {
    const auto lines = lines_of(text);
    REQUIRE(lines.size() == rows + 1);
    const auto commas = std::count(lines[0].begin(), lines[0].end(), ',');
    for (const std::string& line : lines) {
      bool quoted = false;
      std::ptrdiff_t n = 0;
      for (const char c : line) {
        if (c == '"') quoted = !quoted;
        if (c == ',' && !quoted) ++n;
      }
      CHECK(n == commas);
    }
  };
  check(requests_csv(report), 4 * 3);
  check(serve_timeline_csv(report), 4 * 6);
  check(serve_points_csv(run_document(report)), 4);
  const auto requests = lines_of(requests_csv(report));
  CHECK(requests[0] ==
        "point,label,request,status,replica,arrival_s,scheduled_s,first_token_s,finish_s,queue_s,"
        "ttft_s,tpot_s,e2e_s,prompt_tokens,output_tokens,cached_tokens,preemptions,within_slo");
  CHECK(requests[2] ==
        "0,full rate 1,1,completed,0,0.005000000000,0.010000000000,0.020000000000,0.060000000000,"
        "0.005,0.015,0.02,0.055,200,3,0,1,0");
  CHECK(requests[3] == "0,full rate 1,2,rejected,0,0.007000000000,,,,,,,,900,0,0,0,0");
  CHECK(lines_of(serve_points_csv(run_document(report)))[0].find("ttft_s_p99") !=
        std::string::npos);
}

TEST_CASE("trace events: valid, of known kinds, and in order of time within a process") {
  const Scenario scenario = test::sample_serve_scenario();
  const RunReport report = test::sample_serve_report(scenario);
  for (const std::size_t max : {std::size_t{60'000}, std::size_t{40}}) {
    const json document = json::parse(serve_events_json(report, max));
    std::map<int, double> last;
    std::map<std::string, int> kinds;
    for (const json& event : document.at("traceEvents")) {
      const std::string kind = event.at("ph");
      ++kinds[kind];
      const int pid = event.at("pid");
      if (kind == "M") continue;
      const double ts = event.at("ts");
      CHECK(ts >= last[pid]);
      last[pid] = ts;
      if (kind == "X") CHECK(event.at("dur").get<double>() == doctest::Approx(1e4));
      if (kind == "C" && event.at("name") != "requests") {
        double sum = 0;
        for (const auto& part : event.at("args").items()) sum += part.value().get<double>();
        CHECK(sum == doctest::Approx(2.0).epsilon(1e-4));  // GiB
      }
    }
    CHECK(kinds.size() == 3);
    CHECK(last.size() == 4);
    CHECK(document.at("traceEvents").size() <= std::max<std::size_t>(max, 40) + 16);
  }
}

TEST_CASE("a service has its figures with their data and the same bytes each time") {
  const Scenario scenario = test::sample_serve_scenario();
  const RunReport report = test::sample_serve_report(scenario);
  const FigureSet set = run_figures(report);
  std::map<std::string, int> kinds;
  for (const Figure& figure : set.figures) {
    INFO(figure.name);
    ++kinds[figure.kind];
    CHECK(lines_of(figure.csv).size() > 2);
    CHECK(figure.script.find("set xlabel") != std::string::npos);
  }
  CHECK(kinds == std::map<std::string, int>{{"goodput", 1},
                                            {"throughput_ttft", 1},
                                            {"throughput_tpot", 1},
                                            {"throughput_e2e", 1},
                                            {"memory_vs_load", 1},
                                            {"hbm_timeline", 4},
                                            {"running_timeline", 1},
                                            {"waiting_timeline", 1},
                                            {"ttft_cdf", 1},
                                            {"tpot_cdf", 1},
                                            {"itl_cdf", 1},
                                            {"e2e_cdf", 1}});
  const FigureSet again = run_figures(report);
  REQUIRE(again.figures.size() == set.figures.size());
  for (std::size_t i = 0; i < set.figures.size(); ++i) {
    CHECK(again.figures[i].csv == set.figures[i].csv);
    CHECK(again.figures[i].script == set.figures[i].script);
  }
  Scenario chosen = scenario;
  chosen.figures = {"goodput"};
  CHECK(wanted_figures(set, chosen).figures.size() == 1);
}

TEST_CASE("the bound of a service is derived from its run") {
  const Scenario scenario = test::sample_serve_scenario();
  ServeResult r = test::sample_service();
  CHECK(bottleneck(r).kind == "kv_capacity");  // it preempts
  r.preemptions = 0;
  CHECK(bottleneck(r).kind == "memory_bandwidth");  // waits although the cache has free memory
  r.mfu = 0.6;
  CHECK(bottleneck(r).kind == "compute");
  {
    ServeResult low = r;
    low.mfu = low.mbu = 0.2;
    CHECK(bottleneck(low).kind == "host");  // both are far from their limits
    low = r;
    low.completed = 1000;
    low.preemptions = 9;
    CHECK(bottleneck(low).kind == "compute");  // few are preempted
    low.preemptions = 10;
    CHECK(bottleneck(low).kind == "kv_capacity");
  }
  {
    ServeResult reserved = r;
    reserved.reservation_wait_share = 1;  // more than half of the waiting time
    CHECK(bottleneck(reserved).kind == "kv_reservation");
    CHECK(bottleneck(reserved).text.find("declared_tokens") == std::string::npos);
    // The cache is reserved for the longest sequence unless a request declares its output.
    reserved.undeclared = 1;
    const std::string text = bottleneck(reserved).text;
    CHECK(text.find("1 of ") != std::string::npos);
    CHECK(text.find("requests have no declared_tokens, so that each may reach ") !=
          std::string::npos);
    CHECK(text.find("(max_model_len)") != std::string::npos);
    reserved.reservation_wait_share = 0;
    CHECK(bottleneck(reserved).kind == "compute");
  }
  for (ServeSample& s : r.timeline[0]) {
    if (s.waiting > 0) s.kv_blocks = r.kv_pool;
  }
  CHECK(bottleneck(r).kind == "kv_capacity");
  for (ServeSample& s : r.timeline[0]) s.waiting = 0;
  CHECK(bottleneck(r).kind == "arrival_rate");
  r.completed = 0;
  CHECK(bottleneck(r).kind == "rejection");
}

TEST_CASE("a published rate of requests is compared with a rate and not with a time") {
  Scenario scenario = test::sample_serve_scenario();
  scenario.published = {{0, "request_s", 20, "20 req/s", "a table", ""}};
  RunReport report = test::sample_serve_report(scenario);
  report.serves[0].request_s = 25;
  const std::string text = run_summary(report, run_document(report), nullptr, 100);
  const std::vector<std::string> lines = lines_of(text);
  const auto line = std::find_if(lines.begin(), lines.end(), [](const std::string& each) {
    return each.find("request_s") != std::string::npos;
  });
  REQUIRE(line != lines.end());
  CHECK(test::has(*line, "20 req/s"));
  CHECK(test::has(*line, "25.0 req/s"));
  CHECK(test::has(*line, "+25.0 %"));
}

TEST_CASE("the summary of a service fits its width and states the essentials") {
  const Scenario scenario = test::sample_serve_scenario();
  const RunReport report = test::sample_serve_report(scenario);
  const std::string text = run_summary(report, run_document(report), nullptr, 80);
  for (const std::string& line : lines_of(text)) {
    INFO(line);
    CHECK(display_width(line) <= 80);
  }
  for (const char* said : {"TTFT", "TPOT", "bound by KV capacity", "rejected", "0 of 4 points",
                           "(output tokens - 1)", "first out of memory"}) {
    INFO(text);
    CHECK(text.find(said) != std::string::npos);
  }
}

TEST_CASE("a static batch that raises is not reported as too long, nor a failed start as idle") {
  Scenario scenario = test::sample_serve_scenario();
  scenario.points.resize(1);
  RunReport report = test::sample_serve_report(scenario);
  ServeResult& r = report.serves[0];
  r.blocks = r.block_tokens = r.peak_blocks = 0;
  r.kv_pool = {};
  const auto says = [&](const std::string& words) {
    const std::string text = run_summary(report, run_document(report), nullptr, 200);
    INFO(text);
    return text.find(words) != std::string::npos;
  };
  CHECK(says("1 request rejected: lost with batches that ran out of memory"));
  CHECK(says("blocks for one more token, requested 16"));
  r.completed = 0;
  CHECK(says("every batch runs out of memory"));
  r.ooms = {{ms(0), -1, "no memory is left for a cache", Bytes{}, Bytes{}, r.peak_owners}};
  CHECK(says("at the start: no memory is left for a cache"));
  CHECK_FALSE(says("requested 0"));
}

TEST_CASE("the results folder of a service holds its tables and its timeline") {
  const Scenario scenario = test::sample_serve_scenario();
  const std::filesystem::path folder = test::scratch_folder() / "serve-folder";
  std::filesystem::remove_all(folder);
  const RunReport report = test::sample_serve_report(scenario);
  (void)write_run_results(report, run_document(report), folder, {.figures = false, .gnuplot = {}});
  for (const char* name :
       {"result.json", "points.csv", "requests.csv", "timeline.csv", "timeline.json"}) {
    CHECK(std::filesystem::is_regular_file(folder / name));
  }
}

}  // namespace
}  // namespace kvsim
