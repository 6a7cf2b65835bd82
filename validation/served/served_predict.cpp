#include "validation/served/served_predict.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_draws.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

/// Number of samples of an engine's state for runs with a measured timeline; other runs need none.
constexpr std::size_t kSamples = 4096;

/// Number of times that every slot of an engine changes its request in a partial run.
constexpr std::size_t kTurns = 8;
/// Maximum number of simulated requests for an engine to become steady.
constexpr std::int64_t kMaxSteadyRequests = 25'000;

double seconds(SimTime t) { return to_seconds(t).count(); }

}  // namespace

const PredictedMetric* ServedPrediction::find(std::string_view metric,
                                              std::string_view stat) const {
  for (const PredictedMetric& m : metrics) {
    if (m.metric == metric && m.stat == stat) return &m;
  }
  return nullptr;
}

namespace {

Scenario read(const MappedRun& run) {
  const std::string name = run.scenario.at("title").get<std::string>();
  const std::string text = run.scenario.dump();
  const nlohmann::json keys = scenario_document_of(text, name, run.overrides);
  return scenario_of(keys, name, name, false);
}

/// As in serve_intervals: the interval of E2E bounds TTFT and TPOT.
void bound_by_e2e(std::vector<PredictedMetric>& metrics) {
  const auto find = [&](std::string_view metric, std::string_view stat) -> PredictedMetric* {
    const auto is_it = [&](const PredictedMetric& m) {
      return m.metric == metric && m.stat == stat && m.response;
    };
    const auto at = std::find_if(metrics.begin(), metrics.end(), is_it);
    return at == metrics.end() ? nullptr : &*at;
  };
  const PredictedMetric* mean = find("e2e", "mean");
  const PredictedMetric* first = find("ttft", "mean");
  for (PredictedMetric& m : metrics) {
    if (!m.response) continue;
    const PredictedMetric* e2e = find("e2e", m.stat);
    if (m.metric == "ttft" && e2e != nullptr && m.high && e2e->high) {
      m.high = std::min(*m.high, *e2e->high);
    }
    if (m.metric != "tpot" || (m.stat != "mean" && m.stat != "median") || mean == nullptr ||
        first == nullptr || !m.high || !mean->high) {
      continue;
    }
    const double decoding = mean->value - first->value;
    if (decoding > 0) m.high = std::min(*m.high, m.value * *mean->high / decoding);
  }
}

/// Sets the responses of `metrics` from their values at serve_draws, and the intervals from the
/// responses and the residual classes of `path`.
void put_intervals(std::vector<PredictedMetric>& metrics,
                   const std::array<std::vector<PredictedMetric>, kServeDraws>& drawn,
                   const std::vector<std::string>& path) {
  for (PredictedMetric& m : metrics) {
    const std::string_view name = residual_metric(m.metric, m.stat);
    if (name.empty()) continue;
    std::array<double, kServeDraws> values{};
    for (std::size_t i = 0; i < kServeDraws; ++i) {
      for (const PredictedMetric& other : drawn[i]) {
        if (other.metric == m.metric && other.stat == m.stat) values[i] = other.value;
      }
    }
    m.response = response(m.value, values);
    const ResidualClass* of = ResidualModel::services().find(name, path);
    if (of == nullptr || !m.response) continue;
    std::tie(m.low, m.high) = residual_ends(*of, m.value, *m.response);
  }
  bound_by_e2e(metrics);
}

void add_capacity(const ServeResult& result, std::vector<PredictedMetric>& out) {
  if (result.kv_capacity_tokens <= 0) return;
  const auto tokens = static_cast<double>(result.kv_capacity_tokens);
  PredictedMetric capacity{.metric = "kv_capacity", .stat = "total", .value = tokens};
  PredictedMetric pool{.metric = "kv_memory_per_gpu",
                       .stat = "total",
                       .value = static_cast<double>(result.kv_pool.count())};
  if (result.pool_interval) {
    capacity.low = static_cast<double>(result.pool_interval->tokens_low);
    capacity.high = static_cast<double>(result.pool_interval->tokens_high);
    pool.low = static_cast<double>(result.pool_interval->low.count());
    pool.high = static_cast<double>(result.pool_interval->high.count());
  }
  out.push_back(capacity);
  out.push_back(pool);
}

}  // namespace

