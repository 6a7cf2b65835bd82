// A compiled point is run_static's: to the byte, and in time to rounding where it says so.

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/cost/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/serve/compiled_point.hpp"
#include "sim/serve/static_run.hpp"
#include "sim/serve/step_sum.hpp"
#include "sim/serve/trajectory.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

template <class T>
const T& pick(const std::vector<T>& all, std::mt19937& random) {
  return all[random() % all.size()];
}

MethodSite site_of(const Llm& llm, Dtype kv_dtype) {
  const AttentionSpec& a = llm.layers.front().attention;
  MethodSite site{.recorded = kv_dtype,
                  .shape = {a.n_heads, a.n_kv_heads, a.head_dim},
                  .windows = {},
                  .n_layers = llm.n_layers(),
                  .d_model = llm.d_model,
                  .recorded_inputs = {}};
  for (const LayerSpec& layer : llm.layers) site.windows.push_back(layer.attention.window);
  return site;
}

StaticResult run_of(const PointSpec& spec, const Point& point) {
  return run_static({.llm = spec.llm,
                     .gpu = spec.gpu,
                     .stack = spec.stack,
                     .method = spec.method(point.prompt_tokens),
                     .weight_dtype = spec.weight_dtype,
                     .kv_dtype = spec.kv_dtype,
                     .batch = point.batch,
                     .prompt_tokens = point.prompt_tokens,
                     .output_tokens = point.output_tokens,
                     .calibration = spec.calibration,
                     .weight_format = spec.weight_format,
                     .tensor_parallel = spec.tensor_parallel,
                     .options = spec.options});
}

/// Compares one point both ways; true if the run fits.
bool same_as_run(CompiledPoint& compiled, const PointSpec& spec, const Point& point) {
  INFO(fmt::format("batch {} prompt {} output {}", point.batch, point.prompt_tokens,
                   point.output_tokens));
  const StaticResult run = run_of(spec, point);
  const PointResult got = compiled.at(point);
  CHECK(got.fits == !run.oom.has_value());
  CHECK(got.usable == run.usable_hbm);
  CHECK(got.times.has_value() == !run.oom.has_value());
  if (run.oom || !got.times) return false;
  CHECK(got.prefill_peak == run.prefill_peak);
  CHECK(got.decode_peak == run.decode_peak);
  CHECK(got.kv_bytes == run.kv_bytes);
  CHECK(got.peak() == run.peak_hbm);
  CHECK(got.times->prefill.count() == rel(run.prefill_time->count(), 1e-9));
  if (point.output_tokens == 0) return true;
  CHECK(got.times->last_step.count() == rel(run.timeline.back().time.count(), 1e-9));
  const double within = got.inexact.empty() ? 1e-9 : 1e-3;
  CHECK(got.times->decode.count() == rel(run.decode_time->count(), within));
  CHECK(got.times->tok_s == rel(*run.throughput_tok_s, within));
  const PointStep step =
      compiled.decode_step(point.batch, point.prompt_tokens, point.output_tokens);
  CHECK(step.time == got.times->last_step);
  CHECK(step.peak == run.timeline.back().peak);
  CHECK(step.kv == run.timeline.back().kv);
  const PointResult memory = compiled.memory_at(point);
  CHECK(memory.peak() == got.peak());
  CHECK(!memory.times);
  return true;
}

TEST_CASE("points of the catalogue's models, stacks and methods are run_static's") {
  std::mt19937 random{20261121};
  int fitted = 0, compared = 0;
  for (const MethodInfo& info : builtin_methods()) {
    const std::string& name = info.name;
    for (int combination = 0; combination < 4; ++combination) {
      const Llm& llm = pick(builtin_llms(), random);
      const Gpu& gpu = pick(builtin_gpus(), random);
      Stack stack = pick(builtin_stacks(), random);
      const bool calibrated = random() % 2 == 0;
      if (calibrated) {
        for (const KernelOp op : {KernelOp::kDecodeAttention, KernelOp::kPrefillAttention,
                                  KernelOp::kMla, KernelOp::kGemm, KernelOp::kElementwise}) {
          stack.kernels[std::string{name_of(op)}] = "*";
        }
      }
      const Budget budget = random() % 2 == 0 ? Budget{.fraction = 0.3} : Budget{.entries = 300};
      const MethodSpec method{name, {}, takes_budget(name) ? std::optional{budget} : std::nullopt};
      const MethodSite site = site_of(llm, Dtype::kFp16);
      INFO(fmt::format("{} {} {} {}{}", name, llm.name, gpu.name, stack.name,
                       calibrated ? " calibrated" : ""));
      const PointSpec spec{
          .llm = &llm,
          .gpu = &gpu,
          .stack = &stack,
          .method = [&](std::int64_t prompt) { return make_method(method, prompt, site); },
          .calibration = calibrated ? &builtin_calibration() : nullptr};
      CompiledPoint compiled{spec};
      for (int i = 0; i < 5; ++i) {
        const Point point{.batch = 1 + static_cast<std::int64_t>(random() % 9),
                          .prompt_tokens = 1 + static_cast<std::int64_t>(random() % 1500),
                          .output_tokens = static_cast<std::int64_t>(random() % (i < 3 ? 40 : 700))};
        bool refuses = false;  // the size depends on data, or the budget on a longer prompt
        try {
          const auto made = spec.method(point.prompt_tokens);
          for (std::int32_t layer = 0; layer < llm.n_layers(); ++layer) {
            for (std::int64_t n = 0; n <= point.output_tokens; ++n) {
              refuses = refuses || !made->entries_held(layer, point.prompt_tokens,
                                                       point.prompt_tokens + n);
            }
          }
        } catch (const InputError&) {
          refuses = true;
        }
        if (refuses) {
          CHECK_THROWS_AS((void)compiled.at(point), InputError);
          continue;
        }
        ++compared;
        fitted += same_as_run(compiled, spec, point) ? 1 : 0;
      }
    }
  }
  MESSAGE(fitted, " of ", compared, " points fit");
  CHECK(fitted > 200);
}

}  // namespace
}  // namespace kvsim
