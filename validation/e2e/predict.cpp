#include "validation/e2e/predict.hpp"

#include "models/cost/rates/calibration.hpp"
#include "models/stack/stack.hpp"
#include "sim/batch/point/compiled_point.hpp"

namespace kvsim {

E2ePrediction predict_e2e(const E2ePlan& plan, const Gpu& gpu) {
  const kernels::LoopSpec& s = plan.loop;
  const Stack& stack = find_stack("kvsim-kernels");
  CompiledPoint point{{.llm = &plan.llm,
                       .gpu = &gpu,
                       .stack = &stack,
                       .method = [&](std::int64_t) { return plan.method; },
                       .weight_dtype = plan.dtype,
                       .kv_dtype = plan.dtype,
                       .calibration = &builtin_calibration()}};
  // The loop does not run a prefill: only decoding counts.
  const auto memory = [&](std::int64_t prompt, std::int64_t output) {
    return point.memory_at({.batch = s.batch, .prompt_tokens = prompt, .output_tokens = output});
  };
  E2ePrediction out;
  const PointResult of_run = memory(s.prompt, s.steps);
  out.peak = of_run.decode_peak;
  out.usable = of_run.usable;
  Seconds decode{};
  for (std::int64_t step = 1; step <= s.steps; ++step) {
    decode = decode + point.decode_step(s.batch, s.prompt, step).time;
  }
  out.tok_s = static_cast<double>(s.batch * s.steps) / decode.count();
  if (s.method != kernels::LoopMethod::kFull) return out;
  const auto fits = [&](std::int64_t tokens) {
    return memory(tokens - 1, 1).decode_peak <= out.usable;
  };
  std::int64_t max = 1;  // fits, or no length does
  while (max < kMaxE2eTokens && fits(2 * max)) max *= 2;
  if (max == 1) {
    out.longest = 0;
    return out;
  }
  for (std::int64_t step = max / 2; step > 0; step /= 2) {
    if (max < kMaxE2eTokens && fits(max + step)) max += step;
  }
  out.longest = max;
  return out;
}

}  // namespace kvsim
