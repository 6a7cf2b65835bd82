#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/plan/boundary.hpp"
#include "sim/plan/candidate.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/knobs.hpp"
#include "sim/plan/layout_bound.hpp"
#include "sim/plan/layout_candidate.hpp"
#include "sim/plan/serve_probe.hpp"
#include "sim/scenario/fields/serve_field.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
namespace {

constexpr double kHour = 3600;
constexpr double kMillion = 1e6;
constexpr double kMinRate = 1.0 / 1024;  // relative to the workload's own rate
constexpr double kMaxRate = 16384;
constexpr std::size_t kNeighbours = 2;  // +2 and +3: each is a complete run

/// "3 engines behind a round-robin router".
std::string engines_text(const ClusterSpec& cluster, std::int64_t copies) {
  const std::int64_t engines = copies * (cluster.replicas + cluster.prefill_replicas);
  if (engines == 1) return "one engine";
  return fmt::format("{} engines behind a {} router", engines, name_of(cluster.router));
}

std::int64_t steps_of(double ratio, double step) {
  return static_cast<std::int64_t>(std::floor(std::log(ratio) / std::log1p(step)));
}

struct Started {
  ServeSpec spec;
  ServeStart start;
  std::int64_t max_model_len = 0;  // set by the plan; 0: the scenario's or the default
};

/// An engine refuses to start if a sequence of its default max_model_len exceeds its pool. A plan
/// is for the workload, so it then sets the longest request instead. `start_of` is called for the
/// start.
Started started(const CandidateInput& in, ServeStart (*start_of)(const ServeSpec&)) {
  Started out{.spec = *in.point->serve, .start = {}};
  out.spec.method = in.method;
  out.start = start_of(out.spec);
  StackOptions& options = out.spec.options;
  const auto& startup = out.start.startup;
  const bool is_default = !options.max_model_len && !options.longest_request;
  if (!is_default || !startup || !startup->starts() || startup->serves()) return out;
  for (const Request& r : out.spec.requests->requests) {
    out.max_model_len =
        std::max(out.max_model_len, std::int64_t{r.prompt_tokens} + r.output_tokens);
  }
  options.longest_request = true;
  out.start = start_of(out.spec);
  return out;
}

}  // namespace

struct ServeCandidate::Impl {
  CandidateInput in;
  Started begun;
  const ServeSpec& spec = begun.spec;
  const ServeStart& start = begun.start;
  ServeCase service;  // at the requested confidence

  Impl(CandidateInput input, ServeStart (*start_of)(const ServeSpec&))
      : in{std::move(input)},
        begun{started(in, start_of)},
        service{spec, worse_machine(spec, start, in.plan->confidence), in.plan->attainment} {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] double rate_of(std::int64_t k) const {
    return std::pow(1 + in.plan->rate_step, static_cast<double>(k));
  }
  [[nodiscard]] double lowest_rate() const {
    return rate_of(-steps_of(1 / kMinRate, in.plan->rate_step));
  }
  [[nodiscard]] std::int64_t max_copies() const {
    return std::max<std::int64_t>(1, in.plan->max_gpus / service.gpus());
  }
  /// The workload at its own rate on `n` copies of the service.
  [[nodiscard]] static ServeLoad copies(std::int64_t n) {
    return {.scale = 1, .copies = static_cast<std::int32_t>(n)};
  }

