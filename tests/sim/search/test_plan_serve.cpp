// Plans of services: boundaries, monotonicity, agreement with runs at every rate, limiting
// constraints.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/plan/layout_bound.hpp"
#include "sim/plan/serve_probe.hpp"
#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/service/serve_json.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "sim/sweep/runners.hpp"
#include "tests/sim/search/plan_files.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;
using test::serve_plan;

constexpr const char* kRate = R"("questions": "highest_rate", "rate_step": 0.05)";

double need_at(const Scenario& scenario, double scale) {
  const PlanSection& plan = *scenario.plan;
  return ServeCase{*scenario.points[0].serve, plan.confidence, plan.attainment}
      .at({.scale = scale})
      .need;
}

/// The need of the unchanged workload, before it is divided among copies of the service.
double need_of_copies(const Scenario& scenario, std::int32_t copies) {
  const PlanSection& plan = *scenario.plan;
  return ServeCase{*scenario.points[0].serve, plan.confidence, plan.attainment}
      .at({.copies = copies})
      .need;
}

double rate_of(const Scenario& scenario) {
  const PlanSection& plan = *scenario.plan;
  return ServeCase{*scenario.points[0].serve, plan.confidence, plan.attainment}.offered(1);
}

TEST_CASE("an engine that does not start with its default length is planned for the workload") {
  const auto plan_of = [](const char* engine) {
    return run_plan(serve_plan(fmt::format(R"(, "model": "llama-3.1-8b", "gpu": "RTX-4090",
                                           "engine": {{"max_num_seqs": 64{}}})",
                                           engine),
                               R"("questions": "fewest_gpus")"),
                    {.threads = 1});
  };
  const PlanResult plan = plan_of("");
  const PlanCandidate& one = plan.candidates.at(0);
  CHECK(one.answer == 1.0);
  CHECK(one.max_model_len == 660);
  CHECK(std::any_of(one.notes.begin(), one.notes.end(), [](const std::string& note) {
    return note.find("planned with max_model_len 660, the longest request") != std::string::npos;
  }));
  // A length set by the user is not changed.
  const PlanResult set = plan_of(R"(, "max_model_len": 4096)");
  CHECK(set.candidates.at(0).max_model_len == 0);
  CHECK(set.candidates.at(0).answer == 1.0);
}

TEST_CASE("a method on an engine is no more certain than the full cache") {
  const Scenario scenario =
      serve_plan(R"(, "method": ["full", {"name": "snapkv", "budget": 1.0}])", kRate);
  std::vector<ServeTimesEnd> slower;
  for (const ScenarioPoint& point : scenario.points) {
    const ServeStart start = start_of(*point.serve);
    REQUIRE(start.times);
    slower.push_back(start.times->ends(0.9).slower);
  }
  REQUIRE(slower.size() == 2);
  CHECK(slower[1].run.decode >= slower[0].run.decode);
  CHECK(slower[1].run.prefill >= slower[0].run.prefill);
  CHECK(slower[1].run.prefill * slower[1].first_token >=
        slower[0].run.prefill * slower[0].first_token);
}

TEST_CASE("the highest rate keeps the bounds and one step more does not") {
  const Scenario scenario = serve_plan("", kRate, R"("ttft": "400 ms", "tpot": "60 ms")");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 1);
  const PlanCandidate& one = plan.candidates[0];
  REQUIRE(one.answer.has_value());
  const double scale = *one.answer / rate_of(scenario);
  const double k = std::log(scale) / std::log(1.05);
  CHECK(k == doctest::Approx(std::round(k)));
  CHECK(need_at(scenario, std::pow(1.05, std::round(k))) <= 1);
  CHECK(need_at(scenario, std::pow(1.05, std::round(k) + 1)) > 1);
}

