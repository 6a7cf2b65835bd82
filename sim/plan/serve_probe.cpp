#include "sim/plan/serve_probe.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/engine/slo_watch.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "traces/requests/request_stats.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMinSamples = 2;  // the timeline is not kept

/// Requests per second of the whole workload: those that wait for no other, and with each of them
/// the average number of requests that wait for it.
double rate_of(const RequestTrace& trace) {
  const std::optional<double> rate = arrival_rate(trace);
  if (!rate) {
    throw InputError{
        fmt::format("workload {}: expected arrivals with a rate (poisson, gamma, fixed), got "
                    "requests that all arrive at once or that wait for earlier answers",
                    trace.name)};
  }
  const auto open = std::count_if(trace.requests.begin(), trace.requests.end(),
                                  [](const Request& r) { return r.after < 0; });
  return *rate * static_cast<double>(trace.requests.size()) / static_cast<double>(open);
}

/// Returns the trace with requests that wait for no other arriving `rate` times as fast.
std::shared_ptr<const RequestTrace> hurried(const std::shared_ptr<const RequestTrace>& trace,
                                            double rate) {
  if (rate == 1) return trace;
  auto out = std::make_shared<RequestTrace>(*trace);
  for (Request& r : out->requests) {
    if (r.after >= 0) continue;
    r.arrival = rounded<SimTime>(static_cast<double>(r.arrival.count()) / rate);
  }
  return out;
}

constexpr std::array<const char*, 3> kBounds{"ttft", "tpot", "e2e"};
constexpr std::array<const char*, 3> kBoundWords{"time to first token", "time per output token",
                                                 "time to the last token"};

/// Returns the `q` quantile of `n` values; missing values are infinite.
double quantile(std::vector<double> values, double q, std::size_t n) {
  const std::size_t rank = requests_of_share(q, n);
  if (rank > values.size()) return INFINITY;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

ServeStart start_of(const ServeSpec& spec) {
  ServeSpec plain = spec;
  plain.allocator.reset();
  const ServeResult result = run_serve(plain);
  ServeStart out{.startup = result.startup,
                 .activations = activations_of(*spec.stack, result.peak_owners),
                 .gpus = result.gpus,
                 .times = {},
                 .no_times = {},
                 .cache_notes = {}};
  if (result.startup) {
    std::string limit = state_limit_text(*result.startup);
    if (!limit.empty()) out.cache_notes.push_back(std::move(limit));
  }
  if (!result.no_hits.empty()) out.cache_notes.push_back(result.no_hits);
  const ServeResiduals residuals{plain, result, mean_iteration(plain, result)};
  if (residuals.known()) {
    out.times = residuals;
  } else {
    out.no_times = !result.startup         ? "none: batches are static"
                   : result.completed == 0 ? "none: no request was served"
                                           : "none: the calibration has no intervals";
  }
  return out;
}

ServeStart startup_of(const ServeSpec& spec) {
  ServeSpec plain = spec;
  plain.allocator.reset();
  const PreparedService service{std::move(plain)};
  ServeStart out{.startup = service.startup(),
                 .activations = {},
                 .gpus = service_gpus(spec),
                 .times = {},
                 .no_times = "none: predictions, whose ranges were not searched",
                 .cache_notes = {}};
  if (out.startup) {
    std::string limit = state_limit_text(*out.startup);
    if (!limit.empty()) out.cache_notes.push_back(std::move(limit));
  }
  return out;
}

namespace {

ServeMachine machine_of(MemoryMargin memory, const ServeStart& start,
                        ServeTimesEnd ServeResiduals::Ends::*end, double confidence) {
  const Bytes safety_margin =
      start.startup ? Bytes{} : beyond_prediction(memory.end, start.activations);
  ServeMachine out{.startup = start.startup,
                   .safety_margin = safety_margin,
                   .gpus = start.gpus,
                   .memory = std::move(memory),
                   .time = {.factor = 1, .basis = start.no_times},
                   .times = {},
                   .confidence = confidence};
  if (start.times) {
    out.times = start.times->ends(confidence).*end;
    out.time = {.factor = out.times.run.decode, .basis = start.times->basis()};
  }
  return out;
}

ServeMachine machine_at(const ServeSpec& spec, double confidence,
                        const std::optional<ServeTimesEnd>& times) {
  ServeMachine out = worse_machine(spec, start_of(spec), confidence);
  if (times) {
    out.times = *times;
    out.time = {.factor = times->run.decode, .basis = "as given"};
  }
  return out;
}

}  // namespace

ServeMachine worse_machine(const ServeSpec& spec, const ServeStart& start, double confidence) {
  return machine_of(memory_end(*spec.stack, stage_gpus(spec), confidence), start,
                    &ServeResiduals::Ends::slower, confidence);
}

ServeMachine better_machine(const ServeSpec& spec, const ServeStart& start, double confidence) {
  return machine_of(better_memory_end(*spec.stack, stage_gpus(spec), confidence), start,
                    &ServeResiduals::Ends::faster, confidence);
}

ServeCase::ServeCase(ServeSpec spec, double confidence, double attainment,
                     std::optional<ServeTimesEnd> times)
    : ServeCase{spec, machine_at(spec, confidence, times), attainment} {}

ServeCase::ServeCase(ServeSpec spec, ServeMachine machine, double attainment)
    : spec_{std::move(spec)}, machine_{std::move(machine)}, attainment_{attainment} {
  spec_.allocator.reset();  // as in a plan for static batches: a search counts bytes
  if (spec_.slo.empty()) {
    throw InputError{
        "plan: highest_rate and fewest_gpus need \"slo\": bounds that requests have to keep"};
  }
  rate_ = rate_of(*spec_.requests);
  bounds_ = machine_.times.bounds(spec_.slo);
  gpu_ = *spec_.gpu;
  ServeSpec there = spec_;
  there.slo = bounds_;
  if (machine_.startup) {
    set_start_end(machine_.memory.end.terms, *machine_.startup, gpu_, there.options);
  } else {
    reduce_memory(
        gpu_,
        with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel}),
        machine_.safety_margin);
  }
  there.gpu = &gpu_;
  service_.emplace(std::move(there));
}

