#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "models/methods/measured.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/plan/boundary.hpp"
#include "sim/plan/candidate.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/knobs.hpp"
#include "sim/serve/compiled_point.hpp"
#include "sim/serve/sequence_law.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMostSequences = 1 << 16;
constexpr std::int64_t kMostPrompt = 1 << 24;
constexpr std::size_t kFewestSamples = 3;

/// A combination as a plan counts it: with the memory that is left at its confidence.
class StaticCase {
 public:
  StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
             double confidence)
      : spec_{std::move(spec)}, method_{std::move(method)}, law_{std::move(law)} {
    const Stack stack = with_options(*spec_.stack, spec_.options);
    end_ = memory_end(*spec_.stack, confidence);
    spec_.method = settle(spec_.prompt_tokens);
    spec_.allocator.reset();
    Bytes not_cache;
    if (stack.growth == CacheGrowth::kPaged && end_.factor != 1) {
      StaticSpec least = spec_;
      least.batch = 1;
      least.output_tokens = 0;
      const StaticResult start = run_static(least, {.max_samples = kFewestSamples});
      if (start.startup) {
        not_cache = start.startup->weights + start.startup->non_torch + start.startup->activation;
      }
    }
    gpu_ = gpu_at(*spec_.gpu, stack, end_, not_cache);
    compiled_ = std::make_unique<CompiledPoint>(
        PointSpec{.llm = spec_.llm,
                  .gpu = &gpu_,
                  .stack = spec_.stack,
                  .method = [this](std::int64_t prompt) { return settle(prompt); },
                  .one_method = false,
                  .weight_dtype = spec_.weight_dtype,
                  .kv_dtype = spec_.kv_dtype,
                  .calibration = spec_.calibration,
                  .weight_format = spec_.weight_format,
                  .tensor_parallel = spec_.tensor_parallel,
                  .options = spec_.options});
  }
  StaticCase(const StaticCase&) = delete;
  StaticCase& operator=(const StaticCase&) = delete;

  [[nodiscard]] const WorseEnd& end() const { return end_; }
  [[nodiscard]] PointResult memory(const Point& point) { return compiled_->memory_at(point); }
  [[nodiscard]] PointResult at(const Point& point) { return compiled_->at(point); }
  /// Wanted over what there is.
  [[nodiscard]] double need(const Point& point) {
    const PointResult result = memory(point);
    if (result.usable <= Bytes{}) return INFINITY;
    return static_cast<double>(result.peak().count()) / static_cast<double>(result.usable.count());
  }
  /// run_static of it: with the memory at the confidence, or with the GPU's own and intervals.
  [[nodiscard]] StaticResult run(const Point& point, bool at_confidence) const {
    StaticSpec one = spec_;
    one.batch = point.batch;
    one.prompt_tokens = point.prompt_tokens;
    one.output_tokens = point.output_tokens;
    one.method = settle(point.prompt_tokens);
    if (at_confidence) one.gpu = &gpu_;
    return run_static(one, {.max_samples = kFewestSamples, .intervals = !at_confidence});
  }
  /// Prompts too short for the method hold every token.
  [[nodiscard]] bool settles(std::int64_t prompt) const {
    try {
      (void)make_method(method_, prompt, method_site(*spec_.llm, spec_.kv_dtype));
      return true;
    } catch (const InputError&) {
      return false;
    }
  }

 private:
  [[nodiscard]] std::shared_ptr<const Method> settle(std::int64_t prompt) const {
    const MethodSite site = method_site(*spec_.llm, spec_.kv_dtype);
    try {
      auto method = make_method(method_, prompt, site);
      return law_ ? with_measured_law(std::move(method), *law_, spec_.llm->n_layers()) : method;
    } catch (const InputError&) {
      return make_method({"full", {}, {}}, prompt, site);
    }
  }

  StaticSpec spec_;
  MethodSpec method_;
  std::shared_ptr<const MeasuredLaw> law_;
  WorseEnd end_;
  Gpu gpu_;
  std::unique_ptr<CompiledPoint> compiled_;
};

/// The run that size n of the question stands for.
Point point_of(const StaticSpec& spec, PlanQuestion question, std::int64_t n) {
  const bool batch = question == PlanQuestion::kLargestBatch;
  return {.batch = batch ? n : spec.batch,
          .prompt_tokens = batch ? spec.prompt_tokens : n,
          .output_tokens = spec.output_tokens};
}