TEST_CASE("rates one rate_step apart tie and ties go to the full cache") {
  const auto planned = [](double step) {
    const Scenario scenario = serve_plan(
        R"(, "memory": {"hbm": "22 GiB"}, "method": [{"name": "streaming-llm", "budget": 0.5}, "full"])",
        fmt::format(R"("questions": "highest_rate", "confidence": 0, "rate_step": {})", step));
    return run_plan(scenario, {.threads = 1});
  };
  const PlanResult coarse = planned(1);
  const PlanCandidate& method = coarse.candidates.at(0);
  const PlanCandidate& full = coarse.candidates.at(1);
  REQUIRE(method.answer.has_value());
  REQUIRE(full.answer.has_value());
  CHECK(*method.answer == rel(2 * *full.answer));  // one step of the search
  CHECK(coarse.groups.at(0).best == 1U);
  CHECK(plan_finding(coarse, coarse.groups[0])
            .starts_with("Compression does not help here: no method is more than one rate_step "
                         "above the full cache, "));
  const PlanResult fine = planned(0.05);
  CHECK(fine.groups.at(0).best == 0U);  // many steps of the search
}

TEST_CASE("equal fewest GPUs go to the full cache") {
  const Scenario scenario =
      serve_plan(R"(, "method": [{"name": "streaming-llm", "budget": 0.5}, "full"])",
                 R"("questions": "fewest_gpus")");
  const PlanResult plan = run_plan(scenario, {.threads = 1, .prune = false});
  REQUIRE(plan.candidates.size() == 2);
  REQUIRE(plan.candidates[0].answer.has_value());
  CHECK(plan.candidates[0].answer == plan.candidates[1].answer);
  CHECK(plan.candidates[1].method.name == "full");
  CHECK(plan.groups.at(0).best == 1U);  // although it is the second in the file
}

TEST_CASE("as predicted, a probe is a run of the service itself") {
  const Scenario scenario =
      serve_plan("", R"("questions": "highest_rate", "confidence": 0, "attainment": 0.5)");
  const ServeSpec& spec = *scenario.points[0].serve;
  ServeCase one{spec, 0, 0.5};
  const ServeProbe& probe = one.at({});
  const ServeResult run = run_serve(spec);
  CHECK(probe.times.ttft.p90 == rel(run.ttft.p90));
  CHECK(probe.times.tpot.p50 == rel(run.tpot.p50));
  CHECK(probe.output_tok_s == rel(run.output_tok_s));
  CHECK(probe.holds == (*run.slo_attained >= 0.5));
  CHECK((probe.need <= 1) == probe.holds);
}

TEST_CASE("at 90 %, times are at the worse end of the factors that a run prints") {
  const Scenario scenario = serve_plan("", R"("questions": "highest_rate", "confidence": 0.9)");
  const ServeSpec& spec = *scenario.points[0].serve;
  const ServeResult run = run_serve(spec);
  const auto printed = serve_intervals(spec, run, mean_iteration(spec, run));
  REQUIRE(printed.has_value());
  ServeCase one{spec, 0.9, 0.9};
  CHECK(one.time_end().factor == rel(printed->slower.run.decode));
  CHECK(one.times() == printed->slower);
  CHECK(one.times().first_token > 1);
  CHECK(one.memory_end().end.terms.non_torch >
        1);  // a smaller pool, which 60 short requests do not fill
  const ServeResult slower = run_serve(spec, {.factors = printed->slower.run});
  CHECK(one.at({}).times.ttft.p90 == rel(slower.ttft.p90 * printed->slower.first_token));
  CHECK(one.at({}).times.tpot.p90 == rel(slower.tpot.p90));
}