  /// Returns the answer as predicted and at both ends. `found`: answer at the requested confidence.
  /// `at`: computes the answer of another case, given a hint where to start. `is_fewer_better`: for
  /// GPUs.
  [[nodiscard]] AnswerRange range_of(
      std::optional<double> found, bool is_fewer_better,
      const std::function<std::optional<double>(ServeCase&)>& at) const {
    const double confidence = range_confidence(in.plan->confidence);
    const bool is_prediction = in.plan->confidence == 0;
    const ServeMachine worse = worse_machine(spec, start, confidence);
    const ServeMachine better = better_machine(spec, start, confidence);
    const auto answer = [&](const ServeMachine& machine) {
      ServeCase other{spec, machine, in.plan->attainment};
      return at(other);
    };
    AnswerRange out;
    out.predicted = is_prediction ? found : answer(worse_machine(spec, start, 0));
    out.is_known = worse.memory.end != better.memory.end || worse.times != ServeTimesEnd{};
    if (!out.is_known) return out;
    if (!is_prediction) {
      out.safe = found;
    } else if (found) {
      out.safe = answer(worse);  // if the prediction fails, this fails too
    }
    out.optimistic = answer(better);
    if (!out.predicted) return out;
    // A larger cache or faster iterations admit more concurrent requests, which slow each other
    // down. The answer at an end may therefore be worse or better than the prediction; the range
    // must contain it.
    const double here = *out.predicted;
    const double best = out.optimistic.value_or(here);
    out.optimistic = is_fewer_better ? std::min(best, here) : std::max(best, here);
    if (is_prediction && out.safe) {
      out.safe = is_fewer_better ? std::max(*out.safe, here) : std::min(*out.safe, here);
    }
    return out;
  }

  /// Returns the fewest GPUs as predicted. `falling`: negative number of copies to try first.
  [[nodiscard]] std::optional<double> predicted_gpus(std::int64_t falling) const {
    ServeCase predicted{spec, worse_machine(spec, start, 0), in.plan->attainment};
    const Search search{
        .min = -max_copies(), .max = -1, .start = falling, .stride = 1, .neighbours = kNeighbours};
    const Boundary fewest = largest_feasible(
        search, [&](std::int64_t tried) { return predicted.holds(copies(-tried)); });
    if (!fewest.last) return std::nullopt;
    return static_cast<double>(-*fewest.last * service.gpus());
  }

  [[nodiscard]] std::optional<double> probability(const ServeLoad& load) {
    if (!start.times) return std::nullopt;
    return service.probability(load, *start.times);
  }

  [[nodiscard]] OperatingPoint point_at(const ServeProbe& probe) const {
    OperatingPoint at;
    at.load = probe.offered;
    at.gpus = probe.gpus;
    at.tokens_s = probe.output_tok_s;
    const int percentile = shown_percentile(in.plan->attainment);
    at.ttft_s = value_at(probe.times.ttft, percentile);
    at.tpot_s = value_at(probe.times.tpot, percentile);
    at.latency_s = value_at(probe.times.e2e, percentile);
    at.cost = in.gpu_hour * probe.gpus / kHour / at.tokens_s * kMillion;
    at.error = in.error;
    return at;
  }

  void begin(PlanCandidate& out) const {
    out.memory = service.memory_end();
    out.time_factor = service.time_end().factor;
    out.time_basis = service.time_end().basis;
    out.simulated = engines_text(service.spec().cluster, 1);
    if (begun.max_model_len > 0) {
      out.max_model_len = begun.max_model_len;
      out.notes.push_back(
          fmt::format("the pool holds no sequence of the default max_model_len: planned with "
                      "max_model_len {}, the longest request",
                      with_commas(begun.max_model_len)));
    }
    out.notes.insert(out.notes.end(), start.cache_notes.begin(), start.cache_notes.end());
  }

  void refuse(PlanCandidate& out, const ServeProbe& probe, std::string_view at) const {
    Impossible why;
    why.constraint = probe.constraint;
    why.need = std::isfinite(probe.need) ? probe.need : 0;
    why.text = fmt::format("{}: {}", at, probe.text);
    out.impossible = std::move(why);
  }
};

ServeCandidate::ServeCandidate(CandidateInput in)
    : impl_{std::make_unique<Impl>(std::move(in), start_of)} {}
ServeCandidate::~ServeCandidate() = default;

