// The sentence at the end of a summary: one test case per rule.

#include <cmath>
#include <vector>

#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/replay/loop_report.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/text/method_cases.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;
using Rival = MethodCase::Rival;

Rival runs(std::string label, double value) {
  return {.label = std::move(label), .runs = true, .value = value};
}
Rival fails(std::string label) { return {.label = std::move(label), .runs = false, .value = {}}; }

std::string static_finding(const std::vector<MethodCase>& cases) {
  return finding_of(cases, static_case_words());
}

TEST_CASE("finding: no gain and a cache that is not full") {
  const MethodCase one{
      .full = runs("full", 100), .cache_share = 0.24, .methods = {runs("snapkv", 104)}};
  CHECK(static_finding({one}) ==
        "Compression changes nothing here: the cache is 24 % full, and no method decodes more than "
        "5 % faster.");
  const MethodCase fuller{
      .full = runs("full", 100), .cache_share = 0.31, .methods = {runs("snapkv", 90)}};
  CHECK(has(static_finding({one, fuller}), "the cache is at most 31 % full"));
}

TEST_CASE("finding: a gain is named with its method and size") {
  const MethodCase one{.full = runs("full", 100),
                       .cache_share = 0.9,
                       .methods = {runs("a", 120), runs("b", 180), fails("c")}};
  CHECK(static_finding({one}) == "The full cache fits; b decodes 1.8 times as fast.");
  const MethodCase other{
      .full = runs("full", 100), .cache_share = 0.1, .methods = {runs("a", 101)}};
  CHECK(static_finding({other, one}) ==
        "The full cache fits; b at best decodes 1.8 times as fast.");
  // A method that does not run is not an improvement, regardless of its speed.
  const MethodCase broken{.full = runs("full", 100),
                          .cache_share = 0.9,
                          .methods = {{.label = "c", .runs = false, .value = 900.0}}};
  CHECK(has(static_finding({broken}), "runs out of memory, and no method decodes more than 5 % "));
}

TEST_CASE("finding: the full cache runs out of memory") {
  const MethodCase rescued{.full = fails("full"),
                           .cache_share = {},
                           .methods = {runs("a", 1), fails("b"), runs("c", 1)}};
  CHECK(static_finding({rescued}) == "The full cache runs out of memory; a and c fit.");
  const MethodCase lost{.full = fails("full"), .cache_share = {}, .methods = {fails("a")}};
  CHECK(static_finding({lost}) == "The full cache runs out of memory, and no method helps.");
  CHECK(static_finding({rescued, lost}) ==
        "The full cache runs out of memory in 2 of 2 cases; a and c fit in 1 of these.");
  const MethodCase alone{.full = fails("full"), .cache_share = {}, .methods = {}};
  CHECK(static_finding({alone}) == "The full cache runs out of memory.");
}

TEST_CASE("finding: no method helps if the full cache fails and one gains if it runs") {
  const MethodCase gain{
      .full = runs("full", 100), .cache_share = 0.9, .methods = {runs("a", 180), runs("b", 120)}};
  const MethodCase lost{
      .full = fails("full"), .cache_share = {}, .methods = {fails("a"), fails("b")}};
  const MethodCase equal{
      .full = runs("full", 100), .cache_share = 0.1, .methods = {runs("a", 101), runs("b", 90)}};
  CHECK(static_finding({gain, lost}) ==
        "The full cache runs out of memory in 1 of 2 cases, where no method helps; in the other a "
        "decodes 1.8 times as fast.");
  CHECK(static_finding({gain, lost, equal}) ==
        "The full cache runs out of memory in 1 of 3 cases, where no method helps; in the others a "
        "at best decodes 1.8 times as fast.");
  CHECK(static_finding({equal, lost}) ==
        "The full cache runs out of memory in 1 of 2 cases, where no method helps; in the other no "
        "method decodes more than 5 % faster.");
  const MethodCase zero{.full = runs("full", 0), .cache_share = 0.9, .methods = {runs("a", 1)}};
  CHECK(has(static_finding({zero, lost}), "; in the other only a decodes."));
  const MethodCase alone{.full = runs("full", 100), .cache_share = 0.1, .methods = {}};
  CHECK(static_finding({alone, lost}) ==
        "The full cache runs out of memory in 1 of 2 cases, and no method helps.");
}