TEST_CASE("tables, files and figures show the percentile that the plan requests") {
  for (const auto& [attainment, percentile] :
       {std::pair{0.5, 50}, {0.9, 90}, {0.92, 95}, {0.95, 95}, {0.99, 99}, {1.0, 99}}) {
    INFO(attainment);
    const Scenario scenario = serve_plan(
        "", fmt::format(R"("questions": "highest_rate", "attainment": {}, "rate_step": 0.2)",
                        attainment));
    const PlanResult plan = run_plan(scenario, {.threads = 1});
    const PlanCandidate& one = plan.candidates.at(0);
    REQUIRE(one.times.has_value());
    CHECK(plan.percentile == percentile);
    CHECK(one.points.back().ttft_s == value_at(one.times->ttft, percentile));
    CHECK(one.points.back().tpot_s == value_at(one.times->tpot, percentile));
    CHECK(one.points.back().latency_s == value_at(one.times->e2e, percentile));
    const std::string p = fmt::format("p{}", percentile);
    const std::string text = plan_summary(scenario, plan, nullptr);
    CHECK(text.find(fmt::format("TTFT {}", p)) != std::string::npos);
    CHECK(text.find(fmt::format("TPOT {}", p)) != std::string::npos);
    CHECK(text.find(fmt::format("latency is {} from", p)) != std::string::npos);
    const auto document = plan_document(scenario, plan);
    CHECK(document.at("percentile") == percentile);
    const auto& candidate = document.at("answers")[0].at("candidates")[0];
    CHECK(candidate.at("e2e_s").at(p) == candidate.at("points").back().at("latency_s"));
    for (const char* time : {"ttft_s", "tpot_s", "e2e_s"}) {
      CHECK(candidate.at(time).size() == 6);  // mean, four percentiles, n
      CHECK(candidate.at(time).at("p50") <= candidate.at(time).at("p99"));
    }
    const FigureSet figures = plan_figures(plan);
    CHECK(std::any_of(figures.figures.begin(), figures.figures.end(), [&](const Figure& figure) {
      return figure.script.find(fmt::format("{} from arrival to last token", p)) !=
             std::string::npos;
    }));
  }
}

TEST_CASE("a run that stops early is infeasible and no other run stops early") {
  for (const char* slo : {R"("ttft": "400 ms")", R"("tpot": "22 ms")", R"("e2e": "1500 ms")",
                          R"("ttft": "1 s", "tpot": "40 ms", "e2e": "3 s")"}) {
    for (const double attained : {0.5, 0.9, 1.0}) {
      const Scenario scenario = serve_plan("", R"("questions": "highest_rate")", slo);
      const ServeSpec& spec = *scenario.points[0].serve;
      int kept = 0, lost = 0;
      for (const double scale : {0.25, 1.0, 2.0, 4.0, 16.0, 64.0}) {
        INFO(slo, ", ", attained, " at ", scale);
        ServeCase whole{spec, 0.5, attained};
        ServeCase quick{spec, 0.5, attained};
        const ServeProbe& all = whole.at({.scale = scale});
        CHECK(quick.holds({.scale = scale}) == all.holds);
        // An explicit query runs the whole workload.
        CHECK(quick.at({.scale = scale}).need == all.need);
        CHECK(quick.at({.scale = scale}).times.e2e.p90 == all.times.e2e.p90);
        (all.holds ? kept : lost) += 1;
      }
      CHECK(kept > 0);
      CHECK(lost > 0);
    }
  }
}

TEST_CASE("a prepared service gives the same as each separate run") {
  const auto same = [](const ServeResult& a, const ServeResult& b) {
    REQUIRE(a.outcomes.size() == b.outcomes.size());
    for (std::size_t i = 0; i < a.outcomes.size(); ++i) {
      CHECK(a.outcomes[i].first_token == b.outcomes[i].first_token);
      CHECK(a.outcomes[i].finish == b.outcomes[i].finish);
      CHECK(a.outcomes[i].replica == b.outcomes[i].replica);
    }
    CHECK(a.iterations == b.iterations);
    CHECK(a.preemptions == b.preemptions);
    CHECK(a.mfu == b.mfu);
    CHECK(a.peak_hbm == b.peak_hbm);
    CHECK(a.notes == b.notes);
  };
  // Little memory, so that sequences are preempted; prompts of many lengths.
  const Scenario scenario = serve_plan(
      R"(, "memory": {"hbm": "17 GiB"}, "method": {"name": "snapkv", "budget": 0.5},
         "requests": {"arrivals": {"kind": "poisson", "rate": 8}, "count": 60,
                      "prompt_tokens": {"kind": "lognormal", "mean": 600, "p99": 1500},
                      "output_tokens": 60})",
      R"("questions": "highest_rate")");
  const ServeSpec& spec = *scenario.points[0].serve;
  PreparedService service{spec};
  const ServeResult first = run_serve(spec);
  same(service.run(spec.requests), first);
  // A run that stopped early leaves no state.
  ServeSpec strict = spec;
  strict.slo.ttft = Seconds{1e-6};
  PreparedService stops{strict};
  CHECK(stops.run(spec.requests, 1, {.attained = 0.9}).stopped_early);
  same(stops.run(spec.requests), run_serve(strict));
  ServeSpec three = spec;
  three.cluster.replicas = 3;
  same(service.run(spec.requests, 3), run_serve(three));
  same(service.run(spec.requests), first);
}