namespace {

/// Returns `run` with enough requests for its engine to become steady, if it is a partial run and
/// `result` had too few; nullopt if `result` has enough.
std::optional<MappedRun> longer_run(const MappedRun& run, const ServeResult& result) {
  const ServedWorkload& workload = run.workload;
  const bool grows =
      workload.arrivals == ServedArrivals::kOpen || workload.arrivals == ServedArrivals::kAtOnce;
  if (workload.is_whole || workload.has_log || workload.is_ladder || !grows) return std::nullopt;
  auto n = static_cast<std::int64_t>(kTurns * max_running(result));
  n = std::min(n, kMaxSteadyRequests);
  if (workload.stated_count > 0) n = std::min(n, workload.stated_count);
  if (n <= workload.count) return std::nullopt;
  MappedRun out = run;
  out.workload.count = n;
  out.workload.is_whole = n == workload.stated_count;
  out.workload.requests["count"] = n;
  out.scenario["requests"]["count"] = n;
  return out;
}

/// Returns the prediction of one scenario; nullopt if no request is served.
std::optional<ServedPrediction> predict(const MappedRun& run, bool may_grow = true) {
  ServedPrediction out;
  const Scenario scenario = read(run);
  ServeSpec spec = *scenario.points.at(0).serve;
  spec.settings_stated = run.complete;
  PreparedService service{spec};
  const ServeOptions options{.max_samples = run.workload.timeline.empty() ? kNoSamples : kSamples,
                             .keep_gaps = true};
  const ServeResult result = service.run(spec.requests, 1, options);
  if (result.completed == 0) return std::nullopt;
  if (may_grow) {
    if (const auto longer = longer_run(run, result)) return predict(*longer, false);
  }
  out.metrics = client_metrics(result, run);
  if (run.workload.arrivals != ServedArrivals::kNone) {
    out.residual_path = residual_path(spec, result, mean_iteration(spec, result));
    std::array<std::vector<PredictedMetric>, kServeDraws> drawn;
    for (std::size_t i = 0; i < kServeDraws; ++i) {
      ServeOptions other = options;
      other.factors = serve_draws()[i];
      drawn[i] = client_metrics(service.run(spec.requests, 1, other), run);
    }
    put_intervals(out.metrics, drawn, out.residual_path);
  }
  add_capacity(result, out.metrics);
  return out;
}

}  // namespace

ServedPrediction predict_served(MappedRun& run) {
  try {
    if (auto out = predict(run)) return *out;
    constexpr double kLargeFraction = 0.95;  // typical setting when a model barely fits
    MappedRun other = run;
    nlohmann::ordered_json& engine = other.scenario["engine"];
    if (!engine.contains("memory_fraction")) {
      engine["memory_fraction"] = kLargeFraction;
      other.settings.assumed.emplace_back("a memory fraction of 0.95: the default does not start");
      if (auto out = predict(other)) {
        run = std::move(other);
        return *out;
      }
    }
    engine["max_model_len"] = "workload";
    other.settings.assumed.emplace_back("the longest request as the engine's longest sequence");
    if (auto out = predict(other)) {
      run = std::move(other);
      return *out;
    }
    // The same text for all such runs; running the scenario shows by how much it does not fit.
    return {.failed = "predicted not to fit: the engine would not start or hold no request"};
  } catch (const InputError& error) {
    return {.failed = error.what()};
  } catch (const ContractError& error) {
    // Only this run is affected: the others are still compared, and the fault is listed.
    return {.failed = fmt::format("internal fault: {}", error.what())};
  }
}

