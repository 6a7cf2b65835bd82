#include "sim/cli/calibrate/calibrate_bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "sim/bench/bench_fit.hpp"
#include "sim/bench/bench_run.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::size_t kLongestFile = 1U << 30U;
constexpr std::int64_t kMaxRequests = 20'000;  // simulated per run

/// A measured value of a run, and the accessor of its prediction.
struct Compared {
  std::string_view metric, stat;
  double measured = 0;
  double (*of)(const ServeResult&) = nullptr;
};

std::vector<Compared> compared(const BenchRun& run) {
  std::vector<Compared> out;
  const auto put = [&](std::string_view metric, std::string_view stat,
                       const std::optional<double>& measured, double (*of)(const ServeResult&)) {
    if (measured && *measured > 0) out.push_back({metric, stat, *measured, of});
  };
  using R = const ServeResult&;
  if (run.ttft.median) {
    put("TTFT", "median", run.ttft.median, [](R r) { return r.ttft.p50; });
  } else {
    put("TTFT", "mean", run.ttft.mean, [](R r) { return r.ttft.mean; });
  }
  if (run.tpot.mean) {
    put("TPOT", "mean", run.tpot.mean, [](R r) { return r.tpot.mean; });
  } else {
    put("TPOT", "median", run.tpot.median, [](R r) { return r.tpot.p50; });
  }
  put("E2E", "mean", run.e2e.mean, [](R r) { return r.e2e.mean; });
  put("throughput", "tok/s", run.output_tok_s, [](R r) { return r.output_tok_s; });
  return out;
}

/// Whether the client reached its request rate, so that a limit on requests in flight did not delay
/// it.
bool keeps_rate(const BenchRun& run) {
  constexpr double kKept = 0.95;
  return run.rate && (!run.users || !run.request_s || *run.request_s >= kKept * *run.rate);
}

ordered_json arrivals_of(const BenchRun& run) {
  constexpr double kMinCv = 0.01;
  if (!keeps_rate(run)) {
    const std::int64_t all = std::min(run.requests.value_or(1), kMaxRequests);
    return {{"kind", "closed"}, {"users", run.users.value_or(all)}, {"shared", true}};
  }
  if (run.gap_cv == 1) return {{"kind", "poisson"}, {"rate", *run.rate}};
  if (run.gap_cv < kMinCv) return {{"kind", "fixed"}, {"rate", *run.rate}};
  return {{"kind", "gamma"}, {"rate", *run.rate}, {"cv", run.gap_cv}};
}

/// The scenario with the load of a run instead of the scenario's load.
nlohmann::json at_load(nlohmann::json document, const BenchRun& run, const fs::path& file) {
  if (!run.states_load || !document.is_object() || !document.contains("requests")) return document;
  nlohmann::json& requests = document["requests"];
  if (!requests.is_object()) return document;
  for (const char* key : {"sessions", "agents"}) {
    if (keeps_rate(run) && requests.contains(key)) {
      throw InputError{fmt::format("{}: /requests/{}", file.string(), key),
                       "single requests: the rate of a benchmark counts requests", key};
    }
  }
  requests["arrivals"] = arrivals_of(run);
  requests.erase("rate_scale");
  if (keeps_rate(run)) requests.erase("think");
  if (run.requests && *run.requests > 0) {
    requests[requests.contains("file") ? "limit" : "count"] = std::min(*run.requests, kMaxRequests);
  }
  return document;
}

/// A note if the simulated load differs from the load in the file.
std::optional<std::string> load_note(const BenchRun& run) {
  if (!run.rate || !run.users) return std::nullopt;
  if (keeps_rate(run)) {
    return fmt::format("{}: {:g} requests/s and at most {} at once: simulated without the limit",
                       run.place, *run.rate, *run.users);
  }
  return fmt::format(
      "{}: {:g} requests/s and at most {} at once, {:.3g} requests/s reached: simulated as {} "
      "users",
      run.place, *run.rate, *run.users, *run.request_s, *run.users);
}

std::string load_text(const BenchRun& run) {
  if (!run.states_load) return "as the scenario";
  if (keeps_rate(run)) return fmt::format("{:g} req/s", *run.rate);
  if (run.users) return fmt::format("{} users", *run.users);
  return "all at once";
}

struct Point {
  BenchRun run;
  std::vector<Compared> values;
  std::shared_ptr<Scenario> scenario;  // owns the objects that the spec points to
  ServeSpec spec;
};

