// Points of a sweep: a grid is the product of its axes, samples do not depend on other draws, and
// invalid axes are refused with their place.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/fields/list_keys.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/sweep/sweep_plan.hpp"
#include "tests/sim/search/sweep_files.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::complaint;
using test::fresh;
using test::has;
using test::plan_of;
using test::sweep_file;

TEST_CASE("a grid is the product of its axes, each combination once, the last changing fastest") {
  const auto folder = fresh("grid");
  const auto file = sweep_file(folder, R"(, "sweep": {"axes": [
    {"key": "/batch", "values": [1, 2, 4]},
    {"key": "/stack", "values": ["ideal", "hf-sdpa"]},
    {"key": "/prompt_tokens", "low": 100, "high": 1600, "steps": 5, "scale": "log", "integer": true}
  ]})");
  const SweepPlan plan = plan_of(file);
  REQUIRE(plan.size() == 3 * 2 * 5);
  std::set<std::string> seen, hashes;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::vector<json> values = plan.values(i);
    CHECK(values.at(0) == std::vector<int>{1, 2, 4}.at(i / 10));
    CHECK(values.at(1) == std::vector<std::string>{"ideal", "hf-sdpa"}.at(i / 5 % 2));
    CHECK(values.at(2) == std::vector<int>{100, 200, 400, 800, 1600}.at(i % 5));
    seen.insert(json(values).dump());
    hashes.insert(plan.scenario(i).hash);
  }
  CHECK(seen.size() == plan.size());
  CHECK(hashes.size() == plan.size());
}

TEST_CASE("a point equals the scenario with --set of its values, including the hash") {
  const auto folder = fresh("set");
  const auto file = sweep_file(folder, "");
  SweepChanges changes;
  changes.vary = {axis_of_text("/batch=1,8"), axis_of_text("/memory/hbm=80 GiB,141 GiB"),
                  axis_of_text("/method=full,{\"name\": \"h2o\", \"budget\": 0.2}")};
  const SweepPlan plan = plan_of(file, changes);
  REQUIRE(plan.size() == 8);
  const Scenario last = plan.scenario(7);
  const Scenario set = read_scenario(file, {{"/batch", "8"},
                                            {"/memory/hbm", "141 GiB"},
                                            {"/method", R"({"name": "h2o", "budget": 0.2})"}});
  CHECK(last.hash == set.hash);
  CHECK(last.points.front().keys == set.points.front().keys);
}

TEST_CASE("lists of the scenario are the first axes and methods with several budgets unfold") {
  const auto folder = fresh("lists");
  const auto file = sweep_file(folder, R"(, "batch": [1, 2],
    "method": ["full", {"name": "h2o", "budget": [0.1, 0.2]}])");
  SweepChanges changes;
  changes.vary = {axis_of_text("/stack=ideal,hf-sdpa")};
  const SweepPlan plan = plan_of(file, changes);
  CHECK(plan.size() == 2 * 3 * 2);
  REQUIRE(plan.axes().size() == 3);
  CHECK(plan.axes()[0].pointer == "/batch");
  CHECK(plan.axes()[1].values.at(2) == json({{"name", "h2o"}, {"budget", 0.2}}));
  CHECK(plan.axes()[2].pointer == "/stack");
  CHECK(plan.scenario(11).points.front().keys.at("budget") == 0.2);
  // --vary replaces the list.
  changes.vary = {axis_of_text("/batch=4,8,16")};
  CHECK(plan_of(file, changes).size() == 3 * 3);
}

