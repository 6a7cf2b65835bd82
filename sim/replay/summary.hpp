#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/methods/composed.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/paged.hpp"
#include "sim/replay/replay.hpp"
#include "sim/replay/sampled_mean.hpp"
#include "sim/replay/step_sample.hpp"

namespace kvsim {

/// Gathers the head series of one method into a ReplayMethod, in the order they are given: layer by
/// layer, head by head. Sums are taken in that order, so threads cannot change a digit.
class ReplaySummary {
 public:
  ReplaySummary(const ComposedMethod& method, const TraceInfo& trace, const ReplayOptions& options,
                const StepSample& sample);

  /// The stored heads of `layer`, in order.
  void add_layer(std::int32_t layer, const std::vector<HeadSeries>& heads);
  void note(std::string text) { result_.notes.push_back(std::move(text)); }
  /// The result; call once, after all layers.
  [[nodiscard]] ReplayMethod finish();

 private:
  void add_head(std::vector<ReplayStep>& steps, ReplayCell& layer_cell, std::int32_t layer,
                std::int32_t stored, const HeadSeries& head);
  /// Counts entries by the rule that keeps them, and keeps the list if requested.
  void add_kept(std::int32_t layer, const std::vector<HeadSeries>& heads);
  void add_segments();
  void add_standard_errors();
  void add_step_errors(ReplayStderr& errors) const;
  /// The shares that a data-dependent method keeps of the prompt and of decode tokens.
  void measure_law(std::int32_t layer, const std::vector<HeadSeries>& heads);
  /// Steps of nothing yet, numbered.
  [[nodiscard]] std::vector<ReplayStep> blank_steps() const;

  const ComposedMethod& method_;
  const TraceInfo& trace_;
  const ReplayOptions& options_;
  const StepSample& sample_;
  ReplayMethod result_;
  std::vector<ReplayStep> steps_;
  std::vector<float> errors_;
  double cosine_sum_ = 0, mass_sum_ = 0, best_mass_sum_ = 0, error_sum_ = 0;
  double retrieved_ = 0, retrieval_error_ = 0;  // sums over answers; errors weighted by the first
  std::int64_t samples_ = 0;
  std::int64_t why_entries_ = 0;  // listed so far
  std::int64_t kv_bytes_after_prefill_ = 0;
  TierTrip trip_;
  PrefillOutcome prompt_outcome_;
  MeasuredLaw law_;
  PagedSummary paged_;
  // Of each layer's KV heads.
  SampledMean error_means_, cosine_means_, mass_means_, best_mass_means_;
  // Sums over layers and heads of each measured step.
  std::vector<double> step_best_masses_, step_answers_, step_answer_errors_;
  SampledRatio answer_errors_;
};

/// The value below which `share` of `values` lie, linear between ranks (as NumPy's default); NaN of
/// none, and if one of them is.
[[nodiscard]] double percentile(std::vector<float> values, double share);

}  // namespace kvsim