std::vector<PredictedMetric> simulate_served(const MappedRun& run, const TimeFactors& factors) {
  const Scenario scenario = read(run);
  const ServeResult result =
      run_serve(*scenario.points.at(0).serve,
                {.max_samples = kNoSamples, .keep_gaps = true, .factors = factors});
  if (result.completed == 0) return {};
  return client_metrics(result, run);
}

std::string saturation_key(const MappedRun& run) {
  nlohmann::ordered_json key = run.scenario;
  key.erase("title");
  for (const char* name : {"arrivals", "count", "limit"}) key["requests"].erase(name);
  return key.dump();
}

double saturation_rate(const MappedRun& run) {
  const Scenario scenario = read(run);
  ServeSpec spec = *scenario.points.at(0).serve;
  const std::shared_ptr<const RequestTrace> sent = spec.requests;
  const ServeOptions options{.max_samples = kNoSamples, .keep_gaps = false};
  // Number of simultaneous sequences: one request suffices to find the engine's limits.
  auto loop = std::make_shared<RequestTrace>(*sent);
  loop->requests.assign(1, sent->requests.front());
  loop->requests.front().arrival = SimTime{};
  loop->requests.front().after = -1;
  spec.requests = loop;
  const ServeResult one = run_serve(spec, options);
  double tokens = 0;
  for (const Request& r : sent->requests) tokens += r.prompt_tokens + r.output_tokens;
  const auto n = static_cast<double>(sent->requests.size());
  const double fit = static_cast<double>(one.kv_capacity_tokens) * n / std::max(1.0, tokens);
  constexpr std::int64_t kUsualLimit = 256;
  const auto seqs = static_cast<double>(one.limits.seqs > 0 ? one.limits.seqs : kUsualLimit);
  // A closed loop with the maximum number of simultaneous users, each with a few turns.
  constexpr double kMore = 1.2;
  constexpr double kMin = 8;
  constexpr double kMax = 512;
  constexpr std::size_t kTurns = 3;
  const auto users = static_cast<std::size_t>(std::clamp(kMore * std::min(fit, seqs), kMin, kMax));
  loop = std::make_shared<RequestTrace>(*sent);
  loop->requests.clear();
  for (std::size_t i = 0; i < kTurns * users; ++i) {
    Request r = sent->requests[i % sent->requests.size()];
    r.arrival = SimTime{};
    r.after = i < users ? -1 : static_cast<std::int32_t>(i - users);
    r.session = -1;
    loop->requests.push_back(r);
  }
  spec.requests = loop;
  const ServeResult result = run_serve(spec, options);
  SimTime last_arrival{-1};
  std::vector<SimTime> ends;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    last_arrival = std::max(last_arrival, r.arrival);
    ends.push_back(r.finish);
  }
  if (ends.empty()) return 0;
  std::sort(ends.begin(), ends.end());
  const SimTime from = ends[std::min(users, ends.size()) - 1];
  const auto in = std::count_if(ends.begin(), ends.end(),
                                [&](SimTime t) { return t > from && t <= last_arrival; });
  const bool is_steady = in > 0 && last_arrival > from;
  if (is_steady) return static_cast<double>(in) / seconds(last_arrival - from);
  return static_cast<double>(ends.size()) / std::max(1e-9, seconds(ends.back()));
}

std::optional<double> load_of(const MappedRun& run, const ServedPrediction& predicted,
                              double saturation) {
  if (saturation <= 0) return std::nullopt;
  switch (run.workload.arrivals) {
    case ServedArrivals::kNone:
      return std::nullopt;
    case ServedArrivals::kAtOnce:
      return 1;
    case ServedArrivals::kOpen:
      if (run.workload.rate > 0) return run.workload.rate / saturation;
      break;
    case ServedArrivals::kClosed:
      break;
  }
  const PredictedMetric* rate = predicted.find("request_throughput", "total");
  if (rate == nullptr) return std::nullopt;
  return rate->value / (saturation * run.workload.scale);
}

}  // namespace kvsim