TEST_CASE("an axis refuses a second spelling of a value") {
  const auto folder = fresh("spellings");
  const auto message = [&](const std::string& vary) {
    SweepChanges changes;
    return complaint([&] {
      changes.vary = {axis_of_text(vary)};
      (void)plan_of(sweep_file(folder, R"(, "method": "h2o")"), changes);
    });
  };
  CHECK(message("/gpu=h100,A100-80GB-SXM,H100-80GB-SXM") ==
        "--vary /gpu: /gpu/2: \"H100-80GB-SXM\" is given twice; /gpu/0 means the same");
  CHECK(message("/method=h2o,H2O") ==
        "--vary /method: /method/1: \"H2O\" is given twice; /method/0 means the same");
  CHECK(message("/method/name=h2o,H2O") ==
        "--vary /method/name: /method/1: \"H2O\" is given twice; /method/0 means the same");
  CHECK(message("/stack/name=vllm,VLLM") ==
        "--vary /stack/name: /stack/1: \"VLLM\" is given twice; /stack/0 means the same");
  CHECK(message("/method/budget=0.2,20 %") ==
        "--vary /method/budget: /method/budget/1: \"20 %\" is given twice; /method/budget/0 means "
        "the same");
  CHECK(message("/memory/hbm=80 GiB,81920 MiB") ==
        "--vary /memory/hbm: \"81920 MiB\" is given twice; \"80 GiB\" means the same");
  CHECK(message("/gpu=h100,h100") == "--vary /gpu: \"h100\" is given twice");
  CHECK(message("/gpu=h100,a100").empty());
  const auto file = sweep_file(folder, R"(, "sweep": {"axes": [
    {"key": "/stack", "values": ["vllm", {"name": "vllm", "usage": "server"}]}]})");
  CHECK(complaint([&] {
          (void)plan_of(file);
        }).ends_with("/sweep/axes/0: /stack/1: an object is given twice; /stack/0 means the same"));
}

/// A service of 20 requests with the additional members `more`, which start with a comma.
std::filesystem::path service_file(const std::filesystem::path& folder, const std::string& more) {
  const std::filesystem::path file = folder / "s.json";
  std::ofstream{file} << R"({"kind": "serve", "model": "llama-2-7b", "gpu": "A100-80GB-SXM",
    "dtype": "fp16", "stack": "vllm")"
                      << more << "}";
  return file;
}

/// Checks that the sweep has the points of a run of the same file, with the same keys, in order.
void check_same_points(const std::filesystem::path& file) {
  const Scenario run = read_scenario(file, {});
  const SweepPlan plan = plan_of(file);
  REQUIRE(plan.size() == run.points.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    INFO("point ", i);
    CHECK(plan.scenario(i).points.front().keys == run.points[i].keys);
  }
}

TEST_CASE("a sweep of a scenario's lists has the points of its run in their order") {
  check_same_points(
      sweep_file(fresh("same/static"), R"(, "batch": [1, 2], "stack": ["ideal", "hf-sdpa"],
    "gpu_count": [1, 2], "calibration": ["builtin", "nominal"], "kv_dtype": ["fp16", "int8"],
    "method": {"name": "h2o", "budget": [0.1, 0.2]})"));
  const std::string requests =
      R"({"arrivals": {"kind": "poisson", "rate": [2, 4]}, "count": 20, "limit": [5, 10],
    "prompt_tokens": 100, "output_tokens": 5, "rate_scale": [1, 2], "prompt_scale": [1, 3],
    "output_scale": [1, 2]})";
  check_same_points(service_file(
      fresh("same/serve"),
      R"(, "scheduler": ["vllm-v1", {"name": "vllm-v0", "max_num_seqs": [8, 16], "swap": [true, false]}],
           "cluster": {"replicas": [1, 2], "router": ["round-robin", "least-loaded"]},
           "pipeline_parallel": [1, 2], "requests": )" +
          requests));
  check_same_points(service_file(
      fresh("same/requests"),
      R"(, "scheduler": {"max_num_batched_tokens": [256, 512], "max_num_seqs": [8, 16]},
           "speculation": [{"draft": "llama-3.2-1b", "tokens": [2, 3]},
                           {"draft": "llama-3.2-1b", "acceptance": [0.5, 0.9]}],
           "method": ["full"],
           "requests": [{"arrivals": {"kind": "closed", "users": [1, 2]}, "count": 20,
                         "prompt_tokens": 100, "output_tokens": 5},
                        {"arrivals": {"kind": "gamma", "rate": [2, 4], "cv": [1, 2]}, "count": 20,
                         "prompt_tokens": 100, "output_tokens": 5}])"));
}

