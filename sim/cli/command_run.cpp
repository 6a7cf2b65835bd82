#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/interrupt.hpp"
#include "sim/cli/overrides.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/replay_job.hpp"
#include "sim/cli/scenario_flags.hpp"
#include "sim/cli/scenario_sweep_job.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/terminal_style.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/report/progress.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/results_folder.hpp"
#include "sim/report/run_summary.hpp"
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

/// `run(i)` of every point on `threads` threads, its complaints told with the point's name. Returns
/// which were run: all of them, unless an interrupt was taken down.
template <class Run>
std::vector<char> for_each_point(const Scenario& scenario, int threads, bool quiet, Run run) {
  const std::size_t n = scenario.points.size();
  std::vector<char> ran(n, 0);
  std::atomic<std::size_t> done{0};
  Progress progress{"simulating " + scenario.name, static_cast<double>(n), "points"};
  parallel_for(n, threads, [&](std::size_t i) {
    if (StopOnInterrupt::asked()) return;
    try {
      run(i);
      ran[i] = 1;
    } catch (const InputError& error) {
      throw InputError{fmt::format("{}: point \"{}\": {}", scenario.name, scenario.points[i].label,
                                   error.what())};
    }
    const auto finished = static_cast<double>(++done);
    if (!quiet) progress.update(finished / static_cast<double>(n));
  });
  progress.finish();
  return ran;
}

/// Leaves those of `results` that `ran` says.
template <class Result>
void keep_ran(const std::vector<char>& ran, std::vector<Result>& results) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ran.size(); ++i) {
    if (ran[i] == 0) continue;
    if (kept != i) results[kept] = std::move(results[i]);
    ++kept;
  }
  results.erase(results.begin() + static_cast<std::ptrdiff_t>(kept), results.end());
}

/// The scenario without the points that did not run, and without what was published of them.
void keep_ran(const std::vector<char>& ran, Scenario& scenario) {
  std::vector<PublishedFigure> published;
  for (PublishedFigure& figure : scenario.published) {
    if (ran[figure.point] == 0) continue;
    figure.point = static_cast<std::size_t>(
        std::count(ran.begin(), ran.begin() + static_cast<std::ptrdiff_t>(figure.point), 1));
    published.push_back(std::move(figure));
  }
  scenario.published = std::move(published);
  keep_ran(ran, scenario.points);
}

template <class Result>
void put_notes(const ScenarioPoint& point, Result& result) {
  result.notes.insert(result.notes.begin(), point.notes.begin(), point.notes.end());
}

std::size_t samples_of(std::size_t points, std::size_t most) {
  return std::clamp(kAllSamples / std::max<std::size_t>(points, 1), kFewestSamples, most);
}

std::vector<StaticResult> run_static_points(const Scenario& scenario, int threads, bool quiet,
                                            std::vector<char>& ran) {
  const std::size_t n = scenario.points.size();
  const std::size_t samples = samples_of(n, kMostSamples);
  const bool explains = n <= kMostExplained;
  std::vector<StaticResult> results(n);
  ran = for_each_point(scenario, threads, quiet, [&](std::size_t i) {
    results[i] = run_static(scenario.points[i].spec, {.max_samples = samples,
                                                      .time_terms = explains,
                                                      .intervals = explains,
                                                      .fit_range = n <= kMostFitted});
    put_notes(scenario.points[i], results[i]);
  });
  return results;
}