TEST_CASE("first tokens that may come later tighten only their own bound") {
  const ServeTimesEnd end{.run = TimeFactors::all(1.2), .first_token = 2};
  const SloSpec bounds =
      end.bounds({.ttft = Seconds{3.0}, .tpot = Seconds{0.05}, .e2e = Seconds{9.0}});
  CHECK(*bounds.ttft == Seconds{1.5});
  CHECK(*bounds.tpot == Seconds{0.05});
  CHECK(*bounds.e2e == Seconds{9.0});
  CHECK(end.bounds({}).empty());
}

TEST_CASE("higher confidence gives longer times, including queues") {
  const Scenario scenario = serve_plan("", R"("questions": "highest_rate", "confidence": 0.9)");
  ServeSpec spec = *scenario.points[0].serve;
  // An API server is equally fast on a slower machine.
  spec.options.front_end_latency = spec.options.front_end_request = Seconds{};
  ServeCase sure{spec, 0.9, 0.9};
  ServeCase mean{spec, 0, 0.9};
  REQUIRE(sure.time_end().factor > 1);
  for (const double scale : {0.25, 1.0, 4.0}) {
    INFO(scale);
    CHECK(sure.at({.scale = scale}).need >= mean.at({.scale = scale}).need);
    CHECK(sure.at({.scale = scale}).times.tpot.p50 > mean.at({.scale = scale}).times.tpot.p50);
  }
  // With one factor for all times, the time of a single request scales exactly by that factor.
  const double factor = sure.time_end().factor;
  ServeCase slower{spec, 0.9, 0.9, ServeTimesEnd{.run = TimeFactors::all(factor)}};
  CHECK(slower.at({.scale = 1e-3}).times.e2e.p90 ==
        rel(mean.at({.scale = 1e-3}).times.e2e.p90 * factor, 1e-6));
  // A slower machine equals the predicted machine with arrivals that are denser by the same factor.
  CHECK(slower.at({.scale = 0.5}).times.ttft.p90 ==
        rel(mean.at({.scale = 0.5 * factor}).times.ttft.p90 * factor, 1e-4));
}

double highest(const Scenario& scenario) {
  return run_plan(scenario, {.threads = 1}).candidates.at(0).answer.value_or(0);
}

TEST_CASE("looser bounds, more memory and less confidence never lower the rate") {
  const auto slo = [&](const char* text) { return highest(serve_plan("", kRate, text)); };
  CHECK(slo(R"("ttft": "1 s", "tpot": "50 ms")") <= slo(R"("ttft": "2 s", "tpot": "50 ms")"));
  CHECK(slo(R"("ttft": "2 s", "tpot": "50 ms")") <= slo(R"("ttft": "2 s", "tpot": "200 ms")"));
  const auto hbm = [&](const char* size) {
    return highest(serve_plan(fmt::format(R"(, "memory": {{"hbm": "{}"}})", size), kRate));
  };
  // Only if memory is the limit. Otherwise the relation may not hold: more simultaneous sequences
  // delay each token, and a bound on TPOT may then fail at a lower rate.
  CHECK(hbm("18 GiB") < hbm("80 GiB"));
  const auto sure = [&](double confidence) {
    return highest(serve_plan("", fmt::format(R"("questions": "highest_rate", "rate_step": 0.05,
                                                 "confidence": {})",
                                              confidence)));
  };
  CHECK(sure(0.99) <= sure(0.5));
  CHECK(sure(0.5) <= sure(0));
}

