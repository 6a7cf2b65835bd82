#include "sim/serve/fit_range.hpp"

#include <memory>

#include "models/llm/weight_format.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/serve/compiled_point.hpp"
#include "sim/serve/service_topology.hpp"
#include "sim/serve/static_run.hpp"

namespace kvsim {
namespace {

/// The run as a point on `gpu`, which outlives it.
PointSpec point_spec(const StaticSpec& spec, const Gpu& gpu, std::int32_t ranks) {
  return {.llm = spec.llm,
          .gpu = &gpu,
          .stack = spec.stack,
          .method =
              [&spec](std::int64_t) {
                return SettledMethod{spec.method, PromptRange::all()};
              },
          .weight_dtype = spec.weight_dtype,
          .kv_dtype = spec.kv_dtype,
          .calibration = spec.calibration,
          .weight_format = spec.weight_format,
          .tensor_parallel = ranks,
          .options = spec.options};
}

class Search {
 public:
  Search(const StaticSpec& spec, const std::optional<MemoryResidual>& residual)
      : spec_{spec},
        residual_{residual},
        stack_{
            with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel})} {}

  /// The largest batch of a run that takes `factor` times what is predicted.
  [[nodiscard]] std::int64_t batch(double factor,
                                   const std::optional<EngineStartup>& startup) const {
    const Gpu gpu = gpu_for(factor, startup);
    CompiledPoint point{point_spec(spec_, gpu, spec_.tensor_parallel)};
    return point.largest_batch(spec_.prompt_tokens, spec_.output_tokens, FitRange::kMostBatch)
        .value_or(0);
  }

  /// The fewest GPUs, from `first` on, likewise.
  [[nodiscard]] std::optional<std::int32_t> gpus(double factor, std::int32_t first) const {
    for (std::int32_t ranks = first; ranks <= FitRange::kMostGpus; ++ranks) {
      if (!divides(ranks)) continue;
      const Gpu gpu = factor == 1 ? *spec_.gpu : gpu_for(factor, startup(ranks));
      CompiledPoint point{point_spec(spec_, gpu, ranks)};
      const Point size{.batch = spec_.batch,
                       .prompt_tokens = spec_.prompt_tokens,
                       .output_tokens = spec_.output_tokens};
      if (point.memory_at(size).fits) return ranks;
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] Gpu gpu_for(double factor, const std::optional<EngineStartup>& startup) const {
    return factor == 1 ? *spec_.gpu : with_memory_for(*spec_.gpu, *residual_, factor, startup);
  }
  [[nodiscard]] bool divides(std::int32_t ranks) const {
    try {
      if (ranks > 1) (void)tensor_shard(*spec_.llm, ranks);
      check_expert_parallel(*spec_.llm, *spec_.gpu, stack_, ranks);
    } catch (const InputError&) {
      return false;
    }
    return true;
  }
  /// An engine's start on so many GPUs.
  [[nodiscard]] std::optional<EngineStartup> startup(std::int32_t ranks) const {
    if (!residual_->without_cache) return std::nullopt;
    StaticSpec start = spec_;
    start.tensor_parallel = ranks;
    start.batch = 1;
    start.output_tokens = 0;
    start.allocator.reset();
    if (!start.options.max_model_len) {
      start.options.max_model_len = spec_.prompt_tokens + spec_.output_tokens;
    }
    constexpr std::size_t kFewest = 3;
    return run_static(start, {.max_samples = kFewest}).startup;
  }

  const StaticSpec& spec_;
  const std::optional<MemoryResidual>& residual_;
  Stack stack_;
};

}  // namespace

FitRange fit_range(const StaticSpec& spec, const std::optional<MemoryResidual>& residual,
                   const std::optional<EngineStartup>& startup) {
  const Search search{spec, residual};
  FitRange out;
  out.batch = search.batch(1, startup);
  if (residual) {
    out.batch_low = search.batch(residual->high, startup);
    out.batch_high = search.batch(residual->low, startup);
    // Each end starts where the one before it ended: more memory never takes more GPUs.
    out.gpus_low = search.gpus(residual->low, 1);
    if (out.gpus_low) out.gpus = search.gpus(1, *out.gpus_low);
    if (out.gpus) out.gpus_high = search.gpus(residual->high, *out.gpus);
  } else {
    out.gpus = search.gpus(1, 1);
  }
  return out;
}

}  // namespace kvsim