TEST_CASE("keys that may be lists are those marked in the table of keys") {
  std::set<std::string> said, listed;
  for (const ScenarioObject& object : scenario_objects()) {
    if (object.name != "point") continue;
    for (const ScenarioKey& key : object.keys) {
      if (key.values == KeyValues::kPoints) said.emplace(key.name);
    }
  }
  for (const std::string_view key : list_keys()) listed.emplace(key);
  CHECK(said == listed);
}

TEST_CASE("lists of a service are axes by their pointers, which --vary replaces") {
  const auto file =
      service_file(fresh("service"), R"(, "scheduler": {"name": ["vllm-v1", "vllm-v0"]},
           "requests": {"arrivals": {"kind": "poisson", "rate": [2, 4, 8]}, "count": 20, "prompt_tokens": 100,
                        "output_tokens": 5, "limit": [10]})");
  const SweepPlan plan = plan_of(file);
  REQUIRE(plan.axes().size() == 3);
  CHECK(plan.axes()[0].pointer == "/scheduler/name");
  CHECK(plan.axes()[1].pointer == "/requests/arrivals/rate");
  CHECK(plan.axes()[1].values == std::vector<json>{2, 4, 8});
  CHECK(plan.axes()[2].pointer == "/requests/limit");
  CHECK(plan.size() == 2 * 3);
  SweepChanges changes;
  changes.vary = {axis_of_text("/requests/arrivals/rate=1,3")};
  CHECK(plan_of(file, changes).size() == 2 * 2);
  changes.vary = {axis_of_text(R"(/requests/arrivals={"kind": "closed", "users": 3})")};
  CHECK(plan_of(file, changes).size() == 2);
  changes.vary = {axis_of_text("/scheduler=vllm-v1")};
  CHECK(plan_of(file, changes).size() == 3);
}

TEST_CASE("an item of a list is varied by its index if it is the only one") {
  const auto one = sweep_file(fresh("one"), R"(, "method": [{"name": "h2o"}])");
  SweepChanges changes;
  changes.vary = {axis_of_text("/method/0/budget=0.1,0.2")};
  const SweepPlan plan = plan_of(one, changes);
  REQUIRE(plan.size() == 2);
  CHECK(plan.scenario(1).points.front().keys.at("budget") == 0.2);
  const auto many = sweep_file(fresh("many"), R"(, "method": ["full", {"name": "h2o"}, "tova"])");
  for (const std::string index : {"0", "1", "2", "10", "-"}) {
    INFO(index);
    changes.vary = {axis_of_text(fmt::format("/method/{}/budget=0.1,0.2", index))};
    CHECK(complaint([&] { (void)plan_of(many, changes); }) ==
          fmt::format(
              "--vary /method/{}/budget: /method is a list of 3, and each makes "
              "separate points: vary /method/budget, which sets it in every one, or write the "
              "values into the list",
              index));
  }
  changes.vary = {axis_of_text("/method/1/budget=0.1,0.2")};
  CHECK(has(complaint([&] { (void)plan_of(one, changes); }), "/method is a list of 1"));
  // A common key is varied in each item; the items' own lists are replaced.
  const auto budgets = sweep_file(
      fresh("budgets"), R"(, "method": [{"name": "h2o", "budget": [0.3, 0.4]}, "snapkv"])");
  changes.vary = {axis_of_text("/method/budget=0.1,0.2,0.5")};
  const SweepPlan each = plan_of(budgets, changes);
  CHECK(each.size() == 6);
  CHECK(each.scenario(5).points.front().keys.at("budget") == 0.5);
}

TEST_CASE("a parameter is set in the method whichever axis comes first") {
  const auto folder = fresh("nested");
  const auto file = sweep_file(folder, "");
  SweepChanges changes;
  changes.vary = {axis_of_text("/method/budget=0.1,0.3"), axis_of_text("/method=h2o,snapkv")};
  const SweepPlan plan = plan_of(file, changes);
  REQUIRE(plan.size() == 4);
  CHECK(plan.scenario(3).points.front().keys.at("method") == "snapkv");
  CHECK(plan.scenario(3).points.front().keys.at("budget") == 0.3);
}