void ServeCandidate::highest_rate(PlanCandidate& out) {
  Impl& me = *impl_;
  me.begin(out);
  const double step = me.in.plan->rate_step;
  const Search search{.min = -steps_of(1 / kMinRate, step),
                      .max = steps_of(kMaxRate, step),
                      .start = 0,
                      .stride = std::max<std::int64_t>(1, steps_of(1.17, step)),
                      .neighbours = kNeighbours};
  std::vector<double> held;
  const Boundary found = largest_feasible(search, [&](std::int64_t k) {
    const double rate = me.rate_of(k);
    const bool good = me.service.holds({.scale = rate});
    if (good) held.push_back(rate);
    return good;
  });
  out.probes = found.probes;
  out.monotone = found.monotone;
  out.at_most = found.at_most;
  Search near = search;  // the other ends are near
  near.start = found.last.value_or(search.start);
  const auto highest_of = [&](ServeCase& other) -> std::optional<double> {
    const Boundary end = largest_feasible(
        near, [&](std::int64_t k) { return other.holds({.scale = me.rate_of(k)}); });
    if (!end.last) return std::nullopt;
    return other.offered(me.rate_of(*end.last));
  };
  const auto offered = [&](std::int64_t k) { return me.service.offered(me.rate_of(k)); };
  out.range = me.range_of(found.last ? std::optional{offered(*found.last)} : std::nullopt, false,
                          highest_of);
  if (!found.last) {
    const double rate = me.lowest_rate();
    me.refuse(out, me.service.at({.scale = rate}),
              fmt::format("even at {:.3g} requests/s", me.service.offered(rate)));
    return;
  }
  const double last = me.rate_of(*found.last);
  std::sort(held.begin(), held.end());
  for (const double rate : held) {
    if (rate <= last) out.points.push_back(me.point_at(me.service.at({.scale = rate})));
  }
  const ServeProbe& at = me.service.at({.scale = last});
  out.answer = at.offered;
  out.times = at.times;
  out.bounds = at.bounds;
  out.slo_probability = me.probability({.scale = last});
  if (!found.at_most) out.next = me.service.offered(me.rate_of(*found.last + 1));
  if (found.at_most) out.notes.emplace_back("no higher rate was tried");
}

void ServeCandidate::min_gpus(PlanCandidate& out, std::int64_t first) {
  Impl& me = *impl_;
  me.begin(out);
  const std::int64_t max = me.max_copies();
  std::vector<std::int64_t> held;
  // Copies decrease as the search climbs.
  const Search search{.min = -max,
                      .max = -1,
                      .start = -std::clamp<std::int64_t>(first, 1, max),
                      .stride = 1,
                      .neighbours = kNeighbours};
  const Boundary found = largest_feasible(search, [&](std::int64_t falling) {
    const bool good = me.service.holds(Impl::copies(-falling));
    if (good) held.push_back(-falling);
    return good;
  });
  out.probes = found.probes;
  out.monotone = found.monotone;
  const auto gpus_of = [&](const Boundary& boundary) -> std::optional<double> {
    if (!boundary.last) return std::nullopt;
    return static_cast<double>(-*boundary.last * me.service.gpus());
  };
  Search near = search;  // the other ends are near
  near.start = found.last.value_or(search.start);
  out.range = me.range_of(gpus_of(found), true, [&](ServeCase& other) {
    return gpus_of(largest_feasible(
        near, [&](std::int64_t falling) { return other.holds(Impl::copies(-falling)); }));
  });
  out.range.max_tried = static_cast<double>(max * me.service.gpus());
  if (!found.last) {
    out.simulated = engines_text(me.service.spec().cluster, max);
    me.refuse(out, me.service.at(Impl::copies(max)),
              fmt::format("with {} GPUs", max * me.service.gpus()));
    return;
  }
  out.replicas = -*found.last;
  out.answer = static_cast<double>(out.replicas * me.service.gpus());
  out.simulated = engines_text(me.service.spec().cluster, out.replicas);
  std::sort(held.begin(), held.end(), std::greater<>{});
  for (const std::int64_t copies : held) {
    if (copies < out.replicas) continue;
    out.points.push_back(me.point_at(me.service.at(Impl::copies(copies))));
  }
  const ServeProbe& at = me.service.at(Impl::copies(out.replicas));
  out.times = at.times;
  out.bounds = at.bounds;
  out.slo_probability = me.probability(Impl::copies(out.replicas));
  if (out.replicas > 1) {
    out.next = static_cast<double>((out.replicas - 1) * me.service.gpus());
  }
}

LayoutCandidate::LayoutCandidate(CandidateInput in) {
  // At the prediction, the uncertainty of times, which requires a run, is not needed.
  const bool predicts =
      in.plan->confidence == 0 && in.point->serve->stack->growth == CacheGrowth::kPaged;
  impl_ = std::make_unique<ServeCandidate::Impl>(std::move(in), predicts ? startup_of : start_of);
}
LayoutCandidate::~LayoutCandidate() = default;

