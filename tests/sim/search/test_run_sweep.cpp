// Points of a sweep equal single runs for any number of threads; documents depend only on the
// points.

#include <algorithm>
#include <atomic>
#include <set>
#include <sstream>

#include "models/json/field.hpp"
#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"
#include "sim/report/sweep/sweep_finding.hpp"
#include "sim/sweep/run_sweep.hpp"
#include "sim/sweep/runners.hpp"
#include "tests/sim/search/sweep_files.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using test::complaint;
using test::fresh;
using test::plan_of;
using test::sweep_file;

SweepPlan with(const std::filesystem::path& file, std::vector<std::string> axes,
               bool skip_impossible = false) {
  SweepChanges changes;
  changes.skip_impossible = skip_impossible;
  for (const std::string& axis : axes) changes.vary.push_back(axis_of_text(axis));
  return plan_of(file, changes);
}

std::vector<std::string> run_all(const SweepPlan& plan, int threads, const PointRunner& runner) {
  std::vector<std::size_t> todo(plan.size());
  for (std::size_t i = 0; i < todo.size(); ++i) todo[i] = i;
  std::vector<std::string> objects(plan.size());
  std::size_t kept = 0;
  run_sweep_points(plan, todo, runner, {.threads = threads},
                   [&](std::size_t point, const std::string& object) {
                     CHECK(objects[point].empty());  // each point once
                     objects[point] = object;
                     ++kept;
                   });
  CHECK(kept == plan.size());
  return objects;
}

TEST_CASE("every point equals run_static of its scenario on any number of threads") {
  const auto folder = fresh("same");
  const SweepPlan plan =
      with(sweep_file(folder, R"(, "stack": "hf-sdpa")"),
           {"/batch=1,4,400", "/method=full,{\"name\": \"h2o\", \"budget\": 0.2}"});
  const auto alone = run_all(plan, 1, runner_of("static"));
  for (const int threads : {2, 4}) CHECK(run_all(plan, threads, runner_of("static")) == alone);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const Scenario scenario = plan.scenario(i);
    const StaticResult result = run_static(scenario.points.front().spec);
    const ordered_json object = ordered_json::parse(alone[i]);
    CHECK(object.at("hash") == scenario.hash);
    const ordered_json& results = object.at("results");
    CHECK(results.at("peak_hbm_bytes") == result.peak_hbm.count());
    CHECK(results.at("kv_bytes") == result.kv_bytes.count());
    CHECK(results.at("fits") == !result.oom.has_value());
    CHECK(results.at("oom").is_null() == !result.oom.has_value());
    if (!result.oom) CHECK(results.at("throughput_tok_s") == *result.throughput_tok_s);
    // Metrics and their intervals equal those of a single run, key by key.
    const StaticSpec& spec = scenario.points.front().spec;
    StaticResult with_intervals = run_static(spec, {.max_samples = 3, .intervals = true});
    find_oom_range(spec, with_intervals);
    ordered_json run;
    put_metrics(run, static_metrics(),
                StaticPoint{spec, with_intervals, scenario.points.front().kv_bytes_wanted});
    for (const auto& [key, value] : run.items()) CHECK(results.at(key) == value);
    for (const char* end : {"peak_hbm_bytes_low", "decode_tok_s_low"}) {
      if (!result.oom) CHECK(results.at(end).is_number());  // null compares less than any number
    }
    if (result.oom) {
      CHECK(results.at("oom_tokens_low").is_number());
      CHECK(results.at("oom_tokens_low") <= results.at("oom").at("tokens"));
    } else {
      CHECK(results.at("peak_hbm_bytes_low") < results.at("peak_hbm_bytes"));
      CHECK(results.at("decode_tok_s_low") < results.at("decode_tok_s"));
      CHECK(results.at("decode_tok_s_high") > results.at("decode_tok_s"));
    }
  }
  // The summary reports the uncertainty of the best point.
  const ScenarioSweep sweep{plan, alone};
  const auto ends = sweep.interval(sweep.measures().front(), 0);
  REQUIRE(ends);
  const ordered_json first = ordered_json::parse(alone[0]).at("results");
  CHECK(ends->first == first.at("throughput_tok_s_low"));
  CHECK(ends->second == first.at("throughput_tok_s_high"));
  CHECK(test::has(scenario_sweep_summary(sweep, nullptr), "tok/s (90 % interval "));
  // 400 sequences of 1,000 tokens do not fit in addition to the weights.
  CHECK(ordered_json::parse(alone[4]).at("results").at("fits") == false);
}