TEST_CASE("fewest GPUs: one less fails and replicas are simulated behind their router") {
  const Scenario scenario = serve_plan(
      R"(, "requests": {"arrivals": {"kind": "poisson", "rate": 30}, "count": 80,
                        "prompt_tokens": 600, "output_tokens": 60})",
      R"("questions": "fewest_gpus")");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const PlanCandidate& one = plan.candidates.at(0);
  REQUIRE(one.answer.has_value());
  CHECK(*one.answer == static_cast<double>(one.replicas));
  REQUIRE(one.replicas > 1);
  const auto replicas = static_cast<std::int32_t>(one.replicas);
  CHECK(need_of_copies(scenario, replicas) <= 1);
  CHECK(need_of_copies(scenario, replicas - 1) > 1);
  CHECK(one.simulated == fmt::format("{} engines behind a round-robin router", replicas));
  // Equal to a run of the cluster in the answer.
  ServeSpec cluster = *scenario.points[0].serve;
  cluster.cluster.replicas = replicas;
  ServeCase as_one{cluster, scenario.plan->confidence, scenario.plan->attainment};
  CHECK(as_one.gpus() == replicas);
  CHECK(as_one.at({}).times.e2e.p90 == rel(one.times->e2e.p90));
  CHECK(one.points.back().gpus == replicas);
}

TEST_CASE("a service of several GPUs is counted and copied as a whole") {
  // Two engines of two GPUs each.
  const Scenario scenario = serve_plan(
      R"(, "gpu_count": 2, "cluster": {"replicas": 2, "router": "least-loaded"},
         "requests": {"arrivals": {"kind": "poisson", "rate": 60}, "count": 80,
                      "prompt_tokens": 600, "output_tokens": 60})",
      R"("questions": ["highest_rate", "fewest_gpus"], "rate_step": 0.2)");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 2);
  const PlanCandidate& rate = plan.candidates[0];
  CHECK(rate.gpus_each == 4);
  CHECK(rate.simulated == "2 engines behind a least-loaded router");
  for (const OperatingPoint& at : rate.points) {
    CHECK(at.gpus == 4);
    CHECK(at.cost == rel(4.0 / 3600 / at.tokens_s * 1e6));
  }
  const PlanCandidate& fewest = plan.candidates[1];
  REQUIRE(fewest.answer.has_value());
  CHECK(*fewest.answer == static_cast<double>(4 * fewest.replicas));
}

TEST_CASE("several questions in one plan have the same answers as separate plans") {
  const auto run = [&](const char* questions) {
    return run_plan(serve_plan(
                        R"(, "gpu": ["A40", "H200-141GB-SXM"], "slo": {"e2e": "6 s"},
             "method": ["full", {"name": "snapkv", "budget": 0.5}],
             "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 200,
                          "prompt_tokens": 600, "output_tokens": 60})",
                        fmt::format(R"("questions": {}, "confidence": 0, "rate_step": 0.1,
                         "prices": {{"H200-141GB-SXM": "3 USD/h", "A40": "30 USD/h"}})",
                                    questions)),
                    {.threads = 1});
  };
  const PlanResult fewest = run(R"("fewest_gpus")"), highest = run(R"("highest_rate")");
  for (const char* questions :
       {R"(["fewest_gpus", "highest_rate"])", R"(["highest_rate", "fewest_gpus"])"}) {
    INFO(std::string{questions});
    const PlanResult both = run(questions);
    REQUIRE(both.candidates.size() == 8);
    std::size_t next[2] = {0, 0};
    for (const PlanCandidate& one : both.candidates) {
      const bool is_fewest = one.question == PlanQuestion::kMinGpus;
      const PlanCandidate& same =
          (is_fewest ? fewest : highest).candidates.at(next[is_fewest ? 0 : 1]++);
      CHECK(one.pruned.empty());
      CHECK(one.label == same.label);
      CHECK(one.answer == same.answer);
      REQUIRE(one.points.size() == same.points.size());
      for (std::size_t i = 0; i < one.points.size(); ++i) {
        CHECK(one.points[i].cost == same.points[i].cost);
        CHECK(one.points[i].latency_s == same.points[i].latency_s);
        CHECK(one.points[i].on_front == same.points[i].on_front);
      }
    }
  }
}