Point point_of(BenchRun run, const fs::path& file) {
  Point out{.run = std::move(run), .values = {}, .scenario = nullptr, .spec = {}};
  out.values = compared(out.run);
  if (out.values.empty()) {
    throw InputError{out.run.place,
                     "a mean or median TTFT or TPOT, a mean E2E or a rate of output tokens",
                     "none of these"};
  }
  out.scenario = std::make_shared<Scenario>(
      scenario_of(at_load(scenario_document(file, {}), out.run, file), file,
                  fmt::format("{} at the load of {}", file.string(), out.run.place), true));
  if (out.scenario->kind != "serve") {
    throw InputError{file.string() + ": /kind", "\"serve\": a benchmark measures a service",
                     fmt::format("\"{}\"", out.scenario->kind)};
  }
  if (out.scenario->points.size() != 1) {
    throw InputError{file.string(), "one point: the service that was measured",
                     fmt::format("{}", out.scenario->points.size())};
  }
  out.spec = *out.scenario->points.front().serve;
  out.spec.calibrated.reset();
  return out;
}

/// A note if the benchmark's mean lengths differ from the scenario's.
std::optional<std::string> other_lengths(const Point& point) {
  constexpr double kAlike = 1.25;
  double prompts = 0, outputs = 0;
  for (const Request& r : point.spec.requests->requests) {
    prompts += r.prompt_tokens;
    outputs += r.output_tokens;
  }
  const auto n = static_cast<double>(point.spec.requests->requests.size());
  const auto differ = [&](const std::optional<double>& measured, double here) {
    return measured && *measured > 0 && here > 0 &&
           (*measured > kAlike * here || here > kAlike * *measured);
  };
  const bool inputs = differ(point.run.input_tokens, prompts / n);
  if (!inputs && !differ(point.run.output_tokens, outputs / n)) return std::nullopt;
  return fmt::format(
      "{}: {} tokens per request are {:.0f} on average, but {:.0f} in the scenario; is it the same "
      "workload?",
      point.run.place, inputs ? "prompt" : "output",
      inputs ? *point.run.input_tokens : *point.run.output_tokens,
      inputs ? prompts / n : outputs / n);
}

ordered_json overrides_of(const ServiceCalibration& of) {
  const auto rounded = [](double value) {
    constexpr double kDigits = 1e6;
    return std::round(value * kDigits) / kDigits;
  };
  constexpr double kNano = 1e9;
  return {{"bench",
           {{"decode_factor", rounded(of.times.decode)},
            {"prompt_factor", rounded(of.times.prefill)},
            {"request_s", rounded(of.times.request.count())},
            {"sequence_s", std::round(of.times.sequence.count() * kNano) / kNano},
            {"ttft_error", rounded(of.ttft_error)},
            {"tpot_error", rounded(of.tpot_error)},
            {"e2e_error", rounded(of.e2e_error)},
            {"throughput_error", rounded(of.throughput_error)},
            {"runs", of.runs}}}};
}

double error_percent(double predicted, double measured) {
  constexpr double kPercent = 100;
  return kPercent * (predicted - measured) / measured;
}

std::string shown(std::string_view metric, double value) {
  if (metric == "throughput") return fmt::format("{:.4g} tok/s", value);
  return fmt::format("{:.4g} ms", 1e3 * value);
}

std::string table_of(const std::vector<Point>& points, const BenchFit& fit, std::size_t width) {
  Table table{{{"load", Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"measured"},
               {"before", Table::Align::kRight, "error %"},
               {"before", Table::Align::kRight, "width"},
               {"after", Table::Align::kRight, "error %"},
               {"after", Table::Align::kRight, "width"}}};
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t k = 0; k < points[i].values.size(); ++k) {
      const Compared& value = points[i].values[k];
      const BenchOutcome& of = fit.outcomes[i][k];
      const auto cells = [&](const BenchOutcome::Side& side) {
        if (side.predicted <= 0) return std::pair<std::string, std::string>{"-", "-"};
        return std::pair{fmt::format("{:+.1f}", error_percent(side.predicted, value.measured)),
                         fmt::format("x{:.2f}", side.high / side.low)};
      };
      const auto [before, before_width] = cells(of.before);
      const auto [after, after_width] = cells(of.after);
      table.add_row({load_text(points[i].run), fmt::format("{} {}", value.metric, value.stat),
                     shown(value.metric, value.measured), before, before_width, after,
                     after_width});
    }
  }
  return table.str(width);
}

