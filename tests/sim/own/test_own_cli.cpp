// Methods from files on the command line and in scenarios: replay, run, plan, show.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::Words;

const fs::path kRoot{KVSIM_SOURCE_DIR};
const std::string kTrace = (kRoot / "traces/samples/books-treasure-512.safetensors").string();
const std::string kScorers = (kRoot / "tests/sim/own/scorers.py").string();
const std::string kLibrary = KVSIM_LIBRARIES "/own_value_norm.so";

Outcome run(const Words& words, const fs::path& folder) {
  ::setenv("KVSIM_PYTHON", KVSIM_PYTHON, 1);
  return run_kvsim(words, folder);
}

json document(const Words& words, const fs::path& folder) {
  const Outcome outcome = run(words, folder);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return json::parse(outcome.out);
}

TEST_CASE("own cli: a replay has methods of files next to built-in ones, with figures and a page") {
  const fs::path folder = fresh("own_replay");
  const json result = document({"replay", "--trace", kTrace, "--method-lib", kLibrary, "--method",
                                "knorm,value-norm," + kScorers + ":Prints," + kScorers + ":Knorm",
                                "--budget", "0.2", "--param", "sinks=8", "--json", "-o", "out"},
                               folder);
  REQUIRE(result.at("methods").size() == 4);
  CHECK(result.at("methods")[1].at("name") == "value-norm");
  CHECK(result.at("methods")[1].at("params").at("sinks") == 8);
  CHECK(result.at("methods")[3].at("name") == "scorers.py:Knorm");
  CHECK(result.at("methods")[3].at("rel_error_mean") ==
        result.at("methods")[0].at("rel_error_mean"));
  CHECK(has(result.at("methods")[3].at("notes")[0], "scored by the user's Python file scorers.py"));
  CHECK(has(text_of(folder / "out/report.html"), "scorers.py:Knorm"));
  CHECK(has(text_of(folder / "out/report.html"), "scored by the user's Python file"));
  CHECK_FALSE(fs::is_empty(folder / "out/figures"));
  for (const auto& figure : fs::directory_iterator{folder / "out/figures"}) {
    CHECK_FALSE(has(figure.path().filename().string(), ":"));
  }
}