TEST_CASE("finding: nothing to compare") {
  const MethodCase full{.full = runs("full", 1), .cache_share = 0.5, .methods = {}};
  CHECK(static_finding({full}) == "The full cache fits: the cache is 50 % full.");
  const MethodCase methods{.full = {}, .cache_share = {}, .methods = {runs("a", 1)}};
  CHECK(has(static_finding({methods}), "The full cache is not among the points"));
  CHECK(static_finding({}).empty());
}

TEST_CASE("finding: services by their bounds") {
  const CaseWords words = service_case_words(true);
  const MethodCase one{.full = runs("full", 0.4), .cache_share = 1, .methods = {runs("h2o", 0.8)}};
  CHECK(finding_of({one}, words) ==
        "The full cache serves every request; h2o keeps 2 times as many requests within their "
        "bounds.");
  const MethodCase none{.full = runs("full", 0), .cache_share = 1, .methods = {runs("h2o", 0.8)}};
  CHECK(finding_of({none}, words) ==
        "The full cache serves every request; only h2o keeps requests within their bounds.");
  const MethodCase rescued{.full = fails("full"), .cache_share = 1, .methods = {runs("h2o", 0.8)}};
  CHECK(finding_of({rescued}, words) ==
        "The full cache does not serve every request; h2o serves every request.");
}

ReplayMethod replayed(std::string name, std::optional<double> budget, std::int64_t bytes,
                      double error) {
  ReplayMethod out;
  out.name = std::move(name);
  out.budget = budget;
  out.steps = 10;
  out.bytes_full_final = 1000;
  out.bytes_held_final = bytes;
  out.rel_error_mean = error;
  return out;
}

TEST_CASE("equal bytes: a band starts at its smallest member and each method is in one") {
  const std::vector<double> shares{0.32, 0.10, 0.105, 0.111, 0.33, 1.0};
  const auto bands = equal_bytes_bands(shares);
  REQUIRE(bands.size() == 4);
  CHECK(bands[0] == std::vector<std::size_t>{1, 2});
  CHECK(bands[1] == std::vector<std::size_t>{3});  // 0.111 is above 0.10 x 1.1
  CHECK(bands[2] == std::vector<std::size_t>{0, 4});
  CHECK(bands[3] == std::vector<std::size_t>{5});
}

TEST_CASE("a method that holds more at the same budget is not compared with those that hold less") {
  // A single budget of 10 %: snapkv appends in decode and holds 32 % at the end.
  ReplayResult replay;
  replay.methods = {replayed("full", {}, 1000, 0), replayed("snapkv", 0.1, 320, 0.05),
                    replayed("h2o", 0.1, 100, 0.30), replayed("zeromerge", 0.1, 104, 0.20),
                    replayed("oracle-step", 0.1, 100, 0.01)};
  const auto bands = equal_bytes(replay);
  REQUIRE(bands.size() == 1);
  CHECK(bands[0].methods.size() == 2);
  CHECK(bands[0].methods[0]->name == "zeromerge");
  CHECK(replay_finding(replay) ==
        "Of the methods that hold 10 to 10.4 % of the bytes, zeromerge has the least error "
        "(0.20).");
  // With another method that holds the same number of bytes as snapkv, there are two comparisons.
  replay.methods.push_back(replayed("tova", 0.3, 330, 0.04));
  replay.methods.push_back(replayed("zeromerge", 0.3, 335, 0.03));
  CHECK(replay_finding(replay) ==
        "At equal bytes zeromerge has the least error in 2 of 2 comparisons.");
  replay.methods.back().rel_error_mean = 0.045;
  CHECK(replay_finding(replay) == "No method leads in most of the 2 comparisons at equal bytes.");
  // Methods that hold all entries differ only by rounding, so none is the best.
  replay.methods = {replayed("full", {}, 1000, 0), replayed("h2o", 1.0, 1000, 2.5e-7),
                    replayed("snapkv", 1.0, 1000, 2.4e-7)};
  CHECK(replay_finding(replay) ==
        "Methods that hold equal bytes here have no error beyond rounding.");
  replay.methods = {replayed("full", {}, 1000, 0)};
  CHECK(has(replay_finding(replay), "Only the full cache"));
  replay.methods.push_back(replayed("h2o", 0.1, 100, 0.3));
  CHECK(replay_finding(replay) ==
        "Only one method was replayed, so there is nothing to compare it with.");
  replay.methods.push_back(replayed("snapkv", 0.3, 300, 0.1));
  CHECK(has(replay_finding(replay), "not comparable"));
}

