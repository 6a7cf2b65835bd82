#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/assumptions.hpp"
#include "sim/plan/boundary.hpp"
#include "sim/plan/candidate.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/knobs.hpp"
#include "sim/plan/static_case.hpp"
#include "sim/serve/schedulers/limits.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMaxSequences = 1 << 16;
constexpr std::int64_t kMaxPrompt = 1 << 24;

/// Returns the question's run of size n.
Point point_of(const StaticSpec& spec, PlanQuestion question, std::int64_t n) {
  const bool batch = question == PlanQuestion::kLargestBatch;
  return {.batch = batch ? n : spec.batch,
          .prompt_tokens = batch ? spec.prompt_tokens : n,
          .output_tokens = spec.output_tokens};
}

RunSizes sizes_of(const Point& point) {
  return {point.batch, point.prompt_tokens, point.output_tokens};
}

/// Whether a sequence of the run exceeds the positions of the model; a plan does not use more
/// unless the scenario allows it.
bool exceeds_positions(const CandidateInput& in, const Point& point) {
  const std::int64_t positions = in.point->spec.llm->max_positions;
  return !in.plan->beyond_positions && positions > 0 &&
         point.prompt_tokens + point.output_tokens > positions;
}

NextRun beyond_positions(const StaticSpec& spec, const Point& point) {
  const std::int64_t tokens = point.prompt_tokens + point.output_tokens;
  const std::int64_t positions = spec.llm->max_positions;
  NextRun next{.sizes = sizes_of(point)};
  next.why.constraint = "positions";
  next.why.need = static_cast<double>(tokens) / static_cast<double>(positions);
  next.why.text = fmt::format(
      "{} has {} positions for a sequence of {} tokens (--beyond-positions allows more)",
      spec.llm->name, with_commas(positions), with_commas(tokens));
  return next;
}

double ratio_of(Bytes a, Bytes b) {
  return static_cast<double>(a.count()) / static_cast<double>(std::max<std::int64_t>(1, b.count()));
}

