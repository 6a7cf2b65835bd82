#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/overrides.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/replay_job.hpp"
#include "sim/cli/scenario_sweep_job.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/writes_page.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/report/progress.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/results_folder.hpp"
#include "sim/report/table.hpp"
#include "sim/scenario/measured_points.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/serve_run.hpp"
#include "sim/serve/static_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;
/// Timeline samples of one point, and of a whole scenario (they bound memory and file sizes).
constexpr std::size_t kMostSamples = 512;
constexpr std::size_t kFewestSamples = 3;
constexpr std::size_t kAllSamples = 1U << 20U;
/// Points beyond which time is not explained term by term: some 30 KB of a result each.
constexpr std::size_t kMostExplained = 1000;
/// Points beyond which the largest batch and the fewest GPUs are not searched for.
constexpr std::size_t kMostFitted = 100;
/// Of a replica of a service; and points beyond which gaps between tokens are not kept for figures.
constexpr std::size_t kMostServeSamples = 2048;
constexpr std::size_t kMostWithGaps = 256;

/// `run(i)` of every point on `threads` threads, its complaints told with the point's name.
template <class Run>
void for_each_point(const Scenario& scenario, int threads, bool quiet, Run run) {
  const std::size_t n = scenario.points.size();
  std::atomic<std::size_t> done{0};
  Progress progress{"simulating " + scenario.name, static_cast<double>(n), "points"};
  parallel_for(n, threads, [&](std::size_t i) {
    try {
      run(i);
    } catch (const InputError& error) {
      throw InputError{fmt::format("{}: point \"{}\": {}", scenario.name, scenario.points[i].label,
                                   error.what())};
    }
    const auto finished = static_cast<double>(++done);
    if (!quiet) progress.update(finished / static_cast<double>(n));
  });
  progress.finish();
}

template <class Result>
void put_notes(const ScenarioPoint& point, Result& result) {
  result.notes.insert(result.notes.begin(), point.notes.begin(), point.notes.end());
}

std::size_t samples_of(std::size_t points, std::size_t most) {
  return std::clamp(kAllSamples / std::max<std::size_t>(points, 1), kFewestSamples, most);
}

std::vector<StaticResult> run_static_points(const Scenario& scenario, int threads, bool quiet) {
  const std::size_t n = scenario.points.size();
  const std::size_t samples = samples_of(n, kMostSamples);
  const bool explains = n <= kMostExplained;
  std::vector<StaticResult> results(n);
  for_each_point(scenario, threads, quiet, [&](std::size_t i) {
    results[i] = run_static(scenario.points[i].spec, {.max_samples = samples,
                                                      .time_terms = explains,
                                                      .intervals = explains,
                                                      .fit_range = n <= kMostFitted});
    put_notes(scenario.points[i], results[i]);
  });
  return results;
}

std::vector<ServeResult> run_serve_points(const Scenario& scenario, int threads, bool quiet) {
  const std::size_t n = scenario.points.size();
  const ServeOptions options{.max_samples = samples_of(n, kMostServeSamples),
                             .keep_gaps = n <= kMostWithGaps};
  std::vector<ServeResult> results(n);
  for_each_point(scenario, threads, quiet, [&](std::size_t i) {
    results[i] = run_serve(*scenario.points[i].serve, options);
    put_notes(scenario.points[i], results[i]);
  });
  return results;
}

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

Finished run_scenario(const Arguments& arguments, Scenario& scenario,
                      const std::optional<fs::path>& folder) {
  const bool quiet = arguments.has("quiet");
  const int threads = static_cast<int>(arguments.integer("threads", 0, kMostThreads).value_or(0));
  RunReport report;
  report.scenario = &scenario;
  report.notes = scenario.notes;
  if (std::any_of(scenario.points.begin(), scenario.points.end(),
                  [](const ScenarioPoint& point) { return !point.measured_on.empty(); })) {
    Progress progress{"measuring size laws of " + scenario.name};
    ReplayOptions options;
    options.threads = threads;
    if (!quiet) options.progress = [&](double done) { progress.update(done); };
    measure_laws(scenario, options);
  }
  const bool serves = scenario.kind == "serve";
  const auto begun = std::chrono::steady_clock::now();
  if (serves) {
    report.serves = run_serve_points(scenario, threads, quiet);
    for (std::size_t i = 0; i < scenario.points.size() && i < kMostWithGaps; ++i) {
      report.iterations.push_back(mean_iteration(*scenario.points[i].serve, report.serves[i]));
    }
    report.serve_intervals.resize(report.iterations.size());
    parallel_for(report.iterations.size(), threads, [&](std::size_t i) {
      report.serve_intervals[i] =
          serve_intervals(*scenario.points[i].serve, report.serves[i], report.iterations[i]);
    });
    if (scenario.points.size() > kMostWithGaps) {
      report.notes.push_back(
          fmt::format("no figure shows gaps between tokens or what the cache "
                      "takes under load: {} points, more than {}",
                      scenario.points.size(), kMostWithGaps));
    }
  } else {
    report.results = run_static_points(scenario, threads, quiet);
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
  if (!serves && scenario.points.size() > kMostExplained) {
    report.notes.push_back(
        fmt::format("times are not explained term by term and no figure has an interval: {} "
                    "points, more than {}",
                    scenario.points.size(), kMostExplained));
  }
  if (scenario.replay) {
    Progress progress{"replaying " + scenario.replay->trace.stem().string()};
    ReplayOptions options;
    options.threads = threads;
    options.per_step = scenario.replay->per_step;
    // The page maps what each head keeps; documents have it where the scenario asks for it.
    options.per_head = scenario.replay->per_head || (folder && writes_page(arguments));
    options.seed = scenario.seed;
    if (!quiet) options.progress = [&](double done) { progress.update(done); };
    ReplayJob job = run_replay_job(scenario.replay->trace, scenario.replay->methods, options);
    report.replay = std::move(job.result);
    report.skipped = std::move(job.skipped);
  }
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
    if (serves) report.wall_s = wall.count();
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
    Finished finished = run_scenario(arguments, scenarios[i], folders[i]);
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
