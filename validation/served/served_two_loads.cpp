#include "validation/served/served_two_loads.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"

namespace kvsim {
namespace {

/// The values of a run used by a calibration: one of each kind.
struct Known {
  std::vector<BenchValue> values;
  std::vector<std::pair<std::string, std::string>> names;  // metric and stat of each
};

Known known_values(const ServedScore& score, std::size_t run) {
  struct Kind {
    std::string_view metric;
    std::array<std::pair<std::string_view, std::string_view>, 2> names;
  };
  constexpr std::array kKinds{
      Kind{"TTFT", {{{"ttft", "median"}, {"ttft", "mean"}}}},
      Kind{"TPOT", {{{"tpot", "mean"}, {"tpot", "median"}}}},
      Kind{"E2E", {{{"e2e", "mean"}, {"e2e", "median"}}}},
      Kind{"throughput", {{{"output_throughput", "total"}, {"request_throughput", "total"}}}}};
  Known out;
  for (const Kind& kind : kKinds) {
    for (const auto& [metric, stat] : kind.names) {
      const auto found = std::find_if(
          score.comparisons.begin(), score.comparisons.end(), [&](const ServedComparison& c) {
            return c.run == run && c.metric == metric && c.stat == stat && c.measured > 0;
          });
      if (found == score.comparisons.end()) continue;
      out.values.push_back({kind.metric, found->measured});
      out.names.emplace_back(metric, stat);
      break;
    }
  }
  return out;
}

std::vector<double> simulated(const MappedRun& run, const Known& known,
                              const TimeFactors& factors) {
  const std::vector<PredictedMetric> metrics = simulate_served(run, factors);
  std::vector<double> out;
  for (const auto& [metric, stat] : known.names) {
    const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const auto& m) {
      return m.metric == metric && m.stat == stat;
    });
    out.push_back(found == metrics.end() ? 0 : found->value);
  }
  return out;
}

/// A run's load, for ordering: its rate or users.
double load_of(const MappedRun& run) {
  return run.workload.arrivals == ServedArrivals::kClosed ? static_cast<double>(run.workload.users)
                                                          : run.workload.rate;
}

std::vector<UnseenValue> predict_others(const ServedScore& score,
                                        const std::vector<std::size_t>& runs) {
  std::vector<Known> known;
  for (const std::size_t run : runs) known.push_back(known_values(score, run));
  const auto load = [&](std::size_t i) {
    return BenchLoad{.values = known[i].values, .simulate = [&, i](const TimeFactors& factors) {
                       return simulated(score.runs[runs[i]].mapped, known[i], factors);
                     }};
  };
  const std::size_t middle = runs.size() / 2;
  const std::vector<std::string>& path = score.runs[runs.front()].predicted.residual_path;
  const ResidualModel& model = ResidualModel::services();
  const BenchPrior prior{.ttft = model.find("TTFT", path),
                         .tpot = model.find("TPOT", path),
                         .e2e = model.find("E2E", path),
                         .throughput = model.find("throughput", path)};
  const BenchFit fit = fit_bench({load(0), load(middle)}, prior, 1);
  std::vector<UnseenValue> out;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (i == middle) continue;
    const std::vector<BenchOutcome> outcomes = bench_outcomes(load(i), prior, fit.calibration);
    for (std::size_t k = 0; k < outcomes.size(); ++k) {
      out.push_back({.run = runs[i],
                     .metric = std::string{known[i].values[k].metric},
                     .measured = known[i].values[k].measured,
                     .of = outcomes[k]});
    }
  }
  return out;
}

}  // namespace

std::vector<UnseenValue> predict_from_two_loads(const ServedScore& score, int threads) {
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> services;
  for (std::size_t i = 0; i < score.runs.size(); ++i) {
    const ScoredRun& run = score.runs[i];
    const ServedArrivals arrivals = run.mapped.workload.arrivals;
    const bool has_load = arrivals == ServedArrivals::kClosed || arrivals == ServedArrivals::kOpen;
    if (!run.reason().empty() || !has_load || load_of(run.mapped) <= 0) continue;
    if (run.predicted.residual_path.empty() || known_values(score, i).values.empty()) continue;
    services[{run.source, saturation_key(run.mapped)}].push_back(i);
  }
  std::vector<std::vector<std::size_t>> sweeps;
  for (auto& [key, runs] : services) {
    std::stable_sort(runs.begin(), runs.end(), [&](std::size_t a, std::size_t b) {
      return load_of(score.runs[a].mapped) < load_of(score.runs[b].mapped);
    });
    // Repeated runs at one load count as one load.
    runs.erase(std::unique(runs.begin(), runs.end(),
                           [&](std::size_t a, std::size_t b) {
                             return load_of(score.runs[a].mapped) == load_of(score.runs[b].mapped);
                           }),
               runs.end());
    constexpr std::size_t kMin = 3;
    if (runs.size() >= kMin) sweeps.push_back(std::move(runs));
  }
  std::vector<std::vector<UnseenValue>> parts(sweeps.size());
  parallel_for(sweeps.size(), threads,
               [&](std::size_t i) { parts[i] = predict_others(score, sweeps[i]); });
  std::vector<UnseenValue> out;
  for (std::vector<UnseenValue>& part : parts) {
    out.insert(out.end(), std::make_move_iterator(part.begin()),
               std::make_move_iterator(part.end()));
  }
  return out;
}

}  // namespace kvsim
