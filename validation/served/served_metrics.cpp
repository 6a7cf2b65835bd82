#include "validation/served/served_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "models/units/check.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

double seconds(SimTime t) { return to_seconds(t).count(); }

/// For partial runs: number of times that every slot of the engine has changed its request before
/// the engine counts as steady.
constexpr std::size_t kWarmTurns = 2;

struct Window {
  SimTime from{}, until{};
  bool whole = true;  // from the first arrival to the last end
};

/// Returns the part of the run whose completions are counted.
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
  if (run.client->window == MeasureWindow::kQueued && last_start > out.from) {
    return {.from = out.from, .until = last_start, .whole = false};
  }
  const bool steady = run.client->window == MeasureWindow::kSteady || !run.workload.is_whole;
  if (!steady || ends.empty()) return out;
  std::sort(ends.begin(), ends.end());
  SimTime from{}, until{};
  const auto users = static_cast<std::size_t>(run.workload.users);
  // At least half of a short part is counted.
  const std::size_t turns = std::min(kWarmTurns * max_running(result), ends.size() / 2);
  const SimTime after_turns = ends[std::max<std::size_t>(turns, 1) - 1];
  switch (run.workload.arrivals) {
    case ServedArrivals::kClosed: {
      // From the time when every user has received a response until the first user has no further
      // request.
      from = ends[std::min(users, ends.size()) - 1];
      until = last_arrival;
      break;
    }
    case ServedArrivals::kAtOnce:
      from = after_turns;
      until = last_start;
      break;
    case ServedArrivals::kOpen:
    case ServedArrivals::kNone: {
      constexpr double kWarmUp = 0.1;  // of the time between the first and the last arrival
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
    // Times increase along a span: find the number of tokens up to each end by bisection.
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

/// Returns the mean gap of the tokens of each iteration of the whole run.
std::vector<SimTime> iteration_gaps(const ServeResult& result) {
  struct Sum {
    double gaps = 0;
    std::int64_t n = 0;
  };
  std::vector<std::vector<Sum>> sums;
  for (const auto& ends : result.iteration_ends) sums.emplace_back(ends.size());
  for_token_gaps(result.spans, result.iteration_ends, result.outcomes, [&](const TokenGap& gap) {
    Sum& sum = sums[static_cast<std::size_t>(gap.replica)][static_cast<std::size_t>(gap.iteration)];
    sum.gaps += static_cast<double>(gap.time.count()) * static_cast<double>(gap.times);
    sum.n += gap.times;
  });
  std::vector<SimTime> out;
  for (const auto& of_replica : sums) {
    for (const Sum& sum : of_replica) {
      if (sum.n > 0) out.emplace_back(std::llround(sum.gaps / static_cast<double>(sum.n)));
    }
  }
  return out;
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

std::size_t max_running(const ServeResult& result) {
  std::vector<std::pair<SimTime, int>> marks;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    marks.emplace_back(r.scheduled, 1);
    marks.emplace_back(r.finish, -1);  // sorts before a start at the same time
  }
  std::sort(marks.begin(), marks.end());
  std::int64_t running = 0;
  std::int64_t max = 0;
  for (const auto& [at, change] : marks) max = std::max(max, running += change);
  return static_cast<std::size_t>(max);
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
    // Times that grow with the number of requests differ between a partial run and the whole run.
    const bool of_part = run.workload.arrivals == ServedArrivals::kAtOnce && !run.workload.is_whole;
    if (!of_part) {
      add(out, "ttft", distribution_of(ttft));
      add(out, "e2e", distribution_of(e2e));
    }
    if (run.client->tpot_of_iterations) tpot = iteration_gaps(result);
    add(out, "tpot", distribution_of(tpot));
    std::vector<WeightedTime> gaps = token_gaps({result.spans, result.iteration_ends, counted});
    // Clients measure gaps between chunks; the tokens of one speculative step arrive in one chunk.
    std::erase_if(gaps, [](const WeightedTime& gap) { return gap.time == SimTime{}; });
    if (run.client->times_role && !gaps.empty()) {
      gaps.insert(gaps.begin(), {SimTime{}, static_cast<std::int64_t>(ttft.size())});
    }
    add(out, "itl", distribution_of(gaps));
    const double span = seconds(window.until - window.from);
    if (span > 0) {
      const auto total = [&](std::string_view metric, double value) {
        out.push_back({.metric = std::string{metric}, .stat = "total", .value = value});
      };
      // With a window, count tokens generated in it; without one, tokens of completed requests.
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

}  // namespace kvsim
