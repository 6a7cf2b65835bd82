// The scenario key `calibration`: words and paths, base folders, refused values, and effects.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "models/cost/kernels/calibration.hpp"
#include "models/units/error.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

fs::path fresh(const std::string& name) {
  fs::path folder = test::scratch_folder() /
                    fmt::format("calibration-{}-{}", name, getpid());  // cases run in parallel
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}
fs::path write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream{path} << text;
  return path;
}
/// A small scenario; `extra` starts with a comma or is empty.
std::string small(std::string_view extra) {
  return fmt::format(R"({{"model": "llama-2-7b", "gpu": "H100-80GB-SXM", "dtype": "fp16",
    "prompt_tokens": 100, "output_tokens": 2{}}})",
                     extra);
}
std::string complaint_of(const fs::path& file) {
  try {
    (void)read_scenario(file, {});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}
/// One of the shipped calibrations, as a user's file.
std::string own_file() {
  KernelCalibrationFile file = builtin_calibrations().front();
  file.provenance = "timings of mine";
  return write_calibration(file);
}

TEST_CASE("calibration: the shipped ones unless the scenario sets another") {
  const fs::path folder = fresh("default");
  const Scenario plain = read_scenario(write(folder / "a.json", small("")), {});
  CHECK(plain.points.at(0).spec.calibration == &builtin_calibration());
  CHECK(plain.points.at(0).keys.at("calibration") == "builtin");
  const Scenario nominal =
      read_scenario(write(folder / "b.json", small(R"(, "calibration": "nominal")")), {});
  CHECK(nominal.points.at(0).spec.calibration == nullptr);
  CHECK(nominal.hash != plain.hash);
}

TEST_CASE("calibration: a list makes points, in its place among the others") {
  const fs::path folder = fresh("list");
  const Scenario both = read_scenario(
      write(folder / "a.json",
            small(R"(, "calibration": ["nominal", "builtin"], "batch": [1, 2], "stack": "vllm")")),
      {});
  REQUIRE(both.points.size() == 4);
  CHECK(both.points[0].keys.at("calibration") == "nominal");
  CHECK(both.points[1].keys.at("calibration") == "nominal");
  CHECK(both.points[1].keys.at("batch") == 2);
  CHECK(both.points[2].keys.at("calibration") == "builtin");
  CHECK(both.points[0].label != both.points[2].label);
  CHECK(both.points[0].label.find("calibration nominal") != std::string::npos);
  // A group of points has a separate calibration.
  const Scenario groups = read_scenario(
      write(folder / "b.json",
            small(R"(, "calibration": "nominal", "points": [{}, {"calibration": "builtin"},
                     {"calibration": null}])")),
      {});
  REQUIRE(groups.points.size() == 3);
  CHECK(groups.points[0].spec.calibration == nullptr);
  CHECK(groups.points[1].spec.calibration == &builtin_calibration());
  CHECK(groups.points[2].keys.at("calibration") == "builtin");
}

TEST_CASE("calibration: user files, relative to the scenario that names them") {
  const fs::path folder = fresh("own");
  write(folder / "mine/one.json", own_file());
  const fs::path scenario =
      write(folder / "a.json", small(R"(, "calibration": ["mine", "mine/one.json"])"));
  const Scenario read = read_scenario(scenario, {});
  REQUIRE(read.points.size() == 2);
  const Calibration& own = *read.points[0].spec.calibration;
  CHECK(own.id == "mine");
  CHECK(own.provenance == "kernels fitted to timings of mine");
  REQUIRE(own.kernels != nullptr);
  CHECK(own.kernels->entries().size() == builtin_calibrations().front().entries.size());
  CHECK(read.points[1].spec.calibration->id == "mine/one.json");
  CHECK(read.own_calibrations.size() == 2);
  // The path in an extended file is relative to that file; a word is not a path.
  write(folder / "deep/top.json", R"({"extends": "../a.json", "title": "above"})");
  const Scenario above = read_scenario(folder / "deep/top.json", {});
  CHECK(above.points.at(0).keys.at("calibration") == "../mine");
  write(folder / "word.json", small(R"(, "calibration": "nominal")"));
  write(folder / "deep/word.json", R"({"extends": "../word.json"})");
  CHECK(read_scenario(folder / "deep/word.json", {}).points.at(0).spec.calibration == nullptr);
}

TEST_CASE("calibration: unreadable files are refused with their place") {
  const fs::path folder = fresh("broken");
  const auto complaint = [&](std::string_view value) {
    return complaint_of(
        write(folder / "a.json", small(fmt::format(R"(, "calibration": {})", value))));
  };
  const auto holds = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  holds(complaint(R"("builtn")"), "/calibration: ");
  holds(complaint(R"("builtn")"), "did you mean \"builtin\"?");
  holds(complaint(R"("none/such.json")"), "no file or folder");
  holds(complaint(R"(["nominal", "nowhere"])"), "/calibration/1: ");
  holds(complaint("3"), "/calibration: expected");
  holds(complaint("[]"), "/calibration: expected");
  holds(complaint(R"("")"), "/calibration: ");
  fs::create_directories(folder / "empty");
  holds(complaint(R"("empty")"), "calibration files (*.json)");
  const auto file = [&](std::string from, std::string_view to) {
    std::string text = own_file();
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write(folder / "c.json", text.replace(at, from.size(), to));
    const std::string said = complaint(R"("c.json")");
    holds(said, "/calibration: ");
    holds(said, "c.json: /");
    return said;
  };
  const KernelCalibrationFile& first = builtin_calibrations().front();
  holds(file(fmt::format("\"{}\"", first.gpu), "\"H1000\""), "/gpu");
  holds(file("kvsim.calibration/1", "kvsim.calibration/9"), "/schema");
  holds(file(fmt::format("\"{}\"", name_of(first.entries.front().op)), "\"gem\""), "/entries/0/op");
  holds(
      file(fmt::format("\"format\": \"{}\"", first.entries.front().format), "\"format\": \"bf17\""),
      "/entries/0/format");
  write(folder / "c.json", "{");
  holds(complaint(R"("c.json")"), "c.json");
}

StaticResult run(const Stack& stack, const Calibration* calibration) {
  const Scenario scenario = read_scenario(write(fresh("run") / "a.json", small("")), {});
  StaticSpec spec = scenario.points.at(0).spec;
  spec.stack = &stack;
  spec.calibration = calibration;
  return run_static(spec, {.time_terms = true, .intervals = true});
}

TEST_CASE("calibration: a stack without named kernels takes the same time under each calibration") {
  for (const char* name : {"ideal", "hf-sdpa"}) {
    Stack stack = find_stack(name);
    stack.kernels.clear();
    const StaticResult nominal = run(stack, nullptr);
    const StaticResult builtin = run(stack, &builtin_calibration());
    CHECK(nominal.prefill_time == builtin.prefill_time);
    CHECK(nominal.decode_time == builtin.decode_time);
    CHECK(nominal.calibration_id == "nominal");
    CHECK(builtin.calibration_id == "builtin");
    CHECK(builtin.calibration.starts_with("no fitted kernels, stack"));
  }
}

TEST_CASE("calibration: kernels that the stack names time its operators and state their basis") {
  Stack stack = find_stack("vllm");
  stack.kernels = {{"gemm", "vllm"}, {"decode_attention", "vllm"}};
  const StaticResult nominal = run(stack, nullptr);
  const StaticResult builtin = run(stack, &builtin_calibration());
  CHECK(nominal.decode_time != builtin.decode_time);
  CHECK(nominal.peak_hbm == builtin.peak_hbm);
  bool fitted = false;
  for (const ExplainedStep& step : builtin.explained) {
    for (const TimeTerm& term : step.terms) {
      if (term.family == "gemm") {
        CHECK(term.basis != "stack");
        CHECK(term.basis != "data_sheet");
        fitted = true;
      }
      if (term.family == "norm") CHECK((term.basis == "stack" || term.basis == "data_sheet"));
    }
  }
  CHECK(fitted);
  for (const ExplainedStep& step : nominal.explained) {
    for (const TimeTerm& term : step.terms) {
      CHECK((term.basis == "stack" || term.basis == "data_sheet"));
      CHECK_FALSE(term.interval);
    }
  }
}

}  // namespace
}  // namespace kvsim