EngineStartup ServeCase::own_start(const EngineStartup& run) const {
  if (!machine_.startup) return run;
  return at_factors(
      *machine_.startup, machine_.memory.end.terms,
      with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel}),
      spec_.options);
}

bool ServeCase::holds(const ServeLoad& load) {
  const auto found = known_.find(load);
  if (found != known_.end()) return found->second && found->second->holds;
  const auto& probe = known_.emplace(load, run(load, true)).first->second;
  return probe && probe->holds;
}

std::optional<MinTimes> ServeCase::min_times(std::int64_t context, std::int64_t max) {
  std::optional<MinTimes> out = service_->min_times(context, max);
  if (out) out->front_end = machine_.times.run.of(out->front_end);
  return out;
}

double ServeCase::probability(const ServeLoad& load, const ServeResiduals& residuals) {
  const auto need = [&](const TimeFactors& factors) {
    return slo_need(
        spec_,
        service_->run(hurried(spec_.requests, load.scale), load.copies,
                      {.max_samples = kMinSamples, .keep_gaps = false, .factors = factors}),
        attainment_);
  };
  std::array<double, kServeDraws> drawn{};
  for (std::size_t i = 0; i < kServeDraws; ++i) drawn[i] = need(serve_draws()[i]);
  return slo_probability(residuals, need({}), drawn);
}

const ServeProbe& ServeCase::at(const ServeLoad& load) {
  std::optional<ServeProbe>& known = known_[load];
  if (!known) known = run(load, false);
  return *known;
}

