#include "sim/plan/layout_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
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
/// Rounding of the clock and of sums; a bound that is a thousandth lower is still one.
constexpr double kRounding = 1 - 1e-3;

/// What the engine's time for one token is at least, if iterations take `bound` or less on average
/// over tokens. Infinite: none does.
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
  // A decode step reads the weights that a token needs; formats below 4 bits are not known.
  constexpr double kMinWeightBytes = 0.5;
  const double bytes = spec.weight_format != nullptr
                           ? kMinWeightBytes
                           : static_cast<double>(bits_of(spec.weight_dtype)) / 8;
  const auto embedding =
      static_cast<double>(spec.llm->d_model) * static_cast<double>(spec.llm->vocab_size);
  const double matrices = std::max(0.0, active - 2 * embedding);
  // Stages read one after another; experts may be on more GPUs than share the rest.
  const double readers =
      std::max<double>(stage_gpus(spec), spec.options.expert_parallel.value_or(1));
  // A step may bring a token and all that was proposed.
  const double step_tokens = spec.speculation.is_on() ? 1.0 + spec.speculation.levels() : 1.0;
  const double sheet_step_s = matrices * bytes / readers / spec.gpu->hbm_bandwidth.count();
  const double step_s =
      engine_times ? std::max(sheet_step_s, engine_times->token.count()) : sheet_step_s;
  const double prompt_s = engine_times ? engine_times->prompt_token.count() : 0;

  // Of each request: operations, tokens of its prompt, decode steps, time.
  std::vector<double> work, prompts, steps, times;
  double tokens = 0, longest = 0;
  SimTime first{INT64_MAX}, last{};
  bool waits = false;  // for the end of another
  for (const Request& r : trace.requests) {
    // Prompts may be found in a prefix cache.
    const double prompt = trace.prefix_block == 0 ? r.prompt_tokens : 0;
    work.push_back(2 * matrices * (prompt + r.output_tokens));
    prompts.push_back(prompt);
    steps.push_back(std::max(0, r.output_tokens - 1) / step_tokens);
    times.push_back(prompts.back() * prompt_s + steps.back() * step_s);
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
  const SloSpec& slo = spec.slo;
  // Requests that keep their bounds have ended so long after the last arrival.
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
  std::sort(times.begin(), times.end());
  const double share = shown_percentile(in.plan->attainment) / 100.0;
  const double lost = 1 - in.plan->attainment;  // may be refused, and are in no quantile
  const double at = std::max(0.0, (share - lost) * static_cast<double>(times.size()) - 1);
  bound.latency_s = kRounding * times[static_cast<std::size_t>(at)];
  return bound;
}

}  // namespace kvsim