std::vector<ServeResult> run_serve_points(const Scenario& scenario, int threads, bool quiet,
                                          std::vector<char>& ran) {
  const std::size_t n = scenario.points.size();
  const ServeOptions options{.max_samples = samples_of(n, kMostServeSamples),
                             .keep_gaps = n <= kMostWithGaps};
  std::vector<ServeResult> results(n);
  ran = for_each_point(scenario, threads, quiet, [&](std::size_t i) {
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
  std::size_t missing = 0;  // points that an interrupt kept from running
};

/// "a, b and 7 more".
std::string missing_labels(const Scenario& scenario, const std::vector<char>& ran) {
  constexpr std::size_t kMost = 6;
  std::string text;
  std::size_t n = 0;
  for (std::size_t i = 0; i < ran.size(); ++i) {
    if (ran[i] != 0) continue;
    if (++n <= kMost) {
      text += fmt::format("{}{}", n == 1 ? "" : ", ", scenario.points[i].label);
    }
  }
  return n > kMost ? fmt::format("{} and {} more", text, n - kMost) : text;
}

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
  std::vector<char> ran;
  std::size_t missing = 0;
  const auto drop_missing = [&](auto& results) {
    missing = static_cast<std::size_t>(std::count(ran.begin(), ran.end(), 0));
    if (missing == 0) return;
    report.notes.push_back(fmt::format("interrupted: {} of {} points are missing: {}", missing,
                                       ran.size(), missing_labels(scenario, ran)));
    keep_ran(ran, results);
    keep_ran(ran, scenario);
  };
  std::optional<StopOnInterrupt> stops{std::in_place};
  const auto begun = std::chrono::steady_clock::now();
  if (serves) {
    report.serves = run_serve_points(scenario, threads, quiet, ran);
    drop_missing(report.serves);
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
    report.results = run_static_points(scenario, threads, quiet, ran);
    drop_missing(report.results);
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
  stops.reset();  // while files are written an interrupt ends the program, which takes them away
  if (missing > 0 && missing == ran.size()) return {nullptr, "", missing};
  if (!serves && scenario.points.size() > kMostExplained) {
    report.notes.push_back(
        fmt::format("times are not explained term by term and no figure has an interval: {} "
                    "points, more than {}",
                    scenario.points.size(), kMostExplained));
  }
  if (scenario.replay && missing == 0) {
    Progress progress{"replaying " + scenario.replay->trace.stem().string()};
    ReplayOptions options;
    options.threads = threads;
    options.per_step = scenario.replay->per_step;
    options.per_head = scenario.replay->per_head;
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
                                {.figures = !none && !arguments.has("no-figures"), .gnuplot = {}});
  }
  if (arguments.has("json")) {
    // The clock is for the reader at hand: files hold none.
    if (serves) report.wall_s = wall.count();
    return {run_document(report), "", missing};
  }
  return {nullptr, run_summary(report, written ? &*written : nullptr, terminal_style()), missing};
}

/// What an interrupt left, and how to have the rest.
void tell_missing(std::size_t missing, const std::optional<fs::path>& folder) {
  write_err(fmt::format(
      "kvsim: {} point{} missing{}; all of them: {}\n", missing, missing == 1 ? " is" : "s are",
      folder ? fmt::format("; {} holds the others", folder->string()) : "", command_line()));
}

/// What came of one scenario, printed.
int run_alone(const Arguments& arguments, Scenario scenario) {
  const std::optional<fs::path> folder = folder_of(arguments, scenario, false);
  if (folder) check_results_folder(*folder);
  const Finished finished = run_scenario(arguments, scenario, folder);
  if (finished.document.is_null() && finished.text.empty()) {
    // Nothing ran.
  } else if (arguments.has("json")) {
    write_out(to_file_text(finished.document));
  } else if (!arguments.has("quiet")) {
    write_out(finished.text);
  }
  if (finished.missing == 0) return kDone;
  tell_missing(finished.missing, folder);
  return interrupted_status();
}

int run_run(const Arguments& arguments) {
  if (asks_by_options(arguments)) {
    const ordered_json document = scenario_by_options(arguments, false);
    Scenario scenario = read_scenario_by_options(document);
    if (arguments.has("print-scenario")) {
      write_out(to_file_text(document));
      return kDone;
    }
    return run_alone(arguments, std::move(scenario));
  }
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
  std::size_t missing = 0;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    if (StopOnInterrupt::asked()) {
      missing += scenarios[i].points.size();
      continue;
    }
    Finished finished = run_scenario(arguments, scenarios[i], folders[i]);
    missing += finished.missing;
    if (finished.document.is_null() && finished.text.empty()) continue;  // nothing ran
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
  if (missing == 0) return kDone;
  tell_missing(missing, folders.front());
  return interrupted_status();
}

}  // namespace

Command run_command() {
  std::vector<Option> options{
      {"out", 'o', "DIR", false,
       "results folder (kvsim-out/NAME); of several scenarios, its parent",
       Option::Values::kFolders},
      {"set", 's', "/KEY=VALUE", true,
       "override a key of the scenario: JSON pointer, JSON value or a word"},
      {"json", 0, "", false,
       "print JSON (schema kvsim.run/1) and nothing else; no folder without -o"},
      {"no-figures", 0, "", false, "leave figures out of the results folder"},
      {"threads", 'j', "N", false, "threads; 0: the machine's; no result depends on it"},
      {"quiet", 'q', "", false, "no summary, no progress"}};
  for (Option& option : scenario_options()) options.push_back(std::move(option));
  return {.name = "run",
          .summary =
              "simulate scenarios: static batches and services; memory, time, tables and figures",
          .usage =
              "kvsim run SCENARIO.json… [options]\n"
              "kvsim run --model NAME --gpu NAME [--method NAME] [--budget B] [options]",
          .examples =
              "kvsim run scenarios/zeromerge-a800.json\n"
              "kvsim run my.json --set /gpu=H200-141GB-SXM --set /batch=[1,2,4] --json\n"
              "kvsim run --model llama-3.1-8b --gpu h100-80gb-sxm --method full,snapkv \\\n"
              "    --budget 0.2 --prompt 32K --batch 1,8",
          .options = std::move(options),
          .run = run_run};
}

}  // namespace kvsim
