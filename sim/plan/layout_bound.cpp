#include "sim/plan/layout_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "models/llm/llm.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/serve_spec.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {
namespace {

constexpr double kHour = 3600;
constexpr double kMillion = 1e6;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Margin for rounding of the clock and of sums; a bound reduced by a thousandth is still a bound.
constexpr double kRounding = 1 - 1e-3;

/// Returns a lower bound of the engine's time per token if iterations take at most `bound` on
/// average over tokens. Infinite if no iteration does.
double min_token_s(const MinTimes& times, double bound) {
  double out = kInfinity;
  const auto x = [](const MinTimes::Decodes& d) { return d.interval.count(); };
  const auto y = [&](const MinTimes::Decodes& d) { return x(d) / static_cast<double>(d.max); };
  for (const MinTimes::Decodes& within : times.decodes) {
    if (x(within) > bound) continue;
    out = std::min(out, y(within));
    for (const MinTimes::Decodes& beyond : times.decodes) {
      if (x(beyond) <= bound) continue;
      const double share = (bound - x(within)) / (x(beyond) - x(within));
      out = std::min(out, y(within) + share * (y(beyond) - y(within)));
    }
  }
  return out;
}

/// Lower bound of the time that an engine's iterations need for the tokens of a prompt, for any
/// division into chunks and for prompts that share iterations. It is the maximum of the lines below
/// the times by tokens: a line a + b n is at most the sum of c chunks if it is taken as c a + b n.
class PromptTimes {
 public:
  explicit PromptTimes(const std::vector<MinTimes::Prompts>& times) : max_{times.back().max} {
    // Between two entries the time is at least that of the larger one: use the convex hull of the
    // points.
    std::vector<std::pair<double, double>> hull;
    const auto slope = [](const auto& a, const auto& b) {
      return (b.second - a.second) / (b.first - a.first);
    };
    double per_token = kInfinity;
    for (const MinTimes::Prompts& one : times) {
      const std::pair at{static_cast<double>(one.max), one.latency.count()};
      per_token = std::min(per_token, at.second / at.first);
      while (hull.size() > 1 &&
             slope(hull[hull.size() - 2], hull.back()) >= slope(hull.back(), at)) {
        hull.pop_back();
      }
      hull.push_back(at);
    }
    lines_.push_back({0, per_token});
    lines_.push_back({hull.front().second, 0});
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const double each = slope(hull[i - 1], hull[i]);
      const double chunk = hull[i].second - each * hull[i].first;
      if (chunk > 0) lines_.push_back({chunk, each});
    }
  }

  [[nodiscard]] double of(double tokens) const {
    const double chunks = std::ceil(tokens / static_cast<double>(max_));
    double out = 0;
    for (const auto& [chunk, each] : lines_) out = std::max(out, chunk * chunks + each * tokens);
    return out;
  }

 private:
  struct Line {
    double chunk = 0, token = 0;
  };
  std::int64_t max_;
  std::vector<Line> lines_;
};

/// Returns the maximum delay from the engine's first token to the client; infinite if it is
/// unknown.
double max_delivery_s(const MinTimes& times, const RequestTrace& trace) {
  const FrontEndTimes& front_end = times.front_end;
  // Tokens of one iteration. If the front end streams them before the next iteration ends, they do
  // not wait for others.
  const double stream = front_end.token.count() * static_cast<double>(times.sequences) *
                        times.step_tokens / front_end.servers;
  if (stream > times.interval.count()) return kInfinity;
  if (front_end.request == Seconds{} && front_end.prompt_token == Seconds{}) return stream;
  // The largest backlog of one server, if it handles all requests and each of their turns waits for
  // the tokens of an iteration.
  double most = 0, work = 0;
  SimTime before{};
  for (const Request& r : trace.requests) {
    if (r.after >= 0) return kInfinity;
    work = std::max(0.0, work - to_seconds(r.arrival - before).count());
    work += front_end.request.count() + front_end.prompt_token.count() * r.prompt_tokens +
            front_end.turns * stream;
    most = std::max(most, work);
    before = r.arrival;
  }
  // The tokens of iterations that end in the meantime precede these.
  return most * (1 + stream / times.interval.count()) + 2 * stream;
}

double sum_of_smallest(std::vector<double> values, std::size_t count) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                   values.end());
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

}  // namespace

