#include "sim/run/run_scenario.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/run/replay_job.hpp"
#include "sim/scenario/points/measured_points.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

/// Timeline samples of one point, and of a whole scenario (they bound memory and file sizes).
constexpr std::size_t kMaxSamples = 512;
constexpr std::size_t kMinSamples = 3;
constexpr std::size_t kAllSamples = 1U << 20U;
/// Points beyond which time is not explained term by term: about 30 KB per result.
constexpr std::size_t kMaxExplained = 1000;
/// Points beyond which the largest batch and the fewest GPUs are not determined.
constexpr std::size_t kMaxFitted = 100;
/// Samples of a replica of a service; and points beyond which gaps between tokens are not kept for
/// figures.
constexpr std::size_t kMaxServeSamples = 2048;
constexpr std::size_t kMaxWithGaps = 256;

void begin(const RunOptions& options, const std::string& what, double total = 0,
           const std::string& unit = "") {
  if (options.phase) options.phase(what, total, unit);
}

/// The beginning of error messages of a point.
std::string place_of(const Scenario& scenario, std::size_t i) {
  return fmt::format("{}: point \"{}\"", scenario.name, scenario.points[i].label);
}

/// Calls `run(i)` for every point and adds the point's name to its errors. Returns which points
/// were run: all of them, unless the run was stopped.
template <class Run>
std::vector<char> for_each_point(const Scenario& scenario, const RunOptions& options, Run run) {
  const std::size_t n = scenario.points.size();
  std::vector<char> ran(n, 0);
  std::atomic<std::size_t> done{0};
  begin(options, "simulating " + scenario.name, static_cast<double>(n), "points");
  parallel_for(n, options.threads, [&](std::size_t i) {
    if (options.stop && options.stop()) return;
    with_place(place_of(scenario, i), [&] { run(i); });
    ran[i] = 1;
    const auto finished = static_cast<double>(++done);
    if (options.progress) options.progress(finished / static_cast<double>(n));
  });
  return ran;
}

/// Keeps only those `results` that are set in `ran`.
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

/// The scenario without the points that did not run, and without their published values.
void keep_ran(const std::vector<char>& ran, Scenario& scenario) {
  std::vector<PublishedValue> published;
  for (PublishedValue& entry : scenario.published) {
    if (ran[entry.point] == 0) continue;
    entry.point = static_cast<std::size_t>(
        std::count(ran.begin(), ran.begin() + static_cast<std::ptrdiff_t>(entry.point), 1));
    published.push_back(std::move(entry));
  }
  scenario.published = std::move(published);
  keep_ran(ran, scenario.points);
}

/// "a, b and 7 more".
std::string missing_labels(const Scenario& scenario, const std::vector<char>& ran) {
  constexpr std::size_t kMax = 6;
  std::string text;
  std::size_t n = 0;
  for (std::size_t i = 0; i < ran.size(); ++i) {
    if (ran[i] != 0) continue;
    if (++n <= kMax) text += fmt::format("{}{}", n == 1 ? "" : ", ", scenario.points[i].label);
  }
  return n > kMax ? fmt::format("{} and {} more", text, n - kMax) : text;
}

/// Removes points that did not run from the results, the scenario and the report.
template <class Result>
void drop_missing(const std::vector<char>& ran, std::vector<Result>& results, Scenario& scenario,
                  RunReport& report) {
  report.missing = static_cast<std::size_t>(std::count(ran.begin(), ran.end(), 0));
  if (report.missing == 0) return;
  report.notes.push_back(fmt::format("interrupted: {} of {} points are missing: {}", report.missing,
                                     ran.size(), missing_labels(scenario, ran)));
  keep_ran(ran, results);
  keep_ran(ran, scenario);
}

template <class Result>
void put_notes(const ScenarioPoint& point, Result& result) {
  result.notes.insert(result.notes.begin(), point.notes.begin(), point.notes.end());
}

std::size_t samples_of(std::size_t points, std::size_t max) {
  return std::clamp(kAllSamples / std::max<std::size_t>(points, 1), kMinSamples, max);
}

std::vector<StaticResult> run_static_points(const Scenario& scenario, const RunOptions& how,
                                            std::vector<char>& ran) {
  const std::size_t n = scenario.points.size();
  const std::size_t samples = samples_of(n, kMaxSamples);
  const bool explains = n <= kMaxExplained;
  std::vector<StaticResult> results(n);
  ran = for_each_point(scenario, how, [&](std::size_t i) {
    const StaticSpec& spec = scenario.points[i].spec;
    results[i] =
        run_static(spec, {.max_samples = samples, .time_terms = explains, .intervals = explains});
    if (explains) find_oom_range(spec, results[i]);
    if (n <= kMaxFitted) results[i].fit_range = fit_range(spec, results[i].startup);
    put_notes(scenario.points[i], results[i]);
  });
  return results;
}