TEST_CASE("the finding of several replays compares means at equal bytes") {
  const auto row = [](std::string name, std::optional<double> budget, double share, double error) {
    AggregateRow out;
    out.name = std::move(name);
    out.budget = budget;
    out.traces = {"a", "b"};
    out.bytes_share = spread_of({share});
    out.rel_error = spread_of({error});
    return out;
  };
  // At a budget of 10 %, snapkv holds more than the others at the end.
  std::vector<AggregateRow> rows{row("full", {}, 1, 0), row("snapkv", 0.1, 0.245, 0.05),
                                 row("h2o", 0.1, 0.085, 0.3)};
  CHECK(aggregate_finding(rows) ==
        "No two methods hold equal bytes here, so their errors are not comparable.");
  rows.push_back(row("tova", 0.1, 0.09, 0.2));
  CHECK(aggregate_finding(rows) ==
        "Of the methods that hold 8.5 to 9 % of the bytes, tova has the least error (0.20).");
  // A mean over fewer traces is not compared.
  rows.back().traces = {"a"};
  CHECK(has(aggregate_finding(rows), "not comparable"));
  CHECK(has(aggregate_finding({rows[0]}), "Only the full cache"));
  CHECK(aggregate_finding({}).empty());
}

TEST_CASE("the finding of a closed loop compares accuracies at equal bytes") {
  LoopResult result;
  const auto add = [&](std::string name, std::optional<double> budget, double held,
                       double accuracy) {
    LoopMethod& one = result.methods.emplace_back();
    one.name = std::move(name);
    one.budget = budget;
    one.budget_reached = held;
    one.all.accuracy = accuracy;
    one.all.accuracy_stderr = 0.02;
  };
  add("full", {}, 1, 0.9);
  CHECK(has(loop_finding(result), "Only the full cache"));
  add("h2o", 0.1, 0.1, 0.5);
  CHECK(has(loop_finding(result), "Only one method was run next to the full cache"));
  // Methods that hold all entries, such as a blend of chunks.
  result.methods.clear();
  add("cacheblend", {}, 1, 0.5);
  CHECK(has(loop_finding(result), "Only one method was run, so"));
  add("full", {}, 1, 0.9);
  CHECK(has(loop_finding(result), "Only one method was run next to the full cache"));
  add("xattention", {}, 1, 0.8);
  CHECK(has(loop_finding(result), "No two methods hold part of the cache"));
  result.methods.clear();
  add("full", {}, 1, 0.9);
  add("h2o", 0.1, 0.1, 0.5);
  add("snapkv", 0.1, 0.245, 0.8);
  CHECK(has(loop_finding(result), "not comparable"));
  add("tova", 0.1, 0.104, 0.6);
  CHECK(loop_finding(result) ==
        "Of the methods that hold 10 to 10.4 % of the bytes, tova has the highest accuracy "
        "(60.0 %).");
  add("zeromerge", 0.1, 0.1, 0.59);
  CHECK(loop_finding(result) ==
        "No method that holds 10 to 10.4 % of the bytes leads by over a standard error.");
  result.methods.pop_back();
  add("tova", 0.2, 0.25, 0.85);
  CHECK(loop_finding(result) ==
        "At equal bytes tova has the highest accuracy in 2 of 2 comparisons.");
  result.methods.back().all.accuracy = 0.7;
  CHECK(has(loop_finding(result), "No method leads in most of the 2 comparisons"));
}