LayoutBound LayoutCandidate::bound() {
  ServeCandidate::Impl& me = *impl_;
  const auto& requests = me.spec.requests->requests;
  std::int64_t context = INT64_MAX;
  for (const Request& r : requests) context = std::min<std::int64_t>(context, r.prompt_tokens);
  // A calibrated service may be faster than its kernels' times, and copies of offloaded caches are
  // partly hidden.
  const bool is_longer = std::any_of(requests.begin(), requests.end(), [&](const Request& r) {
    return r.prompt_tokens + std::int64_t{r.output_tokens} >
           me.spec.options.max_model_len.value_or(INT64_MAX);
  });
  const bool is_known = !me.spec.calibrated && me.spec.offload.to == OffloadTier::kNone;
  // Answers cut short by max_model_len have fewer steps.
  if (requests.empty() || !is_known || is_longer) return layout_bound(me.in, std::nullopt);
  return layout_bound(me.in, me.service.min_times(context, std::ssize(requests)));
}

std::int64_t LayoutCandidate::max_copies() const { return impl_->max_copies(); }

void LayoutCandidate::min_gpus(PlanCandidate& out, std::int64_t min, std::int64_t max) {
  ServeCandidate::Impl& me = *impl_;
  me.begin(out);
  const Search search{
      .min = -max, .max = -min, .start = -min, .stride = 1, .neighbours = kNeighbours};
  const Boundary found = largest_feasible(search, [&](std::int64_t falling) {
    return me.service.holds(ServeCandidate::Impl::copies(-falling));
  });
  out.probes = found.probes;
  out.monotone = found.monotone;
  if (!found.last) {
    if (max < me.max_copies()) return;
    out.simulated = engines_text(me.service.spec().cluster, max);
    me.refuse(out, me.service.at(ServeCandidate::Impl::copies(max)),
              fmt::format("with {} GPUs", max * me.service.gpus()));
    return;
  }
  out.replicas = -*found.last;
  out.answer = static_cast<double>(out.replicas * me.service.gpus());
  if (me.in.plan->confidence == 0) {
    out.range.predicted = out.answer;
  } else {
    out.range.safe = out.answer;
    out.range.predicted = me.predicted_gpus(*found.last);
  }
  out.range.max_tried = static_cast<double>(me.max_copies() * me.service.gpus());
  out.simulated = engines_text(me.service.spec().cluster, out.replicas);
  const ServeProbe& at = me.service.at(ServeCandidate::Impl::copies(out.replicas));
  out.points = {me.point_at(at)};
  out.times = at.times;
  out.bounds = at.bounds;
  if (out.replicas > 1) {
    out.next = static_cast<double>((out.replicas - 1) * me.service.gpus());
  }
}

