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

/// Samples of an engine's state for runs that have a measured timeline; others need none.
constexpr std::size_t kSamples = 4096;
constexpr std::size_t kNoSamples = 2;

double seconds(SimTime t) { return to_seconds(t).count(); }

/// Of a part of a run: every place of the engine has changed its request so often before the
/// engine counts as steady, and changes it so often in all.
constexpr std::size_t kWarmTurns = 2;
constexpr std::size_t kTurns = 8;
/// Requests that are simulated at most so that an engine becomes steady.
constexpr std::int64_t kMostSteadyRequests = 25'000;

struct Window {
  SimTime from{}, until{};
  bool whole = true;  // from the first arrival to the last end
};

/// The most requests that run at one time.
std::size_t most_running(const ServeResult& result) {
  std::vector<std::pair<SimTime, int>> marks;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    marks.emplace_back(r.scheduled, 1);
    marks.emplace_back(r.finish, -1);  // sorts before a start at the same time
  }
  std::sort(marks.begin(), marks.end());
  std::int64_t running = 0;
  std::int64_t most = 0;
  for (const auto& [at, change] : marks) most = std::max(most, running += change);
  return static_cast<std::size_t>(most);
}

/// The part of the run whose ends count.
Window window_of(const ServeResult& result, const MappedRun& run) {
  Window out;
  SimTime first_arrival{-1}, last_arrival{-1}, last_end{-1}, last_start{-1};
  std::vector<SimTime> ends;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.arrival < SimTime{}) continue;
    if (first_arrival < SimTime{} || r.arrival < first_arrival) first_arrival = r.arrival;
    last_arrival = std::max(last_arrival, r.arrival);
    last_start = std::max(last_start, r.scheduled);
    if (r.status != RequestStatus::kCompleted) continue;
    last_end = std::max(last_end, r.finish);
    ends.push_back(r.finish);
  }
  out.from = std::max(first_arrival, SimTime{});
  out.until = std::max(last_end, out.from);
  if (run.workload.until) {
    const SimTime end = out.from + to_sim_time(*run.workload.until);
    if (end < out.until) out = {.from = out.from, .until = end, .whole = false};
  }
  if (!out.whole) return out;
  const bool steady = run.client->window == MeasureWindow::kSteady || !run.workload.is_whole;
  if (!steady || ends.empty()) return out;
  std::sort(ends.begin(), ends.end());
  SimTime from{}, until{};
  const auto users = static_cast<std::size_t>(run.workload.users);
  // Half of a short part is left to count.
  const std::size_t turns = std::min(kWarmTurns * most_running(result), ends.size() / 2);
  const SimTime after_turns = ends[std::max<std::size_t>(turns, 1) - 1];
  switch (run.workload.arrivals) {
    case ServedArrivals::kClosed: {
      // From where every user has had an answer to where the first has no further request: the last
      // requests of the users are the last of the workload.
      from = ends[std::min(users, ends.size()) - 1];
      until = last_arrival;
      for (std::size_t i = result.outcomes.size() - std::min(users, result.outcomes.size());
           i < result.outcomes.size(); ++i) {
        const RequestOutcome& last = result.outcomes[i];
        if (last.status == RequestStatus::kCompleted) until = std::min(until, last.finish);
      }
      if (until <= from) until = last_arrival;
      break;
    }
    case ServedArrivals::kAtOnce:
      from = after_turns;
      until = last_start;
      break;
    case ServedArrivals::kOpen:
    case ServedArrivals::kNone: {
      constexpr double kWarmUp = 0.1;  // of the time in which requests come
      from = first_arrival +
             SimTime{std::llround(kWarmUp *
                                  static_cast<double>((last_arrival - first_arrival).count()))};
      if (after_turns < last_arrival) from = std::max(from, after_turns);
      until = last_arrival;
      break;
    }
  }
  if (until <= from) return out;
  return {.from = from, .until = until, .whole = false};
}

