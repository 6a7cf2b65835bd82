#include "sim/batch/point/fit_range.hpp"

#include <memory>

#include "models/cost/iteration/layer_split.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/network/expert_network.hpp"

namespace kvsim {
namespace {

/// GPU, options and memory of a run at one end; its point refers to them.
struct Machine {
  Gpu gpu;
  StackOptions options;
  MemoryEnd memory;  // of a stack without a pool
};

PointSpec point_spec(const StaticSpec& spec, const Machine& machine, std::int32_t ranks) {
  return {.llm = spec.llm,
          .gpu = &machine.gpu,
          .stack = spec.stack,
          .method = [&spec](std::int64_t) { return spec.method; },
          .weight_dtype = spec.weight_dtype,
          .kv_dtype = spec.kv_dtype,
          .calibration = spec.calibration,
          .weight_format = spec.weight_format,
          .tensor_parallel = ranks,
          .options = machine.options,
          .memory = machine.memory};
}

enum class End : std::uint8_t { kLow, kPredicted, kHigh };  // of a run's memory

class Search {
 public:
  explicit Search(const StaticSpec& spec)
      : spec_{spec},
        stack_{
            with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel})} {}

  /// The largest batch with the memory at `end`. `startup`: the run's.
  [[nodiscard]] std::int64_t batch(End end, const std::optional<EngineStartup>& startup) const {
    const Machine machine = machine_at(end, spec_.tensor_parallel, startup);
    CompiledPoint point{point_spec(spec_, machine, spec_.tensor_parallel)};
    return point.largest_batch(spec_.prompt_tokens, spec_.output_tokens, FitRange::kMaxBatch)
        .value_or(0);
  }

  /// The fewest GPUs, at least `first`, with the memory at `end`; per group of GPUs over which
  /// prompts are split.
  [[nodiscard]] std::optional<std::int32_t> gpus(End end, std::int32_t first) const {
    for (std::int32_t ranks = first; ranks <= FitRange::kMaxGpus / parts(); ++ranks) {
      if (!divides(ranks)) continue;
      const Machine machine =
          machine_at(end, ranks, end == End::kPredicted ? std::nullopt : startup_on(ranks));
      CompiledPoint point{point_spec(spec_, machine, ranks)};
      const Point size{.batch = spec_.batch,
                       .prompt_tokens = spec_.prompt_tokens,
                       .output_tokens = spec_.output_tokens};
      if (point.memory_at(size).fits) return ranks;
    }
    return std::nullopt;
  }

  /// Number of groups of GPUs over which prompts are split.
  [[nodiscard]] std::int32_t parts() const { return stack_.prefill_context; }

 private:
  [[nodiscard]] Machine machine_at(End end, std::int32_t ranks,
                                   const std::optional<EngineStartup>& startup) const {
    Machine out{.gpu = *spec_.gpu, .options = spec_.options, .memory = {}};
    const auto ends = memory_ends(stack_, ranks * parts());
    if (!ends || end == End::kPredicted) return out;
    const MemoryEnd& memory = end == End::kLow ? ends->low : ends->high;
    if (startup) {
      set_start_end(memory.terms, *startup, out.gpu, out.options);
    } else {
      out.memory = memory;
    }
    return out;
  }
  /// An engine's start-up on `ranks` GPUs.
  [[nodiscard]] std::optional<EngineStartup> startup_on(std::int32_t ranks) const {
    if (stack_.growth != CacheGrowth::kPaged) return std::nullopt;
    StaticSpec start = spec_;
    start.tensor_parallel = ranks;
    start.batch = 1;
    start.output_tokens = 0;
    start.allocator.reset();
    if (!start.options.max_model_len) {
      start.options.max_model_len = spec_.prompt_tokens + spec_.output_tokens;
    }
    constexpr std::size_t kMin = 3;
    return run_static(start, {.max_samples = kMin}).startup;
  }
  [[nodiscard]] bool divides(std::int32_t ranks) const {
    try {
      check_gpus(*spec_.llm, stack_, ranks);
      check_expert_parallel(*spec_.llm, *spec_.gpu, stack_, ranks);
    } catch (const InputError&) {
      return false;
    }
    return true;
  }

  const StaticSpec& spec_;
  Stack stack_;
};

/// Tokens at the OOM of the same run with the memory at `end`; nullopt: it fits. `predicted`: the
/// run as predicted. Its activations at the peak, or at its OOM, apply to the whole run.
std::optional<std::int64_t> oom_tokens_at(const StaticSpec& spec, const MemoryEnd& end,
                                          const StaticResult& predicted) {
  Gpu gpu = *spec.gpu;
  StaticSpec other = spec;
  if (predicted.startup) {
    set_start_end(end.terms, *predicted.startup, gpu, other.options);
  } else {
    const Stack stack =
        with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel});
    Bytes activations = activations_of(stack, predicted.peak_owners);
    if (predicted.oom && predicted.oom->phase != "load") activations += predicted.oom->requested;
    reduce_memory(gpu, stack, beyond_prediction(end, activations));
  }
  other.gpu = &gpu;
  other.allocator.reset();
  constexpr std::size_t kMin = 3;
  const StaticResult result = run_static(other, {.max_samples = kMin});
  if (!result.oom) return std::nullopt;
  return result.oom->tokens;
}

}  // namespace

FitRange fit_range(const StaticSpec& spec, const std::optional<EngineStartup>& startup) {
  StaticSpec as_run = spec;
  if (spec.stack->masks_evicted) as_run.method = masked(spec.method);
  const Search search{as_run};
  FitRange out;
  out.batch = search.batch(End::kPredicted, startup);
  if (memory_ends(*spec.stack, spec.gpus())) {
    out.batch_low = search.batch(End::kHigh, startup);
    out.batch_high = search.batch(End::kLow, startup);
    // Each search starts at the result of the previous one: a run that takes more memory never
    // needs fewer GPUs.
    out.gpus_low = search.gpus(End::kLow, 1);
    if (out.gpus_low) out.gpus = search.gpus(End::kPredicted, *out.gpus_low);
    if (out.gpus) out.gpus_high = search.gpus(End::kHigh, *out.gpus);
  } else {
    out.gpus = search.gpus(End::kPredicted, 1);
  }
  for (std::optional<std::int32_t>* const gpus : {&out.gpus_low, &out.gpus, &out.gpus_high}) {
    if (*gpus) **gpus *= search.parts();
  }
  return out;
}

void find_oom_range(const StaticSpec& spec, StaticResult& result) {
  const auto ends = memory_ends(*spec.stack, spec.gpus());
  if (!ends) return;
  RunIntervals& intervals = *result.intervals;
  // A run that fits at the high end of the interval needs no second run.
  const bool roomy = intervals.peak && !ends->by_term && intervals.peak->high <= result.usable_hbm;
  if (!roomy) intervals.oom_low = oom_tokens_at(spec, ends->high, result);
  if (result.oom) intervals.oom_high = oom_tokens_at(spec, ends->low, result);
}

}  // namespace kvsim