std::vector<ServeResult> run_serve_points(const Scenario& scenario, const RunOptions& how,
                                          std::vector<char>& ran) {
  const std::size_t n = scenario.points.size();
  const ServeOptions options{.max_samples = samples_of(n, kMaxServeSamples),
                             .keep_gaps = n <= kMaxWithGaps};
  std::vector<ServeResult> results(n);
  ran = for_each_point(scenario, how, [&](std::size_t i) {
    results[i] = run_serve(*scenario.points[i].serve, options);
    put_notes(scenario.points[i], results[i]);
  });
  return results;
}

/// Ends a replay that was stopped, from any thread.
struct Stopped {};

/// Runs the scenario's replay; abandons it, with a note, if the run was stopped.
void replay_trace(const Scenario& scenario, const RunOptions& how, RunReport& report) {
  const auto stopped = [&] { return how.stop && how.stop(); };
  ReplayOptions options;
  options.threads = how.threads;
  options.progress = [&](double done) {
    if (stopped()) throw Stopped{};
    if (how.progress) how.progress(done);
  };
  options.per_step = scenario.replay->per_step;
  options.per_head = scenario.replay->per_head || how.per_head;
  options.why_kept = how.why_kept;
  options.seed = scenario.seed;
  options.split = scenario.replay->split;
  options.layers = scenario.replay->sample.layers;
  options.heads = scenario.replay->sample.heads;
  options.steps = scenario.replay->sample.steps;
  const std::filesystem::path& trace = scenario.replay->trace;
  try {
    if (report.missing > 0 || stopped()) throw Stopped{};
    begin(how, "replaying " + trace.stem().string(),
          static_cast<double>(Trace::open(trace).info().n_layers), "layers");
    ReplayJob job = run_replay_job(trace, scenario.replay->methods, options);
    report.replay = std::move(job.result);
    report.skipped = std::move(job.skipped);
  } catch (const Stopped&) {
    report.replay_missing = true;
    report.notes.push_back(
        fmt::format("interrupted: the replay of {} is missing", trace.stem().string()));
  }
}

}  // namespace

void measure_missing_laws(Scenario& scenario, const RunOptions& how) {
  if (std::none_of(scenario.points.begin(), scenario.points.end(),
                   [](const ScenarioPoint& point) { return !point.measured_on.empty(); })) {
    return;
  }
  begin(how, "measuring size laws of " + scenario.name);
  ReplayOptions options;
  options.threads = how.threads;
  options.progress = how.progress;
  measure_laws(scenario, options);
}

RunReport run_scenario(Scenario& scenario, const RunOptions& how) {
  RunReport report;
  report.scenario = &scenario;
  measure_missing_laws(scenario, how);
  const bool serves = scenario.kind == "serve";
  std::vector<char> ran;
  if (serves) {
    report.serves = run_serve_points(scenario, how, ran);
    drop_missing(ran, report.serves, scenario, report);
    for (std::size_t i = 0; i < scenario.points.size() && i < kMaxWithGaps; ++i) {
      report.iterations.push_back(with_place(place_of(scenario, i), [&] {
        return mean_iteration(*scenario.points[i].serve, report.serves[i]);
      }));
    }
    report.serve_intervals.resize(report.iterations.size());
    // A single point distributes its own runs over the threads instead.
    const int within = report.iterations.size() == 1 ? how.threads : 1;
    parallel_for(report.iterations.size(), how.threads, [&](std::size_t i) {
      report.serve_intervals[i] = with_place(place_of(scenario, i), [&] {
        return serve_intervals(*scenario.points[i].serve, report.serves[i], report.iterations[i],
                               within);
      });
      if (report.serve_intervals[i]) {
        // For a service, not for a static run.
        ExplainedStep& step = report.iterations[i]->step;
        step.interval = {.low = step.time * report.serve_intervals[i]->faster.run.decode,
                         .high = step.time * report.serve_intervals[i]->slower.run.decode};
      }
    });
    if (scenario.points.size() > kMaxWithGaps) {
      report.notes.push_back(fmt::format(
          "no figure shows gaps between tokens or cache memory under load: {} points, more than {}",
          scenario.points.size(), kMaxWithGaps));
    }
  } else {
    report.results = run_static_points(scenario, how, ran);
    drop_missing(ran, report.results, scenario, report);
  }
  if (!serves && scenario.points.size() > kMaxExplained) {
    report.notes.push_back(
        fmt::format("times are not explained term by term and no figure has an interval: {} "
                    "points, more than {}",
                    scenario.points.size(), kMaxExplained));
  }
  if (scenario.replay) replay_trace(scenario, how, report);
  return report;
}

}  // namespace kvsim
