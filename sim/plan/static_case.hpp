#pragma once

// Internal to sim/plan: a static batch with the memory at one end of its interval.

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
  /// `spec` has the sizes of the scenario's point; the objects that it points to outlive this.
  /// Errors: same as run_static.
  StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
             MemoryMargin margin, double confidence);
  StaticCase(const StaticCase&) = delete;
  StaticCase& operator=(const StaticCase&) = delete;

  [[nodiscard]] const MemoryMargin& margin() const { return margin_; }
  /// Returns the run's memory. Sizes above the engine's max_model_len do not fit.
  [[nodiscard]] PointResult memory(const Point& point);
  /// Whether a sequence is longer than the max_model_len that the scenario sets.
  [[nodiscard]] bool exceeds_model_len(const Point& point) const;
  [[nodiscard]] PointResult at(const Point& point) { return compiled_->at(point); }
  /// Returns required over available memory; infinite if none is available. If max_model_len is
  /// exceeded, at least the ratio of the tokens to it.
  [[nodiscard]] double demand_ratio(const Point& point);
  /// Calls run_static with the memory at that end, or with the GPU's own memory and intervals.
  [[nodiscard]] StaticResult run(const Point& point, bool at_end);
  /// Returns the start of `run` (of an engine) with the GPU's own memory and every term at that
  /// end.
  [[nodiscard]] EngineStartup start_of(const StaticResult& run) const;
  /// Returns margin_text of a run.
  [[nodiscard]] std::string margin_words(const Point& point) {
    return margin_text(margin_, spec_.gpu->hbm_usable, safety_margin(point), confidence_);
  }
  /// Whether the method resolves for `prompt`. Prompts too short for the method keep every token.
  [[nodiscard]] bool resolves(std::int64_t prompt) const { return method_.resolves(prompt); }

 private:
  /// Returns the memory at the end of the interval minus the prediction, without a pool.
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
  std::optional<EngineStartup> startup_;  // as predicted, for an engine at one end
  std::unique_ptr<CompiledPoint> compiled_;
};

}  // namespace kvsim
