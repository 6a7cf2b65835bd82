#include "sim/plan/static_case.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvsim {
namespace {

constexpr std::size_t kFewestSamples = 3;

}  // namespace

StaticCase::StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
                       WorseEnd end)
    : spec_{std::move(spec)},
      method_{std::move(method), *spec_.llm, spec_.kv_dtype, std::move(law)},
      end_{std::move(end)} {
  const Stack stack =
      with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel});
  spec_.method = method_.at(spec_.prompt_tokens).method;
  spec_.allocator.reset();
  std::optional<EngineStartup> startup;
  if (stack.growth == CacheGrowth::kPaged && end_.factor != 1) {
    StaticSpec least = spec_;
    least.batch = 1;
    least.output_tokens = 0;
    startup = run_static(least, {.max_samples = kFewestSamples}).startup;
  }
  gpu_ = gpu_at(*spec_.gpu, stack, end_, startup);
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
                .options = spec_.options});
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

double StaticCase::need(const Point& point) {
  const double need = memory(point).need;
  if (!exceeds_model_len(point)) return need;
  const auto tokens = static_cast<double>(point.prompt_tokens + point.output_tokens);
  return std::max(need, tokens / static_cast<double>(*spec_.options.max_model_len));
}

StaticResult StaticCase::run(const Point& point, bool at_end) const {
  StaticSpec one = spec_;
  one.batch = point.batch;
  one.prompt_tokens = point.prompt_tokens;
  one.output_tokens = point.output_tokens;
  one.method = method_.at(point.prompt_tokens).method;
  if (at_end) one.gpu = &gpu_;
  return run_static(one, {.max_samples = kFewestSamples, .intervals = !at_end});
}

}  // namespace kvsim