TEST_CASE("own cli: failures end with one line on standard error, and status 2") {
  const fs::path folder = fresh("own_failures");
  const auto refused = [&](const std::string& method, const Words& more = {}) {
    Words words{"replay", "--trace", kTrace, "--method", method, "--budget", "0.2", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words, folder);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  for (const char* kind : {"Raises", "Dies", "NoScore", "NotFinite", "Unknown"}) {
    const std::string line = refused(kScorers + ":" + kind, {"--quiet"});
    CHECK(line.starts_with("kvsim: method \"scorers.py:" + std::string{kind} + "\": "));
    CHECK(std::count(line.begin(), line.end(), '\n') == 1);
  }
  CHECK(has(refused("knorm", {"--method-lib", "own.dll"}),
            "--method-lib: expected a shared library (.so), got \"own.dll\""));
  CHECK(has(refused("knorm", {"--method-lib", "own.so"}), "no such file: own.so"));
  CHECK(has(refused(kScorers + ":Knorm", {"--param", "alpha=1"}), "unknown parameter \"alpha\""));
}

TEST_CASE("own cli: scenarios find files next to them, in replays, runs and services") {
  const fs::path folder = fresh("own_scenarios");
  fs::create_directories(folder / "deep");
  fs::copy_file(kScorers, folder / "deep/mine.py");
  const json one{{"name", "mine.py:Recent"}, {"budget", 0.25}, {"window", 12}};
  const json base{
      {"schema", "kvsim.scenario/1"}, {"model", "llama-3.1-8b"}, {"gpu", "h100"}, {"stack", "vllm"},
      {"prompt_tokens", 16384},       {"output_tokens", 64},     {"batch", 4}};
  json scenario = base;
  scenario["method"] = json::array({"full", {{"name", "keydiff"}, {"budget", 0.25}}, one});
  scenario["replay"] = {{"trace", kTrace}, {"methods", {one, "knorm"}}};
  test::write(folder / "deep/run.json", scenario.dump());
  const json result = document({"run", "deep/run.json", "--json"}, folder);
  const json& points = result.at("points");
  REQUIRE(points.size() == 3);
  CHECK(points[2].at("method") == "mine.py:Recent");
  CHECK(points[2].at("method_params").at("window") == 12);
  // Memory follows from the budget as for a built-in scorer, and the capacity follows from the
  // memory.
  for (const char* key : {"peak_hbm_bytes", "kv_bytes"}) {
    CHECK(points[2].at(key) == points[1].at(key));
    CHECK(points[2].at(key) != points[0].at(key));
  }
  CHECK(has(points[2].dump(), "time and memory of its scores are not counted"));
  CHECK_FALSE(has(points[1].dump(), "time and memory of its scores are not counted"));
  CHECK(has(result.at("replay").dump(), "mine.py:Recent"));

  scenario["method"] = "deep.py:Recent";
  test::write(folder / "deep/run.json", scenario.dump());
  const Outcome missing = run({"run", "deep/run.json"}, folder);
  CHECK(missing.status == 2);
  CHECK(has(missing.err, "deep/run.json: /method: method \"deep.py:Recent\": no such file: deep/"));
}

TEST_CASE("own cli: plans from options, and their printed scenario") {
  const fs::path folder = fresh("own_plans");
  const Words plan{"plan",
                   "--model",
                   "llama-3.1-8b",
                   "--gpu",
                   "h100",
                   "--isl",
                   "16384",
                   "--osl",
                   "64",
                   "--method-lib",
                   kLibrary,
                   "--method",
                   "value-norm," + kScorers + ":Knorm,keydiff",
                   "--budget",
                   "0.2"};
  Words as_json = plan;
  as_json.emplace_back("--json");
  const json result = document(as_json, folder);
  CHECK(has(result.dump(), "value-norm"));
  CHECK(has(result.dump(), "only reads of its scores are counted: 0 x keys, 1 x values"));
  Words print = plan;
  print.emplace_back("--print-scenario");
  const Outcome printed = run(print, folder);
  CHECK(has(printed.out, "own_value_norm.so"));
  CHECK(has(printed.out, "scorers.py:Knorm"));
  test::write(folder / "again.json", printed.out);
  const json again = document({"plan", "again.json", "--json"}, folder);
  CHECK(again.at("answers") == result.at("answers"));
}

TEST_CASE("own cli: a scorer's process ends with the program, even if both are busy") {
  const fs::path folder = fresh("own_killed");
  ::setenv("KVSIM_PYTHON", KVSIM_PYTHON, 1);
  const std::string start = fmt::format(
      "cd '{}' && {{ '{}' replay --trace '{}' --method '{}:Stays' --budget 0.2 -q & }} "
      "&& echo $! > program",
      folder.string(), KVSIM_PROGRAM, kTrace, kScorers);
  REQUIRE(std::system(start.c_str()) == 0);
  const auto within = [](auto is_true) {
    for (int i = 0; i < 1000 && !is_true(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
    return is_true();
  };
  REQUIRE(within([&] { return fs::exists(folder / "pid"); }));
  ::kill(std::stoi(text_of(folder / "program")), SIGKILL);
  const std::string status = "/proc/" + text_of(folder / "pid") + "/status";
  CHECK(within([&] {
    const std::string text = text_of(status);  // an ended process may remain as a zombie
    return text.empty() || text.find("State:\tZ") != std::string::npos;
  }));
}

TEST_CASE("own cli: show describes a class") {
  const Outcome outcome = run({"show", "method", kScorers + ":Recent"}, fresh("own_show"));
  CHECK(outcome.status == 0);
  CHECK(has(outcome.out, "The last `window` tokens, then the first."));
  CHECK(has(outcome.out, "window = 8"));
  CHECK(has(outcome.out, "time and memory of its scores are not counted"));
}

TEST_CASE("own cli: the how-to shows the files of examples/own_method") {
  const std::string page = text_of(kRoot / "docs/howto/own-method.md");
  for (const char* file : {"my_press.py"}) {
    CHECK(has(page, text_of(kRoot / "examples/own_method" / file)));
  }
}

}  // namespace
}  // namespace kvsim