TEST_CASE("a candidate with a lower rate may be on the Pareto front") {
  const Scenario scenario =
      serve_plan(R"(, "gpu": ["A40", "H200-141GB-SXM"], "slo": {"e2e": "6 s"})",
                 R"("questions": "highest_rate", "confidence": 0, "rate_step": 0.1,
         "prices": {"H200-141GB-SXM": "30 USD/h", "A40": "0.4 USD/h"})");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  REQUIRE(plan.candidates.size() == 2);
  const PlanCandidate& slow = plan.candidates[0];
  REQUIRE(slow.answer.has_value());
  CHECK(*slow.answer < *plan.candidates[1].answer);
  CHECK(plan.groups[0].best == 1U);
  CHECK(std::any_of(slow.points.begin(), slow.points.end(),
                    [](const OperatingPoint& point) { return point.on_front; }));
}

TEST_CASE("a bound by the data sheet is below every run") {
  for (const char* gpu : {"A100-80GB-SXM", "H100-80GB-SXM", "L40S"}) {
    INFO(gpu);
    const Scenario scenario =
        serve_plan(fmt::format(R"(, "gpu": "{}", "slo": {{"e2e": "20 s"}})", gpu),
                   R"("questions": "fewest_gpus", "confidence": 0)");
    const PlanResult plan = run_plan(scenario, {.threads = 1});
    const PlanCandidate& one = plan.candidates.at(0);
    REQUIRE(one.answer.has_value());
    const LayoutBound bound = layout_bound({.plan = &*scenario.plan,
                                            .point = &scenario.points[0],
                                            .method = one.method,
                                            .error = {},
                                            .gpu_hour = 1},
                                           std::nullopt);
    CHECK(bound.gpus <= *one.answer);
    CHECK(bound.latency_s > 0);
    for (const OperatingPoint& point : one.points) {
      CHECK(bound.copy_cost * bound.copies <= point.cost);
      CHECK(bound.ttft_s <= point.ttft_s);
      CHECK(bound.tpot_s <= point.tpot_s);
      CHECK(bound.latency_s <= point.latency_s);
    }
  }
}

Impossible why(std::string_view more, std::string_view slo,
               const char* question = R"("questions": "highest_rate")") {
  const PlanResult plan = run_plan(serve_plan(more, question, slo), {.threads = 1});
  CHECK(plan.impossible());
  REQUIRE(plan.candidates.at(0).impossible.has_value());
  return *plan.candidates[0].impossible;
}

TEST_CASE("impossible: each constraint is named and its remedy helps") {
  const auto moves = [](const Impossible& impossible, std::string_view name) {
    for (const KnobEffect& knob : impossible.knobs) {
      if (knob.knob == name) return knob.elasticity;
    }
    return 0.0;
  };
  const Impossible ttft = why("", R"("ttft": "1 ms")");
  CHECK(ttft.constraint == "ttft");
  CHECK(ttft.need > 1);
  CHECK(moves(ttft, "slo/ttft") == rel(1, 1e-6));  // the bound itself, one to one
  CHECK(ttft.need > 8);
  for (const KnobEffect& knob : ttft.knobs) {  // the stated amount is always enough
    if (knob.knob == "slo/ttft") CHECK(knob.enough == fmt::format("x {:g}", std::ceil(ttft.need)));
  }
  CHECK(moves(ttft, "compute") > 0.1);

  const Impossible tpot = why("", R"("tpot": "2 ms")");
  CHECK(tpot.constraint == "tpot");
  CHECK(moves(tpot, "bandwidth") > 0.3);

  CHECK(why("", R"("e2e": "10 ms")").constraint == "e2e");

  const Impossible weights = why(R"(, "memory": {"hbm": "12 GiB"})", R"("ttft": "5 s")");
  CHECK(weights.constraint == "weights");
  CHECK(moves(weights, "hbm") > 0);

  // 0.5 MiB per token: 40 Ki tokens do not fit in addition to 13.5 GB in 24 GiB.
  const Impossible cache = why(
      R"(, "memory": {"hbm": "24 GiB"},
         "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 4,
                      "prompt_tokens": 40000, "output_tokens": 8})",
      R"("ttft": "100 s")");
  CHECK(cache.constraint == "kv_capacity");
  CHECK(moves(cache, "hbm") > 0);

  CHECK(why("", R"("ttft": "1 ms")", R"("questions": "fewest_gpus", "most_gpus": 4)").constraint ==
        "ttft");
}

