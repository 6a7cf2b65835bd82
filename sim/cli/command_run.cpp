#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/cli/launch/launch_job.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/options/scenario_flags.hpp"
#include "sim/cli/options/scenario_options.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/process/terminal_style.hpp"
#include "sim/cli/scenario_sweep_job.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_folder.hpp"
#include "sim/report/run/run_summary.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/text_style.hpp"
#include "sim/run/run_report.hpp"
#include "sim/run/run_scenario.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::int64_t kMaxThreads = 1024;

/// The results folder of a scenario; nullopt if no results are written.
std::optional<fs::path> folder_of(const Arguments& arguments, const Scenario& scenario,
                                  bool several) {
  refuse_formats_without_folder(arguments, arguments.has("out") || !arguments.has("json"));
  (void)folder_options(arguments);  // check before anything runs
  if (const auto out = arguments.value("out")) {
    return several ? fs::path{*out} / scenario.name : fs::path{*out};
  }
  if (arguments.has("json")) return std::nullopt;
  return fs::path{"kvsim-out"} / scenario.name;
}

/// Numbers of points and replays that did not run because of an interrupt.
struct Missing {
  std::size_t points = 0, replays = 0;

  [[nodiscard]] bool any() const { return points + replays > 0; }
  void operator+=(const Missing& other) {
    points += other.points;
    replays += other.replays;
  }
};

struct Finished {
  ordered_json document;
  std::string text;
  Missing missing;

  [[nodiscard]] bool nothing() const { return document.is_null() && text.empty(); }
};

Finished run_one(const Arguments& arguments, Scenario& scenario,
                 const std::optional<fs::path>& folder) {
  const FolderOptions writes =
      folder_options(arguments, !scenario.figures || !scenario.figures->empty());
  const bool quiet = arguments.has("quiet");
  const int threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  std::optional<Progress> bar;
  // The page shows the entries of each head; documents have them only if the scenario requests it.
  RunOptions how{
      .threads = threads, .per_head = folder && writes.page, .why_kept = folder.has_value()};
  std::optional<StopOnInterrupt> stops{std::in_place};
  how.phase = [&](const std::string& what, double total, const std::string& unit) {
    if (!quiet) bar.emplace(what, total, unit);
  };
  if (!quiet) how.progress = [&](double done) { bar->update(done); };
  how.stop = StopOnInterrupt::is_requested;
  const auto begun = std::chrono::steady_clock::now();
  RunReport report = run_scenario(scenario, how);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
  bar.reset();
  stops.reset();  // an interrupt during writing ends the program and removes partial files
  const Missing missing{report.missing, report.replay_missing ? 1U : 0U};
  if (missing.any() && scenario.points.empty()) return {nullptr, "", missing};
  ordered_json document = run_document(report);
  std::optional<ResultsFolder> written;
  if (folder) written = write_run_results(report, document, *folder, writes);
  if (arguments.has("json")) {
    // Wall time is only printed; files do not contain it.
    if (scenario.kind == "serve") document["run"] = {{"wall_s", wall.count()}};
    return {std::move(document), "", missing};
  }
  TextStyle style = terminal_style();
  style.verbose = arguments.has("verbose");
  return {nullptr, run_summary(report, document, written ? &*written : nullptr, style), missing};
}