Impossible why_not(StaticCase& one, const Point& least) {
  Impossible out;
  out.need = one.need(least);
  const StaticResult run = one.run(least, true);
  const auto part = [&](const char* owner) {
    const auto found = run.peak_owners.find(owner);
    return found == run.peak_owners.end() ? Bytes{} : found->second;
  };
  const PointResult memory = one.memory(least);
  const Bytes weights = part("weights");
  if (weights >= run.usable_hbm || (run.oom && run.oom->phase == "load")) {
    out.constraint = "weights";
    out.text =
        fmt::format("the weights do not fit: of {} that may be used they take {}", run.usable_hbm,
                    std::max(weights, run.oom ? run.oom->requested : Bytes{}));
  } else if (weights + memory.kv_bytes > run.usable_hbm ||
             memory.decode_peak >= memory.prefill_peak) {
    out.constraint = "kv_capacity";
    out.text = fmt::format("the cache of {} does not fit beside {} of weights in {}",
                           memory.kv_bytes, weights, run.usable_hbm);
  } else {
    out.constraint = "activations";
    out.text = fmt::format("prefill stands at {} of {}", memory.prefill_peak, run.usable_hbm);
    if (run.oom) out.text += fmt::format(": {}", run.oom->what);
  }
  if (std::isfinite(out.need) && out.need > 1) {
    out.text += fmt::format("; {:.2f} times what there is", out.need);
  }
  return out;
}

void add_points(const CandidateInput& in, PlanQuestion question, StaticCase& one,
                std::int64_t answer, PlanCandidate& out) {
  const StaticSpec& spec = in.point->spec;
  std::vector<std::int64_t> sizes;
  if (question == PlanQuestion::kLargestBatch) {
    for (std::int64_t n = 1; n < answer; n *= 2) sizes.push_back(n);
  }
  sizes.push_back(answer);
  const StaticResult run = one.run(point_of(spec, question, answer), false);
  if (run.intervals && run.prefill_time && run.decode_time) {
    // Of the whole run: the parts' errors are those of the same kernels, and go together.
    std::optional<Interval> whole = run.intervals->prefill;
    if (whole && run.intervals->decode) {
      whole->low += run.intervals->decode->low;
      whole->high += run.intervals->decode->high;
    } else if (spec.output_tokens > 0) {
      whole.reset();
    }
    const WorseEnd end = time_end(*run.prefill_time + *run.decode_time, whole, in.plan->confidence);
    out.time_factor = end.factor;
  }
  if (run.intervals) out.time_basis = run.intervals->time_basis;
  constexpr double kHour = 3600;
  constexpr double kMillion = 1e6;
  for (const std::int64_t n : sizes) {
    const Point point = point_of(spec, question, n);
    const PointResult result = one.at(point);
    if (!result.times || !(result.times->tok_s > 0)) continue;
    OperatingPoint at;
    at.load = static_cast<double>(point.batch);
    at.gpus = spec.tensor_parallel;
    at.latency_s = (result.times->prefill.count() + result.times->decode.count()) * out.time_factor;
    at.tokens_s = result.times->tok_s / out.time_factor;
    at.cost =
        in.gpu_hour * static_cast<double>(spec.tensor_parallel) / kHour / at.tokens_s * kMillion;
    at.error = in.error;
    if (question == PlanQuestion::kLongestContext) {
      at.size = static_cast<double>(n + spec.output_tokens);
    }
    out.points.push_back(at);
  }
}

}  // namespace

void plan_static(const CandidateInput& in, PlanCandidate& out) {
  const StaticSpec& spec = in.point->spec;
  StaticCase one{spec, in.method, in.point->measured, in.plan->confidence};
  out.memory_factor = one.end().factor;
  out.memory_basis = one.end().basis;
  const PlanQuestion question = out.question;
  const bool batch = question == PlanQuestion::kLargestBatch;
  const std::int64_t together = with_options(*spec.stack, spec.options).max_num_seqs;
  const std::int64_t most = !batch         ? kMostPrompt
                            : together > 0 ? std::min(together, kMostSequences)
                                           : kMostSequences;
  const Boundary found =
      last_that_holds({.least = 1, .most = most, .start = 1},
                      [&](std::int64_t n) { return one.memory(point_of(spec, question, n)).fits; });
  out.probes = found.probes;
  out.monotone = found.monotone;
  out.at_most = found.at_most;
  if (!found.last) {
    out.impossible = why_not(one, point_of(spec, question, 1));
    return;
  }
  if (batch && found.at_most && together == *found.last) {
    out.notes.push_back(fmt::format("no more than max_num_seqs {} run at once", together));
  }
  const std::int64_t prompt = batch ? spec.prompt_tokens : *found.last;
  out.answer = static_cast<double>(batch ? *found.last : *found.last + spec.output_tokens);
  if (!one.settles(prompt)) {
    out.notes.push_back(fmt::format("a prompt of {} tokens is too short for {} and holds them all",
                                    with_commas(prompt), in.method.name));
  }
  const std::int64_t positions = spec.llm->max_positions;
  if (positions > 0 && prompt + spec.output_tokens > positions) {
    out.positions = positions;
    out.notes.push_back(fmt::format("{} is published for {} positions; memory alone is counted",
                                    spec.llm->name, with_commas(positions)));
  }
  add_points(in, question, one, *found.last, out);
}