TEST_CASE("invalid plans are refused") {
  CHECK_THROWS_WITH_AS((void)run_plan(serve_plan("", kRate, "")),
                       "plan: highest_rate and fewest_gpus need \"slo\": bounds that requests have "
                       "to keep",
                       InputError);
  CHECK_THROWS_AS(
      (void)run_plan(serve_plan(R"(, "requests": {"arrivals": {"kind": "closed", "users": 4},
                                      "count": 20, "prompt_tokens": 100, "output_tokens": 10})",
                                kRate)),
      InputError);
}

TEST_CASE("both questions, methods and GPUs: the same bytes at any number of threads") {
  const Scenario scenario = serve_plan(
      R"(, "gpu": ["A100-80GB-SXM", "H100-80GB-SXM"],
         "method": ["full", {"name": "snapkv", "budget": 0.25}])",
      R"("questions": ["highest_rate", "fewest_gpus"], "rate_step": 0.1)");
  const auto text = [&](int threads) {
    const PlanResult plan = run_plan(scenario, {.threads = threads});
    return to_file_text(plan_document(scenario, plan)) + plan_csv(plan) + plan_front_csv(plan) +
           plan_summary(scenario, plan, nullptr);
  };
  const std::string one = text(1);
  CHECK(text(2) == one);
  CHECK(text(5) == one);
}

TEST_CASE("a swept service has the keys of its results") {
  const Scenario scenario = serve_plan("", kRate);
  const auto out = runner_of("serve")(scenario, scenario.points[0]);
  const ServeResult run = run_serve(*scenario.points[0].serve);
  CHECK(out.at("fits") == true);
  CHECK(out.at("requests") == 60);
  CHECK(out.at("completed") == run.completed);
  CHECK(out.at("output_tok_s") == run.output_tok_s);
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"}) {
    for (const char* part : {"mean", "p50", "p90", "p95", "p99"}) {
      CHECK(out.at(key).contains(part));
    }
  }
  CHECK(out.at("ttft_s").at("p90") == run.ttft.p90);
  // Intervals in the form printed by a run, for every metric that depends on times.
  const auto intervals = serve_intervals(*scenario.points[0].serve, run,
                                         mean_iteration(*scenario.points[0].serve, run));
  REQUIRE(intervals.has_value());
  CHECK(out.at("ttft_s_high").at("p90") == intervals->ends("ttft_s").high.distribution()->p90);
  CHECK(out.at("intervals").at("time_factor_high") == intervals->slower.run.decode);
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"}) {
    INFO(key);
    CHECK(out.at(fmt::format("{}_low", key)).at("p90") <= out.at(key).at("p90"));
    CHECK(out.at(fmt::format("{}_high", key)).at("p90") >= out.at(key).at("p90"));
  }
  for (const char* key : {"output_tok_s", "request_s", "goodput", "kv_capacity_tokens"}) {
    INFO(key);
    CHECK(out.at(fmt::format("{}_low", key)) <= out.at(key));
    CHECK(out.at(fmt::format("{}_high", key)) >= out.at(key));
  }
  // All keys of its metrics equal those of a run's document.
  const auto document = serve_point_json(scenario.points[0], run, intervals);
  for (const auto& [key, value] : out.items()) {
    INFO(key);
    if (key != "fits") CHECK(document.at(key) == value);
  }
  for (const char* key : {"rejected", "preemptions", "oom_events", "total_tok_s", "request_s",
                          "goodput", "kv_capacity_tokens", "peak_hbm_bytes"}) {
    CHECK(out.contains(key));
  }
}

}  // namespace
}  // namespace kvsim
