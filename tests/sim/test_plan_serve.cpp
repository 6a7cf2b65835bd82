// Plans of services: boundaries, monotonicity, agreement with running every rate, what binds.

#include <cmath>
#include <vector>

#include "models/units/error.hpp"
#include "sim/plan/candidate.hpp"
#include "sim/plan/serve_probe.hpp"
#include "sim/report/plan_report.hpp"
#include "sim/report/result_json.hpp"
#include "sim/serve/serve_run.hpp"
#include "sim/sweep/runners.hpp"
#include "tests/sim/plan_files.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;
using test::serve_plan;

constexpr const char* kRate = R"("questions": "highest_rate", "rate_step": 0.05)";

double need_at(const Scenario& scenario, double scale) {
  const PlanSection& plan = *scenario.plan;
  return ServeCase{*scenario.points[0].serve, plan.confidence, plan.attainment}.at(scale).need;
}

double rate_of(const Scenario& scenario) {
  const PlanSection& plan = *scenario.plan;
  return ServeCase{*scenario.points[0].serve, plan.confidence, plan.attainment}.offered(1);
}

TEST_CASE("the highest rate keeps the bounds, and one step more does not") {
  const Scenario scenario = serve_plan("", kRate);
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

TEST_CASE("as predicted, a probe is a run of the service itself") {
  const Scenario scenario =
      serve_plan("", R"("questions": "highest_rate", "confidence": 0, "attainment": 0.5)");
  const ServeSpec& spec = *scenario.points[0].serve;
  ServeCase one{spec, 0, 0.5};
  const ServeProbe& probe = one.at(1);
  const ServeResult run = run_serve(spec);
  CHECK(probe.times.ttft_p90 == rel(run.ttft.p90));
  CHECK(probe.times.tpot_p50 == rel(run.tpot.p50));
  CHECK(probe.output_tok_s == rel(run.output_tok_s));
  CHECK((probe.need <= 1) == (*run.slo_attained >= 0.5));
}

TEST_CASE("a slower machine is the same machine under a denser workload") {
  // Every time of the data sheet three times as long: TTFT and TPOT of the worse end are those of
  // a GPU with a third of the rates, where nothing but rates makes times (the stack ideal has no
  // host; its batches are static).
  const Scenario scenario = serve_plan("", R"("questions": "highest_rate", "confidence": 0.9)");
  ServeCase sure{*scenario.points[0].serve, 0.9, 0.9};
  ServeCase mean{*scenario.points[0].serve, 0, 0.9};
  REQUIRE(sure.time_end().factor > 1);
  for (const double scale : {0.25, 1.0, 4.0}) {
    INFO(scale);
    CHECK(sure.at(scale).need >= mean.at(scale).need);
    CHECK(sure.at(scale).times.tpot_p50 > mean.at(scale).times.tpot_p50);
  }
  // One request alone takes the factor exactly.
  CHECK(sure.at(1e-3).times.e2e_p90 ==
        rel(mean.at(1e-3).times.e2e_p90 * sure.time_end().factor, 1e-6));
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
  // Where memory is what lacks. Beyond that it is no law: more sequences at once make each token
  // later, and a bound on TPOT may then break at a lower rate.
  CHECK(hbm("18 GiB") < hbm("80 GiB"));
  const auto sure = [&](double confidence) {
    return highest(serve_plan("", fmt::format(R"("questions": "highest_rate", "rate_step": 0.05,
                                                 "confidence": {})",
                                              confidence)));
  };
  CHECK(sure(0.99) <= sure(0.5));
  CHECK(sure(0.5) <= sure(0));
}