ordered_json json_of(const std::vector<Point>& points, const BenchFit& fit,
                     const std::vector<std::string>& notes) {
  ordered_json runs = ordered_json::array();
  for (std::size_t i = 0; i < points.size(); ++i) {
    ordered_json values = ordered_json::array();
    for (std::size_t k = 0; k < points[i].values.size(); ++k) {
      const auto side = [](const BenchOutcome::Side& of) {
        return ordered_json{{"predicted", of.predicted}, {"low", of.low}, {"high", of.high}};
      };
      values.push_back({{"metric", points[i].values[k].metric},
                        {"stat", points[i].values[k].stat},
                        {"measured", points[i].values[k].measured},
                        {"before", side(fit.outcomes[i][k].before)},
                        {"after", side(fit.outcomes[i][k].after)}});
    }
    runs.push_back({{"place", points[i].run.place},
                    {"tool", points[i].run.tool},
                    {"load", load_text(points[i].run)},
                    {"values", std::move(values)}});
  }
  return {{"schema", "kvsim.calibrate-bench/1"},
          {"overrides", overrides_of(fit.calibration)},
          {"runs", std::move(runs)},
          {"notes", notes}};
}

}  // namespace

int calibrate_from_bench(const Arguments& arguments) {
  arguments.expect_words(1, 10'000, "more files of the benchmark, then SCENARIO");
  std::vector<std::string> files = arguments.values("from-bench");
  files.insert(files.end(), arguments.words().begin(), arguments.words().end() - 1);
  const fs::path scenario{arguments.words().back()};
  if (const auto out = arguments.value("out");
      out && fs::exists(*out) && fs::exists(scenario) && fs::equivalent(fs::path{*out}, scenario)) {
    throw InputError{"-o " + *out, "a file other than the scenario", "the scenario"};
  }
  constexpr int kMaxThreads = 1024;
  const int threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  std::vector<Point> points;
  for (const std::string& file : files) {
    for (BenchRun& run : parse_bench(read_text_file(file, kLongestFile), file)) {
      points.push_back(point_of(std::move(run), scenario));
    }
  }
  const Point& first = points.front();
  const ServeResult start = run_serve(first.spec);
  const ServeResiduals residuals{first.spec, start, mean_iteration(first.spec, start)};
  if (!residuals.known()) {
    throw InputError{scenario.string(),
                     "an engine whose times have intervals (a stack such as \"vllm\", with a "
                     "calibration of kernels), and requests that it serves",
                     fmt::format("stack \"{}\"", first.spec.stack->name)};
  }
  std::vector<BenchLoad> loads;
  std::vector<std::string> notes;
  for (const Point& point : points) {
    BenchLoad& load = loads.emplace_back();
    for (const Compared& value : point.values) {
      load.values.push_back({value.metric, value.measured});
    }
    load.simulate = [&point](const TimeFactors& factors) {
      const ServeResult result =
          run_serve(point.spec, {.max_samples = 2, .keep_gaps = false, .factors = factors});
      std::vector<double> out;
      for (const Compared& value : point.values) {
        out.push_back(result.completed > 0 ? value.of(result) : 0);
      }
      return out;
    };
    if (auto note = failed_note(point.run)) notes.push_back(*std::move(note));
    if (auto note = other_lengths(point)) notes.push_back(*std::move(note));
    if (auto note = load_note(point.run)) notes.push_back(*std::move(note));
  }
  const BenchFit fit = fit_bench(loads,
                                 {.ttft = residuals.find("TTFT"),
                                  .tpot = residuals.find("TPOT"),
                                  .e2e = residuals.find("E2E"),
                                  .throughput = residuals.find("throughput")},
                                 threads);
  if (const auto out = arguments.value("out")) {
    write_file_atomically(*out, to_file_text(overrides_of(fit.calibration)));
  }
  for (const std::string& note : notes) write_err(clean_text("kvsim: " + note) + "\n");
  if (arguments.has("json")) {
    write_out(to_file_text(json_of(points, fit, notes)));
  } else if (!arguments.has("quiet")) {
    const TimeFactors& times = fit.calibration.times;
    std::string text = table_of(points, fit, terminal_width());
    text += fmt::format(
        "decoding takes x{:.3f} of the predicted time, prompts x{:.3f}; {:+.1f} ms per request, "
        "{:+.1f} us per decoding sequence and step\n",
        times.decode, times.prefill, 1e3 * times.request.count(), 1e6 * times.sequence.count());
    if (const auto out = arguments.value("out")) {
      text += fmt::format("wrote {}: name it in \"extends\" of a scenario\n", *out);
    }
    write_out(text);
  }
  return kDone;
}

}  // namespace kvsim