/// A plan with one group; the first candidate with an answer of `best` is the best.
struct SamplePlan {
  PlanResult plan;

  PlanCandidate& add(const std::string& method, std::optional<double> answer,
                     std::string limit = "kv_capacity") {
    PlanCandidate& one = plan.candidates.emplace_back();
    one.method.name = method;
    one.gpu = "H100-80GB-SXM";
    one.answer = answer;
    if (answer) {
      one.runs_out = NextRun{};
      one.runs_out->why.constraint = std::move(limit);
    } else {
      one.impossible = Impossible{.constraint = std::move(limit), .text = "", .knobs = {}};
    }
    return one;
  }
  std::string finding(PlanQuestion question, std::optional<std::size_t> best) {
    PlanGroup group{.question = question, .of = "", .keys = {}, .candidates = {}, .best = best};
    for (std::size_t c = 0; c < plan.candidates.size(); ++c) group.candidates.push_back(c);
    return plan_finding(plan, group);
  }
};

TEST_CASE("plan finding: compression changes nothing") {
  SamplePlan positions;
  positions.add("full", 131072, "positions");
  positions.add("snapkv", 131072, "positions");
  CHECK(positions.finding(PlanQuestion::kLongestContext, 0) ==
        "Compression changes nothing here: the full cache reaches the positions of the model.");
  SamplePlan gpus;
  gpus.add("full", 32);
  gpus.add("snapkv", 32);
  CHECK(gpus.finding(PlanQuestion::kMinGpus, 0) ==
        "Compression changes nothing here: the full cache has the same answer, 32 GPUs.");
  SamplePlan worse;
  worse.add("full", 9);
  worse.add("h2o", 7);
  CHECK(worse.finding(PlanQuestion::kLargestBatch, 0) ==
        "Compression does not help here: no method does better than the full cache, 9 sequences.");
}

TEST_CASE("plan finding: a gain, and answers that only compression makes possible") {
  SamplePlan gain;
  gain.add("full", 40000);
  gain.add("snapkv", 120000);
  CHECK(gain.finding(PlanQuestion::kLongestContext, 1) ==
        "snapkv reaches 3 times the answer of the full cache (120,000 instead of 40,000 tokens).");
  SamplePlan gpus;
  gpus.add("full", 12);
  gpus.add("snapkv", 8);
  CHECK(gpus.finding(PlanQuestion::kMinGpus, 1) ==
        "snapkv needs 8 GPUs; the full cache needs 12 GPUs.");
  SamplePlan only;
  only.add("full", {});
  only.add("snapkv", 100);
  CHECK(only.finding(PlanQuestion::kLongestContext, 1) ==
        "Only compression makes this possible: the full cache is limited by memory for the cache.");
}

TEST_CASE("plan finding: nothing to compare") {
  SamplePlan none;
  none.add("full", {});
  CHECK(none.finding(PlanQuestion::kLongestContext, {}) == "No candidate works.");
  SamplePlan alone;
  alone.add("full", 100);
  CHECK(alone.finding(PlanQuestion::kLongestContext, 0) ==
        "The full cache is limited by memory for the cache.");
  SamplePlan without;
  without.add("snapkv", 100);
  CHECK(has(without.finding(PlanQuestion::kLongestContext, 0), "not in this plan"));
  SamplePlan pruned;
  pruned.add("full", 100).answer.reset();
  pruned.add("snapkv", 100);
  CHECK(has(pruned.finding(PlanQuestion::kLongestContext, 1), "was not searched"));
}

}  // namespace
}  // namespace kvsim