/// Reports the missing results after an interrupt, and the command that computes all of them.
void report_missing(const Missing& missing, const std::optional<fs::path>& folder) {
  const auto counted = [](std::size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  std::vector<std::string> what;
  if (missing.points > 0) what.push_back(counted(missing.points, "point"));
  if (missing.replays > 0) what.push_back(counted(missing.replays, "replay"));
  write_err(fmt::format(
      "kvsim: {} {} missing{}; to compute everything: {}\n", fmt::join(what, " and "),
      missing.points + missing.replays == 1 ? "is" : "are",
      folder ? fmt::format("; {} holds the others", folder->string()) : "", command_line()));
}

int write_point_launches(const Arguments& arguments, const Scenario& scenario) {
  write_launches(arguments, point_launches(scenario));
  return kDone;
}

/// Prints the results of one scenario.
int run_alone(const Arguments& arguments, Scenario scenario) {
  const std::optional<fs::path> folder = folder_of(arguments, scenario, false);
  if (folder) check_results_folder(*folder);
  const Finished finished = run_one(arguments, scenario, folder);
  if (finished.nothing()) {
    // Nothing ran.
  } else if (arguments.has("json")) {
    write_out(to_file_text(finished.document));
  } else if (!arguments.has("quiet")) {
    write_out(finished.text);
  }
  if (!finished.missing.any()) return kDone;
  report_missing(finished.missing, finished.nothing() ? std::nullopt : folder);
  return interrupted_status();
}

int run_run(const Arguments& given) {
  const Arguments arguments = with_command_options(given);
  if (asks_by_options(arguments)) {
    const auto sets = [&](std::string_view key) {
      const std::vector<std::string> changes = arguments.values("set");
      return std::any_of(changes.begin(), changes.end(), [key](const std::string& change) {
        return change.starts_with(key) && change.find_first_of("/=", 1) == key.size();
      });
    };
    if (has_plan_options(arguments) || sets("/plan")) return run_plan_job(arguments);
    if (sets("/sweep")) {
      throw InputError{
          "--set /sweep: expected a scenario file; --print-scenario writes one to start from"};
    }
    OptionScenario made = scenario_by_options(arguments, false);
    if (arguments.has("print-scenario")) {
      write_out(to_file_text(made.document));
      return kDone;
    }
    if (asks_for_launch(arguments)) return write_point_launches(arguments, made.scenario);
    return run_alone(arguments, std::move(made.scenario));
  }
  arguments.expect_words(1, SIZE_MAX, "one or more scenario files, or --model and --gpu");
  const bool several = arguments.words().size() > 1;
  for (const std::string& file : arguments.words()) {
    const auto document = scenario_document(file, read_overrides(arguments, file));
    const auto has = [&](const char* key) {
      return document.contains(key) && !document.at(key).is_null();
    };
    if (has("sweep")) refuse_plan_of_sweep(document, file);
    if (!has("sweep") && !has("plan")) continue;
    if (!several) return has("plan") ? run_plan_job(arguments) : run_scenario_sweep(arguments);
    throw InputError{fmt::format("{}: has a {} and must be run separately", file,
                                 has("plan") ? "plan" : "sweep")};
  }
  if (asks_for_launch(arguments)) {
    arguments.expect_words(1, 1, "one scenario file");
    const std::string& file = arguments.words().front();
    return write_point_launches(arguments, read_scenario(file, read_overrides(arguments, file)));
  }
  // All scenarios are read before the first one runs, so that an error in the last one costs no
  // time.
  std::vector<Scenario> scenarios;
  std::vector<std::optional<fs::path>> folders;
  std::set<fs::path> taken;
  for (const std::string& file : arguments.words()) {
    scenarios.push_back(read_scenario(file, read_overrides(arguments, file)));
    folders.push_back(folder_of(arguments, scenarios.back(), several));
    if (!folders.back()) continue;
    check_results_folder(*folders.back());
    if (!taken.insert(folders.back()->lexically_normal()).second) {
      throw InputError{
          fmt::format("two scenarios are called {}: their results would go to one folder",
                      scenarios.back().name)};
    }
  }
  ordered_json documents = ordered_json::array();
  Missing missing;
  std::optional<fs::path> holds;  // the results folder, or the parent folder of several
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    if (StopOnInterrupt::is_requested()) {
      missing += {scenarios[i].points.size(), scenarios[i].replay ? 1U : 0U};
      continue;
    }
    Finished finished = run_one(arguments, scenarios[i], folders[i]);
    missing += finished.missing;
    if (finished.nothing()) continue;
    if (folders[i]) holds = several ? folders[i]->parent_path() : *folders[i];
    if (arguments.has("json")) {
      documents.push_back(std::move(finished.document));
    } else if (!arguments.has("quiet")) {
      write_out((i > 0 ? "\n" : "") + finished.text);
    }
  }
  if (arguments.has("json") && !documents.empty()) {
    const ordered_json all{{"schema", "kvsim.runs/1"}, {"runs", documents}};
    write_out(to_file_text(several ? all : documents.front()));
  }
  if (!missing.any()) return kDone;
  report_missing(missing, holds);
  return interrupted_status();
}

}  // namespace

Command run_command() {
  std::vector<Option> options = scenario_command_options(
      "results folder (kvsim-out/NAME); for several scenarios, its parent", "kvsim.run/1");
  options.push_back({"verbose", 'v', "", false,
                     "all tables and notes of the summary, not only the most important"});
  return {.name = "run",
          .summary =
              "simulate scenarios: static batches and services; memory, time, tables and figures",
          .usage =
              "kvsim run SCENARIO.json… [options]\n"
              "kvsim run --model NAME --gpu NAME [--rate R …] [options]",
          .examples =
              "kvsim run scenarios/zeromerge-a800.json\n"
              "kvsim run my.json --set /gpu=H200-141GB-SXM --set /batch=[1,2,4] --json\n"
              "kvsim run --model llama-3.1-8b --gpu h100 --method full,snapkv --budget 0.2 \\\n"
              "    --isl 32K --batch 1,8\n"
              "kvsim run --model llama-3.1-8b --gpu h100 --rate 2 --isl 1000-3000 --osl 200",
          .options = std::move(options),
          .run = run_run};
}

}  // namespace kvsim