/// Returns the resource that a run that does not fit is short of.
NextRun why_not(StaticCase& one, const Point& smallest) {
  NextRun next{.sizes = sizes_of(smallest)};
  Impossible& out = next.why;
  out.need = one.demand_ratio(smallest);
  double ratio = out.need;  // of the listed terms
  if (one.exceeds_model_len(smallest)) {
    out.constraint = "max_model_len";
    out.text = fmt::format("a sequence of {} tokens exceeds max_model_len",
                           with_commas(smallest.prompt_tokens + smallest.output_tokens));
    return next;
  }
  const StaticResult run = one.run(smallest, true);
  next.oom = run.oom;
  const auto part = [&](const char* owner) {
    const auto found = run.peak_owners.find(owner);
    return found == run.peak_owners.end() ? Bytes{} : found->second;
  };
  const PointResult memory = one.memory(smallest);
  const Bytes weights = part("weights");
  // An engine with a paged cache allocates blocks from the memory that remains after the weights.
  const bool started = run.startup && run.startup->kv_cache > Bytes{};
  if (started && run.startup->graphs > run.startup->graphs_room()) {
    out.constraint = "activations";
    out.text = shortage_text(*run.startup);
  } else if (started && run.oom && run.oom->phase == "load") {
    out.constraint = "kv_capacity";
    out.text = fmt::format("the cache exceeds the engine's pool of {}", run.startup->kv_cache);
    if (const Bytes rows = one.memory(smallest).uncompressed; rows > Bytes{}) {
      out.text += fmt::format(" ({} of it rows of prompts before compression)", rows);
    }
  } else if (weights >= run.usable_hbm ||
             (run.oom && run.oom->phase == "load" &&
              !(run.startup && run.startup->weights < run.usable_hbm))) {
    out.constraint = "weights";
    const Bytes taken = std::max(weights, run.oom ? run.oom->requested : Bytes{});
    out.text =
        fmt::format("the weights do not fit: {} are usable, they need {}", run.usable_hbm, taken);
    ratio = ratio_of(taken, run.usable_hbm);
  } else if (run.startup && run.startup->missing > Bytes{}) {
    out.constraint = "kv_capacity";
    out.text = start_text(one.start_of(run));
  } else if (weights + memory.kv_bytes > run.usable_hbm ||
             memory.decode_peak >= memory.prefill_peak) {
    const Bytes rest = memory.peak() - weights - memory.kv_bytes;
    out.constraint = "kv_capacity";
    out.text = fmt::format("{} of weights + {} of cache + {} of the rest = {}, of {} usable",
                           weights, memory.kv_bytes, rest, memory.peak(), run.usable_hbm);
    ratio = ratio_of(memory.peak(), run.usable_hbm);
  } else {
    out.constraint = "activations";
    out.text = fmt::format("prefill needs {} of {} usable", memory.prefill_peak, run.usable_hbm);
    if (run.oom) out.text += fmt::format(": {}", run.oom->what);
    ratio = ratio_of(memory.prefill_peak, run.usable_hbm);
  }
  // Ratios below this (one token too many) are not reported.
  constexpr double kTelling = 1.005;
  if (std::isfinite(ratio) && ratio >= kTelling) {
    out.text += fmt::format("; {:.2f} times the available memory", ratio);
  }
  out.text += one.margin_words(smallest);
  return next;
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
  if (run.prefill_time) {
    out.at_answer = RunAtAnswer{.peak = run.peak_hbm,
                                .usable = run.usable_hbm,
                                .ttft_s = run.prefill_time->count(),
                                .decode_tok_s = run.decode_tok_s.value_or(0),
                                .sizes = sizes_of(point_of(spec, question, answer)),
                                .peak_phase = run.peak_phase,
                                .terms = run.peak_terms};
    Point alone = point_of(spec, question, answer);
    alone.batch = 1;
    const PointResult single = one.at(alone);
    out.at_answer->ttft_one_s =
        single.times ? single.times->prefill.count() : run.prefill_time->count();
    if (run.startup) {
      if (std::string text = state_limit_text(*run.startup); !text.empty()) {
        out.notes.push_back(std::move(text));
      }
    }
    const PointResult tight = one.memory(point_of(spec, question, answer));
    out.at_answer->free_at_confidence = tight.usable - tight.peak();
  }
  if (run.intervals && run.prefill_time && run.decode_time) {
    // Interval of the whole run: errors of the parts are those of the same kernels and fully
    // correlated.
    std::optional<Interval> whole = run.intervals->prefill;
    if (whole && run.intervals->decode) {
      whole->low += run.intervals->decode->low;
      whole->high += run.intervals->decode->high;
    } else if (spec.output_tokens > 0) {
      whole.reset();
    }
    const ConservativeBound end =
        time_end(*run.prefill_time + *run.decode_time, whole, in.plan->confidence);
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
    at.gpus = spec.gpus();
    at.ttft_s = result.times->prefill.count() * out.time_factor;
    at.tpot_s =
        result.times->decode.count() / static_cast<double>(spec.output_tokens) * out.time_factor;
    at.latency_s = (result.times->prefill.count() + result.times->decode.count()) * out.time_factor;
    at.tokens_s = result.times->tok_s / out.time_factor;
    at.cost = in.gpu_hour * static_cast<double>(spec.gpus()) / kHour / at.tokens_s * kMillion;
    at.error = in.error;
    if (question == PlanQuestion::kLongestContext) {
      at.size = static_cast<double>(n + spec.output_tokens);
    }
    out.points.push_back(at);
  }
}

/// Returns the largest size that fits with the memory at `margin`; nullopt if not even the smallest
/// does.
std::optional<std::int64_t> last_size(const CandidateInput& in, PlanQuestion question,
                                      std::int64_t max, MemoryMargin margin) {
  StaticCase one{in.point->spec, in.method, in.point->measured, std::move(margin),
                 in.plan->confidence};
  return largest_feasible(
             {.min = 1, .max = max, .start = 1},
             [&](std::int64_t n) { return one.memory(point_of(in.point->spec, question, n)).fits; })
      .last;
}

/// `found`: the size at the requested confidence.
AnswerRange range_of(const CandidateInput& in, PlanQuestion question, std::int64_t max,
                     std::optional<std::int64_t> found) {
  const StaticSpec& spec = in.point->spec;
  const double confidence = range_confidence(in.plan->confidence);
  const bool is_prediction = in.plan->confidence == 0;
  const MemoryMargin worse = memory_end(*spec.stack, spec.gpus(), confidence);
  const MemoryMargin better = better_memory_end(*spec.stack, spec.gpus(), confidence);
  const auto answer = [&](std::optional<std::int64_t> size) -> std::optional<double> {
    if (!size) return std::nullopt;
    const bool batch = question == PlanQuestion::kLargestBatch;
    return static_cast<double>(*size + (batch ? 0 : spec.output_tokens));
  };
  AnswerRange out;
  out.predicted = answer(is_prediction ? found : last_size(in, question, max, {}));
  out.is_known = worse.end != better.end;
  if (!out.is_known) return out;
  out.safe = answer(is_prediction ? last_size(in, question, max, worse) : found);
  out.optimistic = answer(last_size(in, question, max, better));
  return out;
}

}  // namespace