TEST_CASE("samples are within bounds and depend only on seed, key and number") {
  const auto folder = fresh("random");
  const char* axes = R"({"key": "/batch", "low": 1, "high": 64, "scale": "log", "integer": true},
                        {"key": "/memory/hbm", "low": 40, "high": 160, "unit": "GiB"},
                        {"key": "/method/budget", "low": 0.01, "high": 0.9, "scale": "log"},
                        {"key": "/stack", "values": ["ideal", "hf-sdpa"]})";
  const char* turned = R"({"key": "/stack", "values": ["ideal", "hf-sdpa"]},
                          {"key": "/method/budget", "low": 0.01, "high": 0.9, "scale": "log"},
                          {"key": "/batch", "low": 1, "high": 64, "scale": "log", "integer": true})";
  const auto with = [&](const std::string& name, int samples, int seed, const char* list) {
    const auto file = sweep_file(
        fresh("random/" + name),
        fmt::format(
            R"(, "method": "h2o", "sweep": {{"mode": "random", "samples": {}, "seed": {}, "axes": [{}]}})",
            samples, seed, list));
    return plan_of(file);
  };
  const SweepPlan plan = with("a", 400, 7, axes);
  const SweepPlan fewer = with("b", 10, 7, axes);
  const SweepPlan other = with("c", 400, 8, axes);
  const SweepPlan order = with("d", 400, 7, turned);
  REQUIRE(plan.size() == 400);
  int below_8 = 0, ideal = 0, moved = 0;
  double sum = 0;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::vector<json> v = plan.values(i);
    CHECK(v[0].is_number_integer());
    CHECK((v[0] >= 1 && v[0] <= 64));
    const double gib = std::stod(v[1].get<std::string>());
    CHECK(v[1].get<std::string>().ends_with(" GiB"));
    CHECK((gib >= 40 && gib <= 160));
    CHECK((v[2] >= 0.01 && v[2] <= 0.9));
    below_8 += v[0] < 8 ? 1 : 0;
    ideal += v[3] == "ideal" ? 1 : 0;
    moved += v == other.values(i) ? 0 : 1;
    sum += gib;
    CHECK(v == plan.values(i));
    if (i < 10) CHECK(v == fewer.values(i));
    const std::vector<json> t = order.values(i);
    CHECK((t[0] == v[3] && t[1] == v[2] && t[2] == v[0]));
  }
  // Half of the decades are below 8; four standard deviations of 400 draws are 40, plus 7 GiB.
  CHECK(std::abs(below_8 - 200) < 45);
  CHECK(std::abs(ideal - 200) < 40);
  CHECK(std::abs(sum / 400 - 100) < 7);
  CHECK(moved > 390);
  CHECK(plan.hash() != other.hash());
  (void)plan.scenario(399);
}

TEST_CASE("--vary reads JSON and words, commas inside brackets and quotes apart") {
  const ScenarioAxis axis =
      axis_of_text(R"(/method=full,{"name": "h2o", "budget": 0.1},"a,b",[1,2],1e3,true, 80 GiB )");
  CHECK(axis.pointer == "/method");
  REQUIRE(axis.values.size() == 7);
  CHECK(axis.values[0] == "full");
  CHECK(axis.values[1].at("budget") == 0.1);
  CHECK(axis.values[2] == "a,b");
  CHECK(axis.values[3] == json({1, 2}));
  CHECK(axis.values[4] == 1000);
  CHECK(axis.values[5] == true);
  CHECK(axis.values[6] == "80 GiB");
}

