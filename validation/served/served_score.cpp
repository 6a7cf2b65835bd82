#include "validation/served/served_score.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <tuple>
#include <utility>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "validation/served/served_text.hpp"

namespace kvsim {
namespace {

/// Synonyms of metric names, and conversions from other units.
struct Alias {
  std::string_view metric, as;
};
constexpr std::array kAliases{Alias{"total_token_throughput", "total_throughput"},
                              Alias{"kv_cache_capacity_tokens", "kv_capacity"},
                              Alias{"kv_cache_capacity", "kv_capacity"}};

/// Whether a run's tokens reach the client in bunches, or its table flags the values: gaps between
/// tokens then do not reflect an engine's steps.
bool is_bunched(const ServedRun& run, std::string_view metric) {
  const bool gaps = metric == "itl";
  const bool per_token = gaps || metric == "tpot";
  if (per_token && (run.note.find("FLAG bunched_stream") != std::string::npos ||
                    run.note.find("FLAG tpot") != std::string::npos)) {
    return true;
  }
  if (!gaps) return false;
  const auto options = parse_options(run.engine_options);
  return std::any_of(options.begin(), options.end(), [](const EngineOption& o) {
    const bool bunches = o.name == "num_scheduler_steps" || o.name == "stream_interval";
    return bunches && o.number().value_or(2) > 1;
  });
}

/// Converts a measured value to the name and unit of predictions.
ServedMetric comparable(const ServedMetric& measured, const MappedRun& run) {
  ServedMetric out = measured;
  for (const Alias& alias : kAliases) {
    if (out.metric == alias.metric) out.metric = alias.as;
  }
  const bool plateau = run.workload.is_ladder && out.metric.ends_with("_throughput");
  if (plateau && out.stat == "max") out.stat = "total";
  const bool is_rate = out.metric.ends_with("_throughput") || out.metric == "duration" ||
                       out.metric == "preemptions" || out.metric == "kv_capacity";
  if (is_rate && out.stat == "mean") out.stat = "total";
  if (measured.unit == "blocks") {
    constexpr double kBlock = 16;  // tokens, unless the run states another size
    const auto engine = run.scenario.find("engine");
    const double block = engine != run.scenario.end() && engine->contains("block_tokens")
                             ? engine->at("block_tokens").get<double>()
                             : kBlock;
    out.value *= block;
  }
  return out;
}

std::string source_of(const ServedRun& run) {
  // "owner/repository path@commit": the words before the path; for a thread also its number.
  std::string out;
  std::size_t words = 0;
  for (const char c : run.source) {
    if (c == ' ' && ++words == 1 && run.source.find(" issue ") == std::string::npos &&
        run.source.find(" pull ") == std::string::npos) {
      break;
    }
    if (words == 3 || c == '(') break;
    out += c;
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

std::string load_word(const std::optional<double>& load) {
  constexpr double kLow = 0.5;
  constexpr double kHigh = 0.9;
  if (!load) return "unknown";
  return *load < kLow ? "low" : *load <= kHigh ? "mid" : "high";
}

double quantile(std::vector<double> sorted, double share) {
  std::sort(sorted.begin(), sorted.end());
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void compare(ServedScore& score, std::size_t index) {
  const ScoredRun& scored = score.runs[index];
  for (const ServedMetric& measured : scored.run.metrics) {
    const ServedMetric value = comparable(measured, scored.mapped);
    const PredictedMetric* predicted = scored.predicted.find(value.metric, value.stat);
    if (predicted == nullptr || value.value == 0 || is_bunched(scored.run, value.metric)) {
      ++score.uncompared[measured.metric + " " + measured.stat];
      continue;
    }
    score.comparisons.push_back({.run = index,
                                 .metric = value.metric,
                                 .stat = value.stat,
                                 .measured = value.value,
                                 .predicted = predicted->value,
                                 .low = predicted->low,
                                 .high = predicted->high,
                                 .response = predicted->response});
  }
}

/// Whether an open loop's service keeps up: completed requests per second against the rate.
void count_saturation(ServedScore& score, const ScoredRun& scored) {
  const ServedWorkload& workload = scored.mapped.workload;
  const PredictedMetric* predicted = scored.predicted.find("request_throughput", "total");
  if (workload.arrivals != ServedArrivals::kOpen || workload.rate <= 0 || predicted == nullptr) {
    return;
  }
  // Both averages include the end of a run, when no requests arrive.
  constexpr double kKeepsUp = 0.9;
  const double min_rate = kKeepsUp * workload.rate * workload.scale;
  for (const ServedMetric& m : scored.run.metrics) {
    if (m.metric != "request_throughput") continue;
    const bool real = m.value < min_rate;
    const bool simulated = predicted->value < min_rate;
    const bool slower = predicted->value < kKeepsUp * m.value;
    const bool faster = m.value < kKeepsUp * predicted->value;
    ++score.open_runs;
    score.saturated += real ? 1U : 0U;
    score.saturated_only_predicted += simulated && slower && !real ? 1U : 0U;
    score.saturated_only_measured += real && faster && !simulated ? 1U : 0U;
    return;
  }
}

using PoolKey = std::tuple<std::string, std::string, bool, std::string>;
using GroupKey = std::tuple<std::string, std::string, bool, std::string, std::string, std::string,
                            std::string, std::string>;

void sum_up(ServedScore& score) {
  std::map<PoolKey, std::vector<const ServedComparison*>> pools;
  std::map<GroupKey, std::vector<const ServedComparison*>> groups;
  for (const ServedComparison& c : score.comparisons) {
    const ScoredRun& run = score.runs[c.run];
    const bool complete = run.mapped.complete;
    pools[{c.metric, c.stat, complete, run.load}].push_back(&c);
    groups[{c.metric, c.stat, complete, run.load, run.mapped.settings.engine->name,
            run.mapped.settings.version, run.mapped.settings.gpu->name, run.source}]
        .push_back(&c);
  }
  for (const auto& [key, of] : pools) {
    ServedGroup group = group_of(of);
    std::tie(group.metric, group.stat, group.complete, group.load) = key;
    score.pooled.push_back(std::move(group));
  }
  for (const auto& [key, of] : groups) {
    ServedGroup group = group_of(of);
    std::tie(group.metric, group.stat, group.complete, group.load, group.engine, group.version,
             group.gpu, group.source) = key;
    score.groups.push_back(std::move(group));
  }
}

}  // namespace

double ServedComparison::interval_score() const {
  constexpr double kPenalty = 2 / 0.1;
  double out = *high - *low;
  if (measured < *low) out += kPenalty * (*low - measured);
  if (measured > *high) out += kPenalty * (measured - *high);
  return out / std::abs(measured);
}

std::size_t ServedScore::expressed() const {
  return static_cast<std::size_t>(std::count_if(
      runs.begin(), runs.end(), [](const ScoredRun& run) { return run.reason().empty(); }));
}

ServedGroup group_of(const std::vector<const ServedComparison*>& of) {
  ServedGroup out;
  std::vector<double> absolute, errors, widths;
  double covered = 0, score = 0;
  for (const ServedComparison* c : of) {
    errors.push_back(c->error());
    absolute.push_back(std::abs(c->error()));
    if (!c->low || !c->high) continue;
    covered += c->is_covered() ? 1 : 0;
    score += c->interval_score();
    if (*c->low > 0) widths.push_back(*c->high / *c->low);
  }
  const auto with_interval = static_cast<double>(
      std::count_if(of.begin(), of.end(), [](const auto* c) { return c->low && c->high; }));
  out.n = of.size();
  out.median_ape = quantile(absolute, 0.5);
  out.p90_ape = quantile(absolute, 0.9);
  out.bias = quantile(errors, 0.5);
  if (with_interval > 0) {
    out.coverage = covered / with_interval;
    out.interval_score = score / with_interval;
  }
  if (!widths.empty()) out.width_median = quantile(widths, 0.5);
  return out;
}

ServedScore score_served(std::vector<ServedRun> runs, const ServedOptions& options) {
  ServedScore score;
  score.runs.resize(runs.size());
  std::map<std::string, std::size_t> first;  // by saturation_key
  std::vector<std::string> keys(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ScoredRun& scored = score.runs[i];
    scored.run = std::move(runs[i]);
    scored.mapped = map_served_run(scored.run, options.folders);
    scored.mapped.overrides = options.overrides;
    scored.source = source_of(scored.run);
    if (const auto& timeline = scored.mapped.workload.timeline; !timeline.empty()) {
      for (ServedMetric& m : read_served_timeline(timeline)) {
        scored.run.metrics.push_back(std::move(m));
      }
    }
  }
  std::atomic<std::size_t> done{0};
  parallel_for(score.runs.size(), options.threads, [&](std::size_t i) {
    ScoredRun& scored = score.runs[i];
    if (scored.mapped.is_expressed()) scored.predicted = predict_served(scored.mapped);
    if (options.done) options.done(static_cast<double>(++done));
  });
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const ServedArrivals arrivals = score.runs[i].mapped.workload.arrivals;
    const bool loads = arrivals == ServedArrivals::kOpen || arrivals == ServedArrivals::kClosed ||
                       score.runs[i].mapped.workload.is_ladder;
    if (!loads || !score.runs[i].reason().empty()) continue;
    keys[i] = saturation_key(score.runs[i].mapped);
    first.try_emplace(keys[i], i);
  }
  const std::vector<std::pair<std::string, std::size_t>> services{first.begin(), first.end()};
  std::vector<double> rates(services.size());
  parallel_for(services.size(), options.threads, [&](std::size_t i) {
    try {
      rates[i] = saturation_rate(score.runs[services[i].second].mapped);
    } catch (const InputError&) {
      rates[i] = 0;  // the load is then unknown
    } catch (const ContractError&) {
      rates[i] = 0;
    }
  });
  std::map<std::string, double> rate_of;
  for (std::size_t i = 0; i < services.size(); ++i) rate_of[services[i].first] = rates[i];
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    ScoredRun& scored = score.runs[i];
    if (!scored.reason().empty()) {
      ++score.reasons[scored.reason()];
      continue;
    }
    for (const std::string& option : scored.mapped.settings.ignored) ++score.ignored[option];
    const auto rate = rate_of.find(keys[i]);
    const bool at_once = scored.mapped.workload.arrivals == ServedArrivals::kAtOnce;
    scored.predicted.load = load_of(scored.mapped, scored.predicted,
                                    at_once                 ? 1
                                    : rate == rate_of.end() ? 0
                                                            : rate->second);
    scored.load = load_word(scored.predicted.load);
    if (scored.mapped.workload.is_ladder && rate != rate_of.end()) {
      scored.predicted.metrics.push_back({.metric = "saturation_rate",
                                          .stat = "max",
                                          .value = rate->second * scored.mapped.workload.scale});
    }
    compare(score, i);
    count_saturation(score, scored);
  }
  sum_up(score);
  return score;
}

}  // namespace kvsim