/// Tokens of `result` that were generated in (from, until].
double tokens_in(const ServeResult& result, const Window& window) {
  double tokens = 0;
  for (const TokenSpan& span : result.spans) {
    const auto& ends = result.iteration_ends[static_cast<std::size_t>(span.replica)];
    const auto in = [&](std::int32_t token) {
      const SimTime at = ends[static_cast<std::size_t>(span.iteration(token))];
      return at > window.from && at <= window.until;
    };
    const auto before = [&](std::int32_t token, SimTime limit) {
      return ends[static_cast<std::size_t>(span.iteration(token))] <= limit;
    };
    if (span.stride == 0) {
      tokens += in(0) ? span.count : 0;
      continue;
    }
    // Times rise along a span: the numbers of tokens up to each end, by bisection.
    const auto up_to = [&](SimTime limit) {
      std::int32_t low = 0;
      std::int32_t high = span.count;
      while (low < high) {
        const std::int32_t middle = low + (high - low) / 2;
        if (before(middle, limit)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      return low;
    };
    tokens += up_to(window.until) - up_to(window.from);
  }
  return tokens;
}

/// Means over time of the engines' waiting requests and of their blocks in use.
void add_timeline(std::vector<PredictedMetric>& out, const ServeResult& result, double scale) {
  double waiting = 0;
  double usage = 0;
  double engines = 0;
  const auto pool = static_cast<double>(result.kv_pool.count());
  for (const std::vector<ServeSample>& samples : result.timeline) {
    if (samples.size() <= kNoSamples || pool <= 0) continue;
    double span = 0;
    double of_waiting = 0;
    double of_usage = 0;
    for (std::size_t i = 1; i < samples.size(); ++i) {
      const double step = seconds(samples[i].at - samples[i - 1].at);
      span += step;
      of_waiting += step * samples[i - 1].waiting;
      of_usage += step * static_cast<double>(samples[i - 1].kv_blocks.count()) / pool;
    }
    if (span <= 0) continue;
    engines += 1;
    waiting += of_waiting / span;
    usage += of_usage / span;
  }
  if (engines == 0) return;
  out.push_back({.metric = "waiting_requests", .stat = "mean", .value = scale * waiting});
  out.push_back({.metric = "kv_usage", .stat = "mean", .value = usage / engines});
}

void add(std::vector<PredictedMetric>& out, std::string_view metric, const Distribution& times) {
  if (times.n == 0) return;
  const auto one = [&](std::string_view stat, double value) {
    out.push_back({.metric = std::string{metric}, .stat = std::string{stat}, .value = value});
  };
  one("mean", times.mean);
  one("median", times.p50);
  one("p90", times.p90);
  one("p95", times.p95);
  one("p99", times.p99);
}

}  // namespace

const PredictedMetric* ServedPrediction::find(std::string_view metric,
                                              std::string_view stat) const {
  for (const PredictedMetric& m : metrics) {
    if (m.metric == metric && m.stat == stat) return &m;
  }
  return nullptr;
}

std::vector<PredictedMetric> client_metrics(const ServeResult& result, const MappedRun& run) {
  const Window window = window_of(result, run);
  const double scale = run.workload.scale;
  const std::optional<Seconds>& limit = run.client->time_out;
  std::vector<SimTime> ttft, tpot, e2e;
  std::vector<RequestOutcome> counted = result.outcomes;
  double requests = 0, prompts = 0, running = 0, preemptions = 0;
  for (RequestOutcome& r : counted) {
    preemptions += r.preemptions;
    if (r.status != RequestStatus::kCompleted) continue;
    const SimTime begin = std::max(r.scheduled, window.from);
    const SimTime end = std::min(r.finish, window.until);
    if (end > begin) running += seconds(end - begin);
    const bool late = limit && seconds(r.finish - r.arrival) > limit->count();
    const bool outside = !window.whole && (r.finish <= window.from || r.finish > window.until);
    if (late || outside) {
      r.status = RequestStatus::kUnfinished;
      continue;
    }
    requests += 1;
    prompts += r.prompt_tokens;
    e2e.push_back(r.finish - r.arrival);
    if (r.first_token >= SimTime{}) ttft.push_back(r.first_token - r.arrival);
    if (r.output_tokens >= 2) {
      tpot.push_back(SimTime{(r.finish - r.first_token).count() / (r.output_tokens - 1)});
    }
  }
  std::vector<PredictedMetric> out;
  if (run.workload.arrivals != ServedArrivals::kNone) {
    // Times of a cut run that grow with the number of requests are not those of the whole run.
    const bool of_part = run.workload.arrivals == ServedArrivals::kAtOnce && !run.workload.is_whole;
    if (!of_part) {
      add(out, "ttft", distribution_of(ttft));
      add(out, "e2e", distribution_of(e2e));
    }
    add(out, "tpot", distribution_of(tpot));
    std::vector<WeightedTime> gaps = token_gaps(result.spans, result.iteration_ends, counted);
    add(out, "itl", distribution_of(gaps));
    const double span = seconds(window.until - window.from);
    if (span > 0) {
      const auto total = [&](std::string_view metric, double value) {
        out.push_back({.metric = std::string{metric}, .stat = "total", .value = value});
      };
      // A window counts what is done in it; without one, what completed requests have.
      double tokens = 0;
      if (window.whole) {
        for (const RequestOutcome& r : counted) {
          if (r.status == RequestStatus::kCompleted) tokens += r.output_tokens;
        }
      } else {
        tokens = tokens_in(result, window);
      }
      total("output_throughput", scale * tokens / span);
      total("request_throughput", scale * requests / span);
      total("input_throughput", scale * prompts / span);
      total("total_throughput", scale * (tokens + prompts) / span);
      if (run.workload.is_whole) total("duration", span);
      out.push_back({.metric = "running_requests",
                     .stat = "mean",
                     .value = (run.client->full_engine ? 1 : scale) * running / span});
    }
    add_timeline(out, result, scale);
    if (run.workload.is_whole && result.blocks > 0) {
      out.push_back(
          {.metric = "kv_usage",
           .stat = "max",
           .value = static_cast<double>(result.peak_blocks) / static_cast<double>(result.blocks)});
    }
    if (run.workload.is_whole) {
      out.push_back({.metric = "preemptions", .stat = "total", .value = scale * preemptions});
    }
  }
  return out;
}

std::string_view residual_metric(std::string_view metric, std::string_view stat) {
  if (metric.ends_with("_throughput")) return "throughput";
  if (metric == "duration") return "duration";
  const bool is_tail = stat != "mean" && stat != "median";
  struct Name {
    std::string_view metric, middle, tail;
  };
  constexpr std::array kNames{Name{"ttft", "TTFT", "TTFT tail"}, Name{"tpot", "TPOT", "TPOT tail"},
                              Name{"itl", "ITL", "ITL tail"}, Name{"e2e", "E2E", "E2E tail"}};
  for (const Name& name : kNames) {
    if (metric == name.metric) return is_tail ? name.tail : name.middle;
  }
  return {};
}

namespace {

Scenario read(const MappedRun& run) {
  const std::string name = run.scenario.at("title").get<std::string>();
  const std::string text = run.scenario.dump();
  const nlohmann::json keys = scenario_document_of(text, name, run.overrides);
  return scenario_of(keys, name, name, false);
}

/// As of serve_intervals: what E2E can be bounds TTFT and TPOT.
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

/// Responses of `metrics` by their values at serve_draws, and the intervals that they and the
/// residual classes of `path` give.
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

/// `run` with as many requests as it takes until its engine is steady, if it is a part of a run and
/// `result` had too few; nullopt: `result` will do.
std::optional<MappedRun> longer_run(const MappedRun& run, const ServeResult& result) {
  const ServedWorkload& workload = run.workload;
  const bool grows =
      workload.arrivals == ServedArrivals::kOpen || workload.arrivals == ServedArrivals::kAtOnce;
  if (workload.is_whole || workload.has_log || workload.is_ladder || !grows) return std::nullopt;
  auto n = static_cast<std::int64_t>(kTurns * most_running(result));
  n = std::min(n, kMostSteadyRequests);
  if (workload.stated_count > 0) n = std::min(n, workload.stated_count);
  if (n <= workload.count) return std::nullopt;
  MappedRun out = run;
  out.workload.count = n;
  out.workload.is_whole = n == workload.stated_count;
  out.workload.requests["count"] = n;
  out.scenario["requests"]["count"] = n;
  return out;
}

/// The prediction of one scenario; nullopt: no request is served.
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
    constexpr double kLargeFraction = 0.95;  // what users set when a model hardly fits
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
    // The same words for all such runs; the scenario itself says by how much it does not fit.
    return {.failed = "predicted not to fit: the engine would not start or hold no request"};
  } catch (const InputError& error) {
    return {.failed = error.what()};
  } catch (const ContractError& error) {
    // One run of thousands: the others are still compared, and the fault is listed.
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
  // How many sequences run at once: one request says what the engine's limits are.
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
  // A closed loop of as many users as the engine serves at once, in which each has a few turns.
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
