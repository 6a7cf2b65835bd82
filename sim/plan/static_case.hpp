#pragma once

// Inside of sim/plan: a static batch with the memory that is left at one end of its interval.

#include <cstdint>
#include <memory>

#include "models/methods/measured.hpp"
#include "models/methods/method.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/serve/compiled_point.hpp"
#include "sim/serve/sequence_law.hpp"
#include "sim/serve/static_run.hpp"

namespace kvsim {

/// A combination of model, GPU, stack and method in which a run fits where one that takes
/// `end.factor` times the predicted memory fits on the GPU as it is.
class StaticCase {
 public:
  /// `spec`: its sizes are those of the scenario's point; what it points to outlives this. Errors:
  /// as run_static.
  StaticCase(StaticSpec spec, MethodSpec method, std::shared_ptr<const MeasuredLaw> law,
             WorseEnd end);
  StaticCase(const StaticCase&) = delete;
  StaticCase& operator=(const StaticCase&) = delete;

  [[nodiscard]] const WorseEnd& end() const { return end_; }
  /// The run's memory; what exceeds the engine's max_model_len does not fit.
  [[nodiscard]] PointResult memory(const Point& point);
  /// Whether a sequence is longer than the max_model_len that the scenario sets.
  [[nodiscard]] bool exceeds_model_len(const Point& point) const;
  [[nodiscard]] PointResult at(const Point& point) { return compiled_->at(point); }
  /// Memory wanted over what there is; infinite where there is none. At least the tokens over
  /// max_model_len where that is exceeded.
  [[nodiscard]] double need(const Point& point);
  /// run_static of it: with the memory at that end, or with the GPU's own and intervals.
  [[nodiscard]] StaticResult run(const Point& point, bool at_end) const;
  /// held_back_text of its GPU.
  [[nodiscard]] std::string held_back() const { return held_back_text(*spec_.gpu, gpu_); }
  /// Prompts too short for the method hold every token.
  [[nodiscard]] bool settles(std::int64_t prompt) const { return method_.settles(prompt); }

 private:
  StaticSpec spec_;
  MethodByPrompt method_;
  WorseEnd end_;
  Gpu gpu_;
  std::unique_ptr<CompiledPoint> compiled_;
};

}  // namespace kvsim
