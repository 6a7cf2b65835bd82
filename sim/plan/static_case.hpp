#pragma once

// Inside of sim/plan: a static batch with the memory that is left at one end of its interval.

#include <cstdint>
#include <memory>

#include "models/methods/method.hpp"
#include "models/methods/resolve/measured.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/plan/confidence.hpp"

namespace kvsim {

/// A combination of model, GPU, stack and method with the memory at one end of its interval.
class StaticCase {
 public:
  /// `spec`: its sizes are those of the scenario's point; what it points to outlives this. Errors:
  /// as run_static.
  StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
             MemoryMargin margin, double confidence);
  StaticCase(const StaticCase&) = delete;
  StaticCase& operator=(const StaticCase&) = delete;

  [[nodiscard]] const MemoryMargin& margin() const { return margin_; }
  /// The run's memory; what exceeds the engine's max_model_len does not fit.
  [[nodiscard]] PointResult memory(const Point& point);
  /// Whether a sequence is longer than the max_model_len that the scenario sets.
  [[nodiscard]] bool exceeds_model_len(const Point& point) const;
  [[nodiscard]] PointResult at(const Point& point) { return compiled_->at(point); }
  /// Memory wanted over what there is; infinite where there is none. At least the tokens over
  /// max_model_len where that is exceeded.
  [[nodiscard]] double demand_ratio(const Point& point);
  /// run_static of it: with the memory at that end, or with the GPU's own and intervals.
  [[nodiscard]] StaticResult run(const Point& point, bool at_end);
  /// The start of `run`, an engine's, with the GPU's own memory and every term at that end.
  [[nodiscard]] EngineStartup start_of(const StaticResult& run) const;
  /// margin_text of a run.
  [[nodiscard]] std::string margin_words(const Point& point) {
    return margin_text(margin_, spec_.gpu->hbm_usable, safety_margin(point), confidence_);
  }
  /// Prompts too short for the method hold every token.
  [[nodiscard]] bool resolves(std::int64_t prompt) const { return method_.resolves(prompt); }

 private:
  /// Memory at the end of the interval beyond the prediction, without a pool.
  [[nodiscard]] Bytes safety_margin(const Point& point);
  [[nodiscard]] Stack stack_as_run() const {
    return with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel});
  }

  StaticSpec spec_;
  MethodByPrompt method_;
  MemoryMargin margin_;
  double confidence_;
  Gpu gpu_;
  StackOptions options_;
  std::optional<EngineStartup> startup_;  // as predicted, of an engine at an end
  std::unique_ptr<CompiledPoint> compiled_;
};

}  // namespace kvsim
