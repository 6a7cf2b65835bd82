#include "sim/plan/static_case.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvsim {
namespace {

constexpr std::size_t kMinSamples = 3;

}  // namespace

StaticCase::StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
                       MemoryMargin margin, double confidence)
    : spec_{std::move(spec)},
      method_{std::move(method), *spec_.llm, spec_.kv_dtype, std::move(law)},
      margin_{std::move(margin)},
      confidence_{confidence},
      gpu_{*spec_.gpu},
      options_{spec_.options} {
  spec_.method = method_.at(spec_.prompt_tokens);
  spec_.allocator.reset();
  if (margin_.end.terms != TermFactors{} && spec_.stack->growth == CacheGrowth::kPaged) {
    StaticSpec smallest = spec_;
    smallest.batch = 1;
    smallest.output_tokens = 0;
    startup_ = run_static(smallest, {.max_samples = kMinSamples}).startup;
    set_start_end(margin_.end.terms, *startup_, gpu_, options_);
  }
  compiled_ = std::make_unique<CompiledPoint>(
      PointSpec{.llm = spec_.llm,
                .gpu = &gpu_,
                .stack = spec_.stack,
                .method = [this](std::int64_t prompt) { return method_.at(prompt); },
                .weight_dtype = spec_.weight_dtype,
                .kv_dtype = spec_.kv_dtype,
                .calibration = spec_.calibration,
                .weight_format = spec_.weight_format,
                .tensor_parallel = spec_.tensor_parallel,
                .options = options_,
                .memory = margin_.end});
}

EngineStartup StaticCase::start_of(const StaticResult& run) const {
  if (!startup_) return *run.startup;
  return at_factors(*startup_, margin_.end.terms, stack_as_run(), spec_.options);
}

PointResult StaticCase::memory(const Point& point) {
  PointResult result = compiled_->memory_at(point);
  result.fits = result.fits && !exceeds_model_len(point);
  return result;
}

bool StaticCase::exceeds_model_len(const Point& point) const {
  const auto& longest = spec_.options.max_model_len;
  return longest && point.prompt_tokens + point.output_tokens > *longest;
}

double StaticCase::demand_ratio(const Point& point) {
  const double ratio = memory(point).demand_ratio;
  if (!exceeds_model_len(point)) return ratio;
  const auto tokens = static_cast<double>(point.prompt_tokens + point.output_tokens);
  return std::max(ratio, tokens / static_cast<double>(*spec_.options.max_model_len));
}

Bytes StaticCase::safety_margin(const Point& point) {
  if (margin_.end == MemoryEnd{} || startup_) return {};
  return fraction_bytes(stack_as_run(), spec_.gpu->hbm_usable) - compiled_->memory_at(point).usable;
}

StaticResult StaticCase::run(const Point& point, bool at_end) {
  StaticSpec one = spec_;
  one.batch = point.batch;
  one.prompt_tokens = point.prompt_tokens;
  one.output_tokens = point.output_tokens;
  one.method = method_.at(point.prompt_tokens);
  Gpu gpu = gpu_;
  if (at_end) {
    reduce_memory(gpu, stack_as_run(), safety_margin(point));
    one.gpu = &gpu;
    one.options = options_;
  }
  return run_static(one, {.max_samples = kMinSamples, .intervals = !at_end});
}

}  // namespace kvsim