TEST_CASE("fewest GPUs: one less fails, and replicas share the rate") {
  const Scenario scenario = serve_plan(
      R"(, "requests": {"arrivals": {"kind": "poisson", "rate": 30}, "count": 80,
                        "prompt_tokens": 600, "output_tokens": 60})",
      R"("questions": "fewest_gpus")");
  const PlanResult plan = run_plan(scenario, {.threads = 1});
  const PlanCandidate& one = plan.candidates.at(0);
  REQUIRE(one.answer.has_value());
  CHECK(*one.answer == static_cast<double>(one.replicas));
  REQUIRE(one.replicas > 1);
  CHECK(need_at(scenario, 1 / static_cast<double>(one.replicas)) <= 1);
  CHECK(need_at(scenario, 1 / static_cast<double>(one.replicas - 1)) > 1);
}

TEST_CASE("pruning changes no answer and no front") {
  const auto run = [&](bool prune) {
    const Scenario scenario = serve_plan(
        R"(, "gpu": ["A40", "H200-141GB-SXM"], "slo": {"e2e": "6 s"},
           "requests": {"arrivals": {"kind": "poisson", "rate": 4}, "count": 200,
                        "prompt_tokens": 600, "output_tokens": 60})",
        R"("questions": "fewest_gpus", "confidence": 0,
           "prices": {"H200-141GB-SXM": "3 USD/h", "A40": "30 USD/h"})");
    return run_plan(scenario, {.threads = 1, .prune = prune});
  };
  const PlanResult all = run(false);
  const PlanResult some = run(true);
  std::size_t pruned = 0;
  for (std::size_t c = 0; c < all.candidates.size(); ++c) {
    const PlanCandidate& one = some.candidates[c];
    if (one.pruned.empty()) {
      CHECK(one.answer == all.candidates[c].answer);
      continue;
    }
    ++pruned;
    // Nothing that was left out would have stood on the front, or won.
    for (const OperatingPoint& point : all.candidates[c].points) CHECK_FALSE(point.on_front);
    CHECK(all.groups[0].best != c);
  }
  CHECK(pruned > 0);
  CHECK(some.groups[0].best == all.groups[0].best);
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
    const auto bound = ServeCandidate::bound_of({.plan = &*scenario.plan,
                                                 .point = &scenario.points[0],
                                                 .method = one.method,
                                                 .error = {},
                                                 .gpu_hour = 1});
    CHECK(bound.gpus <= *one.answer);
    CHECK(bound.latency_s > 0);
    for (const OperatingPoint& point : one.points) {
      CHECK(bound.cost <= point.cost);
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

TEST_CASE("impossible: each constraint is named, and its knob helps") {
  const auto moves = [](const Impossible& impossible, std::string_view name) {
    for (const KnobEffect& knob : impossible.knobs) {
      if (knob.knob == name) return knob.elasticity;
    }
    return 0.0;
  };
  const Impossible ttft = why("", R"("ttft": "1 ms")");
  CHECK(ttft.constraint == "ttft");
  CHECK(ttft.need > 1);
  CHECK(moves(ttft, "slo/ttft") == rel(1, 1e-6));  // the bound itself, percent for percent
  CHECK(moves(ttft, "compute") > 0.1);

  const Impossible tpot = why("", R"("tpot": "2 ms")");
  CHECK(tpot.constraint == "tpot");
  CHECK(moves(tpot, "bandwidth") > 0.3);

  CHECK(why("", R"("e2e": "10 ms")").constraint == "e2e");

  const Impossible weights = why(R"(, "memory": {"hbm": "12 GiB"})", R"("ttft": "5 s")");
  CHECK(weights.constraint == "weights");
  CHECK(moves(weights, "hbm") > 0);

  // 0.5 MiB a token: 40 Ki tokens do not fit beside 13.5 GB in 24 GiB.
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

TEST_CASE("what cannot be planned is said") {
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
  for (const char* key : {"rejected", "preemptions", "oom_events", "total_tok_s", "request_s",
                          "goodput", "kv_capacity_tokens", "peak_hbm_bytes"}) {
    CHECK(out.contains(key));
  }
}

}  // namespace
}  // namespace kvsim
