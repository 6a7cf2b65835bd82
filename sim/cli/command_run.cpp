#include <chrono>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/overrides.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/scenario_sweep_job.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/writes_page.hpp"
#include "sim/report/progress.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/results_folder.hpp"
#include "sim/report/run_scenario.hpp"
#include "sim/report/table.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;

/// Where the results of a scenario go; nullopt where none are written.
std::optional<fs::path> folder_of(const Arguments& arguments, const Scenario& scenario,
                                  bool several) {
  if (const auto out = arguments.value("out")) {
    return several ? fs::path{*out} / scenario.name : fs::path{*out};
  }
  if (arguments.has("json")) return std::nullopt;
  return fs::path{"kvsim-out"} / scenario.name;
}

struct Finished {
  ordered_json document;
  std::string text;
};

Finished run_one(const Arguments& arguments, Scenario& scenario,
                 const std::optional<fs::path>& folder) {
  const bool quiet = arguments.has("quiet");
  const int threads = static_cast<int>(arguments.integer("threads", 0, kMostThreads).value_or(0));
  std::optional<Progress> bar;
  // The page maps what each head keeps; documents have it where the scenario asks for it.
  RunOptions how{.threads = threads, .per_head = folder && writes_page(arguments)};
  if (!quiet) {
    how.phase = [&](const std::string& what, double total, const std::string& unit) {
      bar.emplace(what, total, unit);
    };
    how.progress = [&](double done) { bar->update(done); };
  }
  const auto begun = std::chrono::steady_clock::now();
  RunReport report = run_scenario(scenario, how);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
  bar.reset();
  std::optional<ResultsFolder> written;
  if (folder) {
    const bool none = scenario.figures && scenario.figures->empty();
    written = write_run_results(report, *folder,
                                {.figures = !none && !arguments.has("no-figures"),
                                 .gnuplot = {},
                                 .page = writes_page(arguments)});
  }
  if (report.replay && !scenario.replay->per_head) {
    for (ReplayMethod& method : report.replay->methods) method.heads.clear();
  }
  if (arguments.has("json")) {
    // The clock is for the reader at hand: files hold none.
    if (scenario.kind == "serve") report.wall_s = wall.count();
    return {run_document(report), ""};
  }
  return {nullptr, run_summary(report, written ? &*written : nullptr, terminal_width())};
}

int run_run(const Arguments& arguments) {
  arguments.expect_words(1, SIZE_MAX, "one or more scenario files");
  const std::vector<Override> overrides = read_overrides(arguments);
  const bool several = arguments.words().size() > 1;
  for (const std::string& file : arguments.words()) {
    const auto document = scenario_document(file, overrides);
    const auto has = [&](const char* key) {
      return document.contains(key) && !document.at(key).is_null();
    };
    if (has("sweep") && has("plan")) {
      throw InputError{
          fmt::format("{}: has a sweep and a plan; one of them is to be taken away "
                      "(--set /plan=null)",
                      file)};
    }
    if (!has("sweep") && !has("plan")) continue;
    if (!several) return has("plan") ? run_plan_job(arguments) : run_scenario_sweep(arguments);
    throw InputError{
        fmt::format("{}: has a {}, and is to be run alone", file, has("plan") ? "plan" : "sweep")};
  }
  // All are read before the first is run: a slip in the last one costs no time.
  std::vector<Scenario> scenarios;
  std::vector<std::optional<fs::path>> folders;
  std::set<fs::path> taken;
  for (const std::string& file : arguments.words()) {
    scenarios.push_back(read_scenario(file, overrides));
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
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    Finished finished = run_one(arguments, scenarios[i], folders[i]);
    if (arguments.has("json")) {
      documents.push_back(std::move(finished.document));
    } else if (!arguments.has("quiet")) {
      write_out((i > 0 ? "\n" : "") + finished.text);
    }
  }
  if (arguments.has("json")) {
    const ordered_json all{{"schema", "kvsim.runs/1"}, {"runs", documents}};
    write_out(to_file_text(several ? all : documents.front()));
  }
  return kDone;
}

}  // namespace

Command run_command() {
  return {.name = "run",
          .summary =
              "simulate scenarios: static batches and services; memory, time, tables and figures",
          .usage = "kvsim run SCENARIO.json… [options]",
          .examples =
              "kvsim run scenarios/zeromerge-a800.json\n"
              "kvsim run my.json --set /gpu=H200-141GB-SXM --set /batch=[1,2,4] --json",
          .options = {{"out", 'o', "DIR", false,
                       "results folder (kvsim-out/NAME); of several scenarios, its parent"},
                      {"set", 's', "/KEY=VALUE", true,
                       "override a key of the scenario: JSON pointer, JSON value or a word"},
                      {"json", 0, "", false,
                       "print JSON (schema kvsim.run/1) and nothing else; no folder without -o"},
                      {"no-figures", 0, "", false,
                       "leave figures and report.html out of the results folder"},
                      {"no-report", 0, "", false, "leave report.html out of it"},
                      {"threads", 'j', "N", false,
                       "threads; 0: the machine's; no result depends on it"},
                      {"quiet", 'q', "", false, "no summary, no progress"}},
          .run = run_run};
}

}  // namespace kvsim