TEST_CASE("the reported failure is that of the lowest point for any number of threads") {
  const auto folder = fresh("fail");
  const SweepPlan plan = with(sweep_file(folder, ""), {"/batch=1,2,3,4,5,6,7,8"});
  const PointRunner runner = [](const Scenario&, const ScenarioPoint& point) -> ordered_json {
    if (point.spec.batch >= 3) throw InputError{fmt::format("batch {}", point.spec.batch)};
    return {{"x", 1}};
  };
  for (const int threads : {1, 2, 4}) {
    CHECK(complaint([&] {
            std::vector<std::size_t> todo{0, 1, 2, 3, 4, 5, 6, 7};
            run_sweep_points(plan, todo, runner, {.threads = threads}, [](auto, const auto&) {});
          }).ends_with("s.json (point 2): batch 3"));
  }
}

TEST_CASE("impossible points end the sweep or are listed with the reason") {
  const auto folder = fresh("impossible");
  const auto runner = runner_of("static");
  const SweepPlan lenient =
      with(sweep_file(folder, ""), {"/method=full,h2o", "/method/budget=0.1,0.2"}, true);
  const auto objects = run_all(lenient, 2, runner);
  const ScenarioSweep sweep{lenient, objects};
  CHECK(sweep.skipped(0));  // the full cache has no budget
  CHECK(sweep.skipped(1));
  CHECK_FALSE(sweep.skipped(2));
  const std::string reason = sweep.object(0).at("skipped");
  CHECK(reason.starts_with("point 0: /method"));
  CHECK(reason.find(folder.string()) == std::string::npos);  // no paths in results
  const json document = json::parse(scenario_sweep_text(sweep));
  CHECK(document.at("n_skipped") == 2);
  CHECK(document.at("points").at(0).at("hash").is_null());
  const SweepPlan refused =
      with(sweep_file(folder, ""), {"/method=full,h2o", "/method/budget=0.1,0.2"});
  CHECK(complaint([&] { (void)run_sweep_point(refused, 0, runner); }).find("(point 0): /method") !=
        std::string::npos);
}

TEST_CASE("kinds without a runner are refused") {
  CHECK(complaint([] { (void)runner_of("stat"); }).find("static") != std::string::npos);
}

/// Two methods at two budgets and the full cache, with made-up results: tok/s is 100 times the
/// budget plus the index of the method.
ScenarioSweep made_up(const SweepPlan& plan) {
  std::vector<std::string> objects;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    objects.push_back(fmt::format(
        R"({{"point":{},"hash":"{:016x}","results":{{"fits":{},"throughput_tok_s":{},"ttft_s":{{"p90":{}}}}}}})",
        i, i, i != 1, i != 1 ? fmt::format("{}", 10 + i) : "null", 0.5));
  }
  return {plan, objects};
}

TEST_CASE("ties go to the full cache wherever it is in the list") {
  const auto folder = fresh("ties");
  for (const char* methods : {R"([{"name": "h2o", "budget": 0.2}, "full"])",
                              R"(["full", {"name": "h2o", "budget": 0.2}])"}) {
    INFO(methods);
    const SweepPlan plan =
        with(sweep_file(folder, fmt::format(R"(, "method": {})", methods)), {"/batch=1,2"});
    std::vector<std::string> objects;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      objects.push_back(fmt::format(
          R"({{"point":{},"hash":"{:016x}","results":{{"fits":true,"throughput_tok_s":10}}}})", i,
          i));
    }
    const std::string text = scenario_sweep_summary({plan, objects}, nullptr, 200);
    CHECK(text.find("most output tokens per second: 10 tok/s, method full, batch 1") !=
          std::string::npos);
    CHECK(text.find("no method has over 5 % more tokens per second") != std::string::npos);
    // This is also the case for values that differ only below the printed digits.
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const bool full = (methods[1] == '"') == (i < 2);
      objects[i] = fmt::format(
          R"({{"point":{},"hash":"{:016x}","results":{{"fits":true,"throughput_tok_s":{}}}}})", i,
          i, full ? 57.85 : 57.8501);
    }
    CHECK(scenario_sweep_summary({plan, objects}, nullptr, 200)
              .find("most output tokens per second: 57.85 tok/s, method full") !=
          std::string::npos);
  }
}

