#include "sim/bench/bench_compare.hpp"

#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "sim/bench/bench_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr double kSameLoad = 0.02;  // relative, for rates

std::optional<double> number(const Field& object, std::string_view key, std::string_view stat) {
  const auto value = object.find(key);
  if (!value) return std::nullopt;
  if (value->is_number()) return value->number(0, 1e300);
  if (!value->is_object() || stat.empty()) return std::nullopt;
  const auto part = value->find(stat);
  return part ? std::optional{part->number(0, 1e300)} : std::nullopt;
}

/// Whether a point, or the arrivals of its scenario, has the load of a run.
bool has_load(const Field& point, const BenchRun& run) {
  if (run.rate) {
    const auto rate = number(point, "rate", "");
    return rate && std::abs(*rate - *run.rate) <= kSameLoad * *run.rate;
  }
  const auto users = number(point, "users", "");
  return run.users && users && std::llround(*users) == *run.users;
}

/// Returns the arrivals of the scenario from which a result was made; nullopt if it has none.
std::optional<Field> arrivals_of(const Field& root) {
  std::optional<Field> at{root};
  for (const char* key : {"scenario", "echo", "requests", "arrivals"}) {
    if (!at || !at->is_object()) return std::nullopt;
    at = at->find(key);
  }
  return at && at->is_object() ? at : std::nullopt;
}

std::string load_text(const BenchRun& run) {
  if (!run.states_load) return "as the result";
  if (run.rate) return fmt::format("{:g} req/s", *run.rate);
  if (run.users) return fmt::format("{} users", *run.users);
  return "all at once";
}

BenchComparison compared(const Field& point, const BenchRun& run) {
  BenchComparison out{.place = run.place,
                      .tool = run.tool,
                      .load = load_text(run),
                      .point = point.has("label") ? point.at("label").string() : "",
                      .values = {},
                      .notes = {}};
  const auto put = [&](std::string_view metric, std::string_view stat,
                       const std::optional<double>& measured) {
    const auto predicted = number(point, metric, stat);
    if (!measured || !predicted || *measured <= 0) return;
    out.values.push_back({.metric = std::string{metric},
                          .stat = std::string{stat},
                          .measured = *measured,
                          .predicted = *predicted,
                          .low = number(point, fmt::format("{}_low", metric), stat),
                          .high = number(point, fmt::format("{}_high", metric), stat)});
  };
  const std::array<std::pair<std::string_view, const BenchTimes*>, 3> times{
      std::pair{"ttft_s", &run.ttft}, {"tpot_s", &run.tpot}, {"e2e_s", &run.e2e}};
  for (const auto& [metric, of] : times) {
    put(metric, "mean", of->mean);
    put(metric, "p50", of->median);
    put(metric, "p90", of->p90);
    put(metric, "p95", of->p95);
    put(metric, "p99", of->p99);
  }
  put("output_tok_s", "", run.output_tok_s);
  put("request_s", "", run.request_s);
  if (auto note = failed_note(run)) out.notes.push_back(*std::move(note));
  const auto same = [&](const char* key, const std::optional<double>& tokens, const char* what) {
    const auto all = number(point, key, "");
    const auto requests = number(point, "completed", "");
    if (!tokens || *tokens <= 0 || !all || !requests || *requests <= 0) return;
    constexpr double kAlike = 1.25;
    const double here = *all / *requests;
    if (here <= kAlike * *tokens && *tokens <= kAlike * here) return;
    out.notes.push_back(
        fmt::format("{}: {} tokens per request are {:.0f} on average, but {:.0f} in the result",
                    run.place, what, *tokens, here));
  };
  same("prompt_tokens", run.input_tokens, "prompt");
  same("output_tokens", run.output_tokens, "output");
  return out;
}

}  // namespace

bool is_in_interval(const BenchComparedValue& value) {
  return value.low && value.high && *value.low <= value.measured && value.measured <= *value.high;
}

std::vector<BenchComparison> compare_bench(const PlacedText& result, const PlacedText& bench) {
  // Parsed first, so that a file that is not a benchmark's is reported for any result.
  const std::vector<BenchRun> runs = parse_bench(bench.text, bench.place);
  const Field root = Field::parse(result.text, result.place);
  const Field schema = root.at("schema");
  if (schema.string() != "kvsim.run/1" || root.at("kind").string() != "serve") {
    throw InputError{result.place, "the result of a service, which a benchmark measures",
                     fmt::format("{}", schema.string())};
  }
  const std::vector<Field> points = root.at("points").items();
  const std::optional<Field> arrivals = arrivals_of(root);
  std::vector<BenchComparison> out;
  std::vector<std::string> without;
  for (const BenchRun& run : runs) {
    const Field* found = nullptr;
    for (const Field& point : points) {
      if (found == nullptr && has_load(point, run)) found = &point;
    }
    const bool by_load =
        found != nullptr || (points.size() == 1 && arrivals && has_load(*arrivals, run));
    if (found == nullptr && points.size() == 1) found = &points.front();
    if (found == nullptr) {
      without.push_back(load_text(run));
      continue;
    }
    out.push_back(compared(*found, run));
    if (!by_load && run.states_load) {
      out.back().notes.push_back(
          fmt::format("{}: the result is not of this load, {}", run.place, out.back().load));
    }
  }
  if (out.empty()) {
    throw InputError{result.place, "a point at a load of the benchmark",
                     fmt::format("none at {}", without.front())};
  }
  for (const std::string& load : without) {
    out.front().notes.push_back(
        fmt::format("{}: the result has no point at {}", bench.place, load));
  }
  return out;
}

ordered_json bench_comparison_json(const std::vector<BenchComparison>& all) {
  ordered_json runs = ordered_json::array();
  const auto maybe = [](const std::optional<double>& value) {
    return value ? ordered_json(*value) : ordered_json(nullptr);
  };
  for (const BenchComparison& one : all) {
    ordered_json values = ordered_json::array();
    for (const BenchComparedValue& value : one.values) {
      values.push_back(
          {{"metric", value.metric},
           {"stat", value.stat.empty() ? ordered_json(nullptr) : ordered_json(value.stat)},
           {"measured", value.measured},
           {"predicted", value.predicted},
           {"error", value.predicted / value.measured - 1},
           {"low", maybe(value.low)},
           {"high", maybe(value.high)}});
    }
    runs.push_back({{"place", one.place},
                    {"tool", one.tool},
                    {"load", one.load},
                    {"point", one.point},
                    {"values", std::move(values)},
                    {"notes", one.notes}});
  }
  return {{"schema", "kvsim.compare-bench/1"}, {"runs", std::move(runs)}};
}

}  // namespace kvsim