LayoutBound layout_bound(const CandidateInput& in, const std::optional<MinTimes>& engine_times) {
  const ServeSpec& spec = *in.point->serve;
  const RequestTrace& trace = *spec.requests;
  const double each = service_gpus(spec);
  FlopsPerSecond peak = spec.gpu->peak_fp32;
  for (const auto& [dtype, rate] : spec.gpu->peak) peak = std::max(peak, rate);
  const auto active = static_cast<double>(active_parameters(*spec.llm));
  // A decode step reads the weights of a token; formats below 4 bits do not occur.
  constexpr double kMinWeightBytes = 0.5;
  const double bytes = spec.weight_format != nullptr
                           ? kMinWeightBytes
                           : static_cast<double>(bits_of(spec.weight_dtype)) / 8;
  const auto embedding =
      static_cast<double>(spec.llm->d_model) * static_cast<double>(spec.llm->vocab_size);
  const double matrices = std::max(0.0, active - 2 * embedding);
  // Stages read one after another; experts may be on more GPUs than share the other weights.
  const double readers =
      std::max<double>(stage_gpus(spec), spec.options.expert_parallel.value_or(1));
  // A step may produce a token and all proposed tokens.
  const double step_tokens = spec.speculation.is_on() ? 1.0 + spec.speculation.levels() : 1.0;
  const double sheet_step_s = matrices * bytes / readers / spec.gpu->hbm_bandwidth.count();
  const double step_s =
      engine_times ? std::max(sheet_step_s, engine_times->token.count()) : sheet_step_s;
  std::optional<PromptTimes> prompt_times;
  double prompt_s = 0;  // per token, on the slowest stage
  if (engine_times) {
    prompt_times.emplace(engine_times->prompts);
    prompt_s = kInfinity;
    for (const MinTimes::Prompts& one : engine_times->prompts) {
      prompt_s = std::min(prompt_s, one.interval.count() / static_cast<double>(one.max));
    }
  }
  /// Minimum TTFT of a prompt of `sent` tokens of which `computed` are computed.
  const auto first_token_s = [&](double sent, double computed) {
    if (!engine_times) return 0.0;  // methods may compute only part of a prompt
    const FrontEndTimes& front_end = engine_times->front_end;
    const double admitted = front_end.latency.count() + front_end.request.count() +
                            front_end.prompt_token.count() * sent;
    // Stages work on chunks concurrently; one of them takes at least its share.
    return admitted + std::max(engine_times->prompts.front().latency.count(),
                               prompt_times->of(computed) / engine_times->stages);
  };
  const SloSpec& slo = spec.slo;
  const double delivery_s = engine_times ? max_delivery_s(*engine_times, trace) : kInfinity;
  /// Minimum TPOT of a request that meets its bounds and has its first token at `first` or later.
  const auto token_s = [&](double first, std::int32_t tokens) {
    double delayed = delivery_s;
    if (slo.ttft) delayed = std::min(delayed, slo.ttft->count() - first);
    if (slo.e2e) delayed = std::min(delayed, slo.e2e->count() - first);
    return std::max(0.0, step_s / step_tokens - std::max(0.0, delayed) / (tokens - 1));
  };

  // Per request: operations, prompt tokens, decode steps, times.
  std::vector<double> work, prompts, steps, firsts, each_token, times;
  double tokens = 0, longest = 0;
  SimTime first{INT64_MAX}, last{};
  bool waits = false;  // whether any request waits for the end of another
  for (const Request& r : trace.requests) {
    // The prefix cache may contain the prompts.
    const double prompt = trace.prefix_block == 0 ? r.prompt_tokens : 0;
    work.push_back(2 * matrices * (prompt + r.output_tokens));
    prompts.push_back(prompt);
    steps.push_back(std::max(0, r.output_tokens - 1) / step_tokens);
    const double first_token = first_token_s(r.prompt_tokens, prompt);
    if (r.output_tokens > 0) firsts.push_back(first_token);
    if (r.output_tokens > 1) each_token.push_back(token_s(first_token, r.output_tokens));
    times.push_back(first_token + steps.back() * step_s);
    tokens += r.output_tokens;
    longest = std::max<double>(longest, r.output_tokens);
    waits = waits || r.after >= 0;
    if (r.after >= 0) continue;
    first = std::min(first, r.arrival);
    last = std::max(last, r.arrival);
  }
  LayoutBound bound{.gpus = each};
  if (trace.requests.empty() || last <= first) return bound;
  const double span = static_cast<double>((last - first).count()) * 1e-12;
  const auto kept =
      static_cast<std::size_t>(std::ceil(in.plan->attainment * static_cast<double>(work.size())));
  // Requests that meet their bounds end at most this long after the last arrival.
  const double after = slo.e2e                ? slo.e2e->count()
                       : slo.ttft && slo.tpot ? slo.ttft->count() + slo.tpot->count() * longest
                                              : kInfinity;
  if (!waits) {
    const double time = span + after;
    bound.copies =
        std::max(1.0, std::ceil(sum_of_smallest(work, kept) / (each * peak.count()) / time));
    if (engine_times) {
      const double n_steps = sum_of_smallest(steps, kept);
      double step_bound = slo.tpot ? slo.tpot->count() * step_tokens : kInfinity;
      if (slo.e2e && n_steps > 0) {
        step_bound = std::min(step_bound, static_cast<double>(kept) * slo.e2e->count() / n_steps);
      }
      const double decodes = n_steps > 0 ? n_steps * min_token_s(*engine_times, step_bound) : 0;
      const double fills = sum_of_smallest(prompts, kept) * prompt_s;
      const double decode_engines = spec.cluster.replicas, engines = spec.cluster.prefill_replicas;
      const double busy = engines > 0 ? std::max(decodes / decode_engines, fills / engines)
                                      : std::max(decodes, fills) / decode_engines;
      bound.copies = std::max(bound.copies, std::ceil(kRounding * busy / time));
    }
  }
  bound.gpus = each * bound.copies;
  bound.copy_cost = in.gpu_hour * each / kHour / (tokens / span) * kMillion * in.plan->attainment;
  // Requests that miss their bounds may be rejected, and are then in no quantile, or have the
  // minimum TPOT.
  const double lost = (1 - in.plan->attainment) * static_cast<double>(work.size());
  const double share = shown_percentile(in.plan->attainment) / 100.0;
  const auto quantile = [&](std::vector<double>& least) {
    if (least.empty()) return 0.0;
    const double rank = std::max(0.0, share * static_cast<double>(least.size()) - lost - 1);
    const auto at = least.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(least.begin(), at, least.end());
    return kRounding * *at;
  };
  bound.ttft_s = quantile(firsts);
  bound.tpot_s = quantile(each_token);
  bound.latency_s = quantile(times);
  return bound;
}

}  // namespace kvsim