std::vector<KnobEffect> static_knobs(const CandidateInput& in, PlanQuestion question) {
  const StaticSpec& base = in.point->spec;
  const Point least = point_of(base, question, 1);
  const auto need_of = [&](const StaticSpec& spec, const MethodSpec& method) {
    StaticCase one{spec, method, in.point->measured, in.plan->confidence};
    return one.need(least);
  };
  // What cannot be at all is no help.
  const auto tried = [](auto&& need) {
    try {
      return need();
    } catch (const InputError&) {
      return static_cast<double>(INFINITY);
    }
  };
  std::vector<Knob> knobs;
  Knob hbm{"hbm", {}};
  for (const double ratio : knob_ratios()) {
    hbm.steps.push_back({times_text(ratio), ratio, [&, ratio] {
                           Gpu gpu = *base.gpu;
                           const auto grown = [&](Bytes b) {
                             return Bytes{std::llround(static_cast<double>(b.count()) * ratio)};
                           };
                           gpu.hbm = grown(gpu.hbm);
                           gpu.hbm_usable = grown(gpu.hbm_usable);
                           StaticSpec spec = base;
                           spec.gpu = &gpu;
                           return need_of(spec, in.method);
                         }});
  }
  knobs.push_back(std::move(hbm));
  Knob gpus{"gpu_count", {}};
  for (const std::int32_t ratio : {2, 4, 8, 16}) {
    gpus.steps.push_back({times_text(ratio), static_cast<double>(ratio), [&, ratio] {
                            StaticSpec spec = base;
                            spec.tensor_parallel *= ratio;
                            return tried([&] { return need_of(spec, in.method); });
                          }});
  }
  knobs.push_back(std::move(gpus));
  if (in.method.budget) {
    Knob budget{"budget", {}};
    for (const double ratio : {0.5, 0.25, 0.1}) {
      budget.steps.push_back({times_text(ratio), ratio, [&, ratio] {
                                MethodSpec method = in.method;
                                method.budget->fraction *= ratio;
                                method.budget->entries = std::llround(
                                    static_cast<double>(method.budget->entries) * ratio);
                                return need_of(base, method);
                              }});
    }
    knobs.push_back(std::move(budget));
  }
  if (bits_of(base.kv_dtype) > 8) {
    knobs.push_back({"kv_dtype", {{fmt::format("{} -> fp8_e4m3", name_of(base.kv_dtype)), 0, [&] {
                                     StaticSpec spec = base;
                                     spec.kv_dtype = Dtype::kFp8E4m3;
                                     return tried([&] { return need_of(spec, in.method); });
                                   }}}});
  }
  if (bits_of(base.weight_dtype) > 8 && base.weight_format == nullptr) {
    const auto with = [&](Dtype dtype) {
      return KnobStep{fmt::format("{} -> {}", name_of(base.weight_dtype), name_of(dtype)), 0,
                      [&, dtype] {
                        StaticSpec spec = base;
                        spec.weight_dtype = dtype;
                        return tried([&] { return need_of(spec, in.method); });
                      }};
    };
    knobs.push_back({"dtype", {with(Dtype::kFp8E4m3), with(Dtype::kInt4)}});
  }
  const Stack stack = with_options(*base.stack, base.options);
  if (stack.growth == CacheGrowth::kPaged && stack.prefill_chunk > 1) {
    Knob chunk{"max_num_batched_tokens", {}};
    for (const double ratio : {0.5, 0.25}) {
      chunk.steps.push_back({times_text(ratio), ratio, [&, ratio] {
                               StaticSpec spec = base;
                               spec.options.prefill_chunk = std::max<std::int64_t>(
                                   1,
                                   std::llround(static_cast<double>(stack.prefill_chunk) * ratio));
                               return need_of(spec, in.method);
                             }});
    }
    knobs.push_back(std::move(chunk));
  }
  StaticCase one{base, in.method, in.point->measured, in.plan->confidence};
  return try_knobs(one.need(least), knobs);
}

}  // namespace kvsim