void plan_static(const CandidateInput& in, PlanCandidate& out) {
  const StaticSpec& spec = in.point->spec;
  StaticCase one{spec, in.method, in.point->measured,
                 memory_end(*spec.stack, spec.gpus(), in.plan->confidence), in.plan->confidence};
  out.memory = one.margin();
  const PlanQuestion question = out.question;
  const bool batch = question == PlanQuestion::kLargestBatch;
  const Stack engine =
      with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel});
  const std::int64_t together = resolve_limits(engine).seqs.value_or(0);
  const Point smallest = point_of(spec, question, 1);
  if (exceeds_positions(in, smallest)) {
    out.impossible = beyond_positions(spec, smallest).why;
    return;
  }
  const std::int64_t positions = spec.llm->max_positions;
  const std::int64_t longest = in.plan->beyond_positions || positions == 0
                                   ? kMaxPrompt
                                   : std::min(kMaxPrompt, positions - spec.output_tokens);
  const std::int64_t max = !batch         ? longest
                           : together > 0 ? std::min(together, kMaxSequences)
                                          : kMaxSequences;
  const Boundary found = largest_feasible({.min = 1, .max = max, .start = 1}, [&](std::int64_t n) {
    return one.memory(point_of(spec, question, n)).fits;
  });
  out.probes = found.probes;
  out.monotone = found.monotone;
  out.range = range_of(in, question, max, found.last);
  if (!found.last) {
    out.impossible = why_not(one, smallest).why;
    return;
  }
  const Point next = point_of(spec, question, *found.last + 1);
  const bool at_positions = found.at_most && exceeds_positions(in, next);
  out.at_most = found.at_most && !at_positions;
  if (batch && found.at_most && together == *found.last) {
    out.notes.push_back(fmt::format("no more than max_num_seqs {} run at once", together));
  }
  if (auto note = exceeded_num_seqs(engine, batch ? 1 : spec.batch)) {
    out.notes.push_back(std::move(*note));
  }
  const std::int64_t prompt = batch ? spec.prompt_tokens : *found.last;
  out.answer = static_cast<double>(batch ? *found.last : *found.last + spec.output_tokens);
  if (at_positions) {
    out.runs_out = beyond_positions(spec, next);
  } else if (!found.at_most) {
    out.runs_out = why_not(one, next);
  }
  if (!one.resolves(prompt)) {
    out.notes.push_back(fmt::format("a prompt of {} tokens is too short for {} and holds them all",
                                    with_commas(prompt), in.method.name));
  }
  if (positions > 0 && prompt + spec.output_tokens > positions) {
    out.positions = positions;
    out.notes.push_back(fmt::format("{} has {} positions; the answer counts memory only",
                                    spec.llm->name, with_commas(positions)));
  }
  add_points(in, question, one, *found.last, out);
}

std::vector<KnobEffect> static_knobs(const CandidateInput& in, PlanQuestion question) {
  const StaticSpec& base = in.point->spec;
  const Point smallest = point_of(base, question, 1);
  const auto need_of = [&](const StaticSpec& spec, const MethodSpec& method) {
    StaticCase one{spec, method, in.point->measured,
                   memory_end(*spec.stack, spec.gpus(), in.plan->confidence), in.plan->confidence};
    return one.demand_ratio(smallest);
  };
  // An impossible change does not help.
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
                             return rounded<Bytes>(static_cast<double>(b.count()) * ratio);
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
  const Stack stack =
      with_options(*base.stack, base.options, {base.gpu, base.llm, base.tensor_parallel});
  const std::int64_t tokens = resolve_limits(stack).tokens.value_or(0);
  if (stack.growth == CacheGrowth::kPaged && tokens > 1) {
    Knob chunk{"max_num_batched_tokens", {}};
    for (const double ratio : {0.5, 0.25}) {
      chunk.steps.push_back({times_text(ratio), ratio, [&, ratio] {
                               StaticSpec spec = base;
                               spec.options.prefill_chunk = std::max<std::int64_t>(
                                   1, std::llround(static_cast<double>(tokens) * ratio));
                               return tried([&] { return need_of(spec, in.method); });
                             }});
    }
    knobs.push_back(std::move(chunk));
  }
  StaticCase one{base, in.method, in.point->measured,
                 memory_end(*base.stack, base.gpus(), in.plan->confidence), in.plan->confidence};
  return try_knobs(one.demand_ratio(smallest), knobs);
}

}  // namespace kvsim