std::optional<ServeProbe> ServeCase::run(const ServeLoad& load, bool gives_up) {
  const ServeResult result =
      service_->run(hurried(spec_.requests, load.scale), load.copies,
                    {.max_samples = kMinSamples,
                     .keep_gaps = false,
                     .factors = machine_.times.run,
                     .suggests_gpus = false,
                     .attained = gives_up ? std::optional{attainment_} : std::nullopt});
  if (result.stopped_early) return std::nullopt;

  ServeProbe out;
  out.offered = offered(load.scale);
  out.output_tok_s = result.output_tok_s;
  out.gpus = result.gpus;
  out.times = {.ttft = result.ttft.times(machine_.times.first_token),
               .tpot = result.tpot,
               .e2e = result.e2e};
  std::size_t good = 0;
  std::vector<double> max;  // per request, the largest share of its bounds
  std::array<std::vector<double>, 3> each;
  std::int64_t longest = 0;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    good += keeps(bounds_, r) ? 1U : 0U;
    const auto taken = slo_shares(bounds_, r);
    for (std::size_t b = 0; b < taken.size(); ++b) each[b].push_back(taken[b]);
    max.push_back(*std::max_element(taken.begin(), taken.end()));
  }
  for (const Request& r : spec_.requests->requests) {
    longest = std::max(longest, std::int64_t{r.prompt_tokens} + r.output_tokens);
  }
  const std::array<std::optional<Seconds>, 3> bounds{spec_.slo.ttft, spec_.slo.tpot, spec_.slo.e2e};
  const std::size_t n = result.outcomes.size();
  out.holds = good >= requests_of_share(attainment_, n);
  out.need = quantile(max, attainment_, n);
  if (out.holds) {
    out.need = std::min(out.need, 1.0);  // a quotient of times may round up
    for (std::size_t b = 0; b < each.size(); ++b) {
      if (bounds[b])
        out.bounds.push_back({kBounds[b], *bounds[b], quantile(each[b], attainment_, n)});
    }
    return out;
  }
  if (!std::isfinite(out.need)) {
    const bool starts = !result.startup || result.startup->starts();
    const double wanted =
        !starts ? result.startup->demand_ratio()
                : static_cast<double>(longest) /
                      static_cast<double>(std::max<std::int64_t>(1, result.kv_capacity_tokens));
    // Above 1 for any size law of the method: the memory was not enough.
    if (!starts && result.startup->shortage() > Bytes{}) {
      out.need = wanted;
      out.constraint = "activations";
      out.text = shortage_text(*result.startup);
    } else if (starts && result.startup && result.startup->serves() && result.startup->groups &&
               !result.ooms.empty() && result.ooms.front().request < 0) {
      // More sequences may run than there are states, or a step is shorter than a block.
      out.need = std::nextafter(1.0, 2.0);
      out.constraint = "kv_capacity";
      out.text = result.ooms.front().what;
    } else if (const std::int64_t positions = spec_.llm->max_positions;
               positions > 0 && longest > positions && longest <= result.kv_capacity_tokens) {
      out.need = static_cast<double>(longest) / static_cast<double>(positions);
      out.constraint = "positions";
      out.text =
          fmt::format("{} of {} requests are served; {} has {} positions, the longest has {}",
                      with_commas(result.completed), with_commas(std::ssize(result.outcomes)),
                      spec_.llm->name, with_commas(positions), with_commas(longest));
    } else if (result.kv_capacity_tokens > 0) {
      out.need = std::max(wanted, std::nextafter(1.0, 2.0));
      out.constraint = "kv_capacity";
      out.text =
          fmt::format("{} of {} requests fit the cache of {} tokens; the longest has {}",
                      with_commas(result.completed), with_commas(std::ssize(result.outcomes)),
                      with_commas(result.kv_capacity_tokens), with_commas(longest));
    } else {
      out.need = std::max(wanted, std::nextafter(1.0, 2.0));
      const bool weights = result.startup && result.startup->weights >= result.usable_hbm;
      out.constraint = weights ? "weights" : "kv_capacity";
      out.text = result.startup ? start_text(own_start(*result.startup))
                                : fmt::format("no request is served in {}", result.usable_hbm);
    }
    out.text += margin_text(machine_.memory, spec_.gpu->hbm_usable, machine_.safety_margin,
                            machine_.confidence);
    return out;
  }
  std::size_t worst = 0;
  double worst_share = -1;
  for (std::size_t b = 0; b < each.size(); ++b) {
    const double share = quantile(each[b], attainment_, n);
    if (share > worst_share) {
      worst_share = share;
      worst = b;
    }
  }
  out.constraint = kBounds[worst];
  out.text = fmt::format("{} of {:.4g} % of requests is up to {:.3g} s; the bound is {:g} s",
                         kBoundWords[worst], 100 * attainment_,
                         worst_share * bounds[worst]->count(), bounds[worst]->count());
  return out;
}

}  // namespace kvsim