std::vector<KnobEffect> ServeCandidate::knobs(PlanQuestion question) {
  Impl& me = *impl_;
  const ServeSpec& base = me.service.spec();
  const ServeLoad load = question == PlanQuestion::kHighestRate
                             ? ServeLoad{.scale = me.lowest_rate()}
                             : Impl::copies(me.max_copies());
  const PlanSection& plan = *me.in.plan;
  const auto need_of = [&](const ServeSpec& spec,
                           const std::optional<ServeTimesEnd>& times = std::nullopt) -> double {
    try {
      return ServeCase{spec, plan.confidence, plan.attainment, times}.at(load).need;
    } catch (const InputError&) {
      return INFINITY;  // an impossible change does not help
    }
  };
  std::vector<Knob> knobs;
  const auto gpu_knob = [&](const char* name, auto change) {
    Knob knob{name, {}};
    for (const double ratio : knob_ratios()) {
      knob.steps.push_back({times_text(ratio), ratio, [&, ratio, change, name] {
                              Gpu gpu = *base.gpu;
                              change(gpu, ratio);
                              // Calibrations of kernels are stored by the GPU's name. Times are as
                              // certain as on the existing GPU.
                              gpu.name =
                                  fmt::format("{}, {} {}", gpu.name, name, times_text(ratio));
                              ServeSpec spec = base;
                              spec.gpu = &gpu;
                              return need_of(spec, me.service.times());
                            }});
    }
    knobs.push_back(std::move(knob));
  };
  gpu_knob("hbm", [](Gpu& gpu, double ratio) {
    gpu.hbm = rounded<Bytes>(static_cast<double>(gpu.hbm.count()) * ratio);
    gpu.hbm_usable = rounded<Bytes>(static_cast<double>(gpu.hbm_usable.count()) * ratio);
  });
  gpu_knob("bandwidth",
           [](Gpu& gpu, double ratio) { gpu.hbm_bandwidth = gpu.hbm_bandwidth * ratio; });
  gpu_knob("compute", [](Gpu& gpu, double ratio) {
    for (auto& [dtype, peak] : gpu.peak) peak = peak * ratio;
    gpu.peak_fp32 = gpu.peak_fp32 * ratio;
  });
  const auto spec_knob = [&](const char* name, const std::vector<double>& ratios, auto change) {
    Knob knob{name, {}};
    for (const double ratio : ratios) {
      knob.steps.push_back({times_text(ratio), ratio, [&, ratio, change] {
                              ServeSpec spec = base;
                              change(spec, ratio);
                              return need_of(spec);
                            }});
    }
    knobs.push_back(std::move(knob));
  };
  spec_knob("gpu_count", {2, 4, 8, 16}, [](ServeSpec& spec, double ratio) {
    spec.tensor_parallel *= static_cast<std::int32_t>(ratio);
  });
  if (base.method.budget) {
    spec_knob("budget", {0.5, 0.25, 0.1}, [](ServeSpec& spec, double ratio) {
      spec.method.budget->fraction *= ratio;
      spec.method.budget->entries =
          std::llround(static_cast<double>(spec.method.budget->entries) * ratio);
    });
  }
  const auto bound_knob = [&](const char* name, std::optional<Seconds> SloSpec::*bound) {
    if (!(base.slo.*bound)) return;
    // The required bound is known and is also tried.
    std::vector<double> ratios = knob_ratios();
    const double needed = std::ceil(me.service.at(load).need);
    if (std::isfinite(needed) && needed > ratios.back()) ratios.push_back(needed);
    spec_knob(name, ratios, [bound](ServeSpec& spec, double ratio) {
      *(spec.slo.*bound) = *(spec.slo.*bound) * ratio;
    });
  };
  bound_knob("slo/ttft", &SloSpec::ttft);
  bound_knob("slo/tpot", &SloSpec::tpot);
  bound_knob("slo/e2e", &SloSpec::e2e);
  const std::int64_t chunk =
      resolve_limits(
          with_options(*base.stack, base.options, {base.gpu, base.llm, base.tensor_parallel}),
          base.scheduler)
          .tokens.value_or(0);
  if (chunk > 1) {
    const auto scale = [chunk](ServeSpec& spec, double ratio) {
      const auto tokens =
          std::max<std::int64_t>(1, std::llround(static_cast<double>(chunk) * ratio));
      spec.scheduler.max_num_batched_tokens = tokens;
      spec.options = with_limits(spec.options, spec.scheduler);
    };
    spec_knob("max_num_batched_tokens", {2, 4}, scale);
    spec_knob("max_num_batched_tokens", {0.5, 0.25}, scale);
  }
  if (bits_of(base.kv_dtype) > 8) {
    knobs.push_back({"kv_dtype", {{fmt::format("{} -> fp8_e4m3", name_of(base.kv_dtype)), 0, [&] {
                                     ServeSpec spec = base;
                                     spec.kv_dtype = Dtype::kFp8E4m3;
                                     return need_of(spec);
                                   }}}});
  }
  if (bits_of(base.weight_dtype) > 8 && base.weight_format == nullptr) {
    knobs.push_back({"dtype", {{fmt::format("{} -> fp8_e4m3", name_of(base.weight_dtype)), 0, [&] {
                                  ServeSpec spec = base;
                                  spec.weight_dtype = Dtype::kFp8E4m3;
                                  return need_of(spec);
                                }}}});
  }
  return try_knobs(me.service.at(load).need, knobs);
}

}  // namespace kvsim