TEST_CASE("invalid axes are refused with their place") {
  const auto folder = fresh("bad");
  const auto vary = [&](const std::string& text) {
    return complaint([&] {
      SweepChanges changes;
      changes.vary = {axis_of_text(text)};
      (void)plan_of(sweep_file(folder, ""), changes);
    });
  };
  CHECK(has(vary("batch=1,2"), "--vary: expected /json/pointer=value,value"));
  CHECK(has(vary("/batch"), "--vary: expected"));
  CHECK(has(vary("/batch="), "--vary /batch: expected values separated by single commas"));
  CHECK(has(vary("/batch=1,,2"), "--vary /batch: expected values separated"));
  CHECK(has(vary("/batch=1,2,1.0"), "--vary /batch: 1.0 is given twice"));
  CHECK(has(vary("/batch=[1,2"), "--vary /batch"));
  CHECK(has(vary("/=1,2"), "--vary /: the last key of the pointer is empty"));
  CHECK(has(vary("/a~2=1,2"), "\"~\" is written"));
  CHECK(has(vary("/batchh=1,2"), "did you mean \"batch\"?"));
  CHECK(has(vary("/gpu/x=1,2"), "/gpu is a string and has no members"));
  CHECK(has(vary("/batch=1,0"), "(with /batch = 0): /batch: expected an integer in [1, 1048576]"));
  CHECK(has(vary("/gpu=A100-80GB-SXM,H1000"), "(with /gpu = \"H1000\"): /gpu: unknown GPU"));
  CHECK(has(vary("/sweep/mode=grid,random"), "/sweep cannot be varied"));
  CHECK(has(vary("/extends=a,b"), "/extends cannot be varied"));

  const auto sweep = [&](const std::string& text) {
    return complaint([&] { (void)plan_of(sweep_file(folder, ", \"sweep\": " + text)); });
  };
  CHECK(has(sweep("{}"), "nothing is varied"));
  CHECK(has(sweep("3"), "/sweep: expected an object"));
  CHECK(has(sweep(R"({"mode": "all"})"), "/sweep/mode: expected"));
  CHECK(has(sweep(R"({"axis": []})"), "did you mean \"axes\"?"));
  CHECK(has(sweep(R"({"samples": 3})"), "/sweep/samples: applies only to \"mode\": \"random\""));
  CHECK(has(sweep(R"({"mode": "random"})"), "/sweep: \"samples\" is missing"));
  CHECK(has(sweep(R"({"mode": "random", "samples": 0})"), "/sweep/samples: expected an integer"));
  CHECK(has(sweep(R"({"axes": [{"values": [1]}]})"), "/sweep/axes/0"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch"}]})"), "has neither \"values\" nor"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "values": []}]})"),
            "/sweep/axes/0: expected at least one value, got none"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "values": [1, 1]}]})"), "1 is given twice"));
  CHECK(has(
      sweep(R"({"axes": [{"key": "/batch", "values": [1]}, {"key": "/batch", "values": [2]}]})"),
      "/sweep/axes/1/key: /batch is varied twice"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "low": 1, "high": 4}]})"),
            "a range of a grid needs \"steps\""));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "low": 4, "high": 4, "steps": 2}]})"),
            "/sweep/axes/0/high: expected a number above low"));
  CHECK(has(
      sweep(R"({"axes": [{"key": "/batch", "low": 0, "high": 4, "steps": 2, "scale": "log"}]})"),
      "/sweep/axes/0/low: expected a number above 0"));
  CHECK(has(
      sweep(R"({"axes": [{"key": "/batch", "low": 1, "high": 3, "steps": 9, "integer": true}]})"),
      "is given twice"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "values": [1], "low": 1}]})"),
            "has both \"values\" and a range"));
  CHECK(has(sweep(R"({"axes": [{"key": "/batch", "low": 1, "high": 1000, "steps": 1000,
      "integer": true}, {"key": "/prompt_tokens", "low": 1, "high": 1000, "steps": 1000,
      "integer": true}]})"),
            "the axes make 1000000 points, more than 250000"));
  const auto twice = complaint([&] {
    SweepChanges changes;
    changes.vary = {axis_of_text("/batch=1,2"), axis_of_text("/batch=4,8")};
    (void)plan_of(sweep_file(folder, ""), changes);
  });
  CHECK(has(twice, "--vary /batch: the key is varied twice"));
  const auto groups = complaint([&] {
    SweepChanges changes;
    changes.vary = {axis_of_text("/batch=1,2")};
    (void)plan_of(sweep_file(folder, R"(, "points": [{"gpu": "H20"}, {"gpu": "L40"}])"), changes)
        .scenario(0);
  });
  CHECK(has(groups, "(point 0): is 2 runs, but a point of a sweep must be one"));
}

}  // namespace
}  // namespace kvsim