TEST_CASE("without a method axis the finding is the range of the main measure") {
  const auto folder = fresh("range");
  const SweepPlan plan = with(sweep_file(folder, ""), {"/batch=1,4,64"});
  const auto finding = [](const SweepPlan& of, const std::vector<std::optional<double>>& rates) {
    std::vector<std::string> objects;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      objects.push_back(fmt::format(
          R"({{"point":{0},"hash":"{0:016x}","results":{{"fits":{1},"throughput_tok_s":{2}}}}})", i,
          rates[i].has_value(), rates[i] ? fmt::format("{}", *rates[i]) : "null"));
    }
    return sweep_finding(ScenarioSweep{of, objects});
  };
  CHECK(finding(plan, {50, 190, 400}) ==
        "The range of output tokens per second is 50 to 400 tok/s: lowest at batch 1, highest at "
        "batch 64; every case fits.");
  CHECK(finding(plan, {50, 190, {}}) ==
        "The range of output tokens per second is 50 to 190 tok/s: lowest at batch 1, highest at "
        "batch 4; memory runs out at batch 64 and above.");
  CHECK(test::has(finding(plan, {50, {}, 190}), "; 1 of 3 cases run out of memory."));
  CHECK(finding(plan, {50, {}, {}}) ==
        "The only case with a result (batch 1) has 50 tok/s of output tokens per second; memory "
        "runs out at batch 4 and above.");
  CHECK(finding(plan, {50, 50, 50}) ==
        "Every case with a result has 50 tok/s of output tokens per second; every case fits.");
  CHECK(finding(plan, {{}, {}, {}}) == "No case fits.");
  const SweepPlan words = with(sweep_file(folder, ""), {"/gpu=A40,L40,H20"});
  CHECK(test::has(finding(words, {50, 190, {}}),
                  "lowest at gpu A40, highest at gpu L40; 1 of 3 cases run out of memory."));
}

TEST_CASE("CSV, table and document hold every point") {
  const auto folder = fresh("documents");
  const SweepPlan plan = with(sweep_file(folder, R"(, "method": ["full",
    {"name": "h2o", "budget": [0.1, 0.2]}])"),
                              {"/batch=1,2"});
  const ScenarioSweep sweep = made_up(plan);
  REQUIRE(sweep.columns().size() == 3);
  CHECK(sweep.columns()[1].name == "budget");
  const std::string csv = scenario_sweep_csv(sweep);
  CHECK(
      csv.starts_with("point,hash,method,budget,batch,fits,throughput_tok_s,ttft_s_p90\n"
                      "0,0000000000000000,full,,1,true,10,0.5\n"
                      "1,0000000000000001,full,,2,false,,0.5\n"
                      "2,0000000000000002,h2o,0.1,1,true,12,0.5\n"));
  const json document = json::parse(scenario_sweep_text(sweep));
  CHECK(document.at("schema") == "kvsim.scenario-sweep/1");
  REQUIRE(document.at("points").size() == 6);
  CHECK(document.at("points").at(3).at("values").at("/batch") == 2);
  CHECK(document.at("points").at(3).at("results").at("throughput_tok_s") == 13);
  CHECK(document.at("scenario").at("hash") == plan.hash());
  const std::string text = scenario_sweep_summary(sweep, nullptr, 80);
  CHECK(text.find("OOM") != std::string::npos);
  CHECK(text.find("most output tokens per second: 15 tok/s, method h2o, budget 0.2, batch 2") !=
        std::string::npos);
  for (const char* line = text.c_str(); *line != '\0';) {
    const std::string one{line, std::string_view{line}.find('\n')};
    CHECK(one.size() <= 80);
    line += one.size() + 1;
  }
}

TEST_CASE(
    "two numbers make heat maps, one makes lines with the full cache across, words make bars") {
  const auto folder = fresh("figures");
  const auto kinds = [&](std::vector<std::string> axes) {
    const SweepPlan plan = with(sweep_file(folder, ""), std::move(axes));
    std::set<std::string> out;
    for (const Figure& figure : scenario_sweep_figures(made_up(plan)).figures) {
      out.insert(figure.kind);
      CHECK_FALSE(figure.csv.empty());
    }
    return out;
  };
  CHECK(kinds({"/batch=1,2,4", "/prompt_tokens=100,200"}) == std::set<std::string>{"heat_map"});
  CHECK(kinds({"/batch=1,2,4"}) == std::set<std::string>{"lines"});
  CHECK(kinds({"/memory/hbm=70 GiB,80 GiB,90 GiB"}) == std::set<std::string>{"lines"});
  CHECK(kinds({"/gpu=A40,L40,H20"}) == std::set<std::string>{"bars"});
  const SweepPlan plan = with(sweep_file(folder, ""), {"/batch=1,2,4", "/prompt_tokens=100,200"});
  const FigureSet set = scenario_sweep_figures(made_up(plan));
  // Cells by index; the cell that ran out of memory is blank.
  CHECK(
      set.figures.front().csv.starts_with("x_index,y_index,batch,prompt_tokens,throughput_tok_s\n"
                                          "0,0,1,100,10\n1,0,2,100,12\n"));
  CHECK(set.figures.front().csv.find("0,1,1,200,NaN\n") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
