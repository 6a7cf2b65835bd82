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

/// Collects the head series of one method into a ReplayMethod, by layer, then by head. Sums are
/// computed in that order, so results are bit-identical for any number of threads.
class ReplaySummary {
 public:
  ReplaySummary(const ComposedMethod& method, const TraceInfo& trace, const ReplayOptions& options,
                const StepSample& sample);

  /// Adds the stored heads of `layer`, in order.
  void add_layer(std::int32_t layer, const std::vector<HeadSeries>& heads);
  void note(std::string text) { result_.notes.push_back(std::move(text)); }
  /// Returns the result; call once, after all layers.
  [[nodiscard]] ReplayMethod finish();

 private:
  void add_head(std::vector<ReplayStep>& steps, ReplayCell& layer_cell, std::int32_t layer,
                std::int32_t stored, const HeadSeries& head);
  /// Counts entries by the rule that keeps them, and keeps the list if requested.
  void add_kept(std::int32_t layer, const std::vector<HeadSeries>& heads);
  void add_segments();
  void add_standard_errors();
  void add_step_errors(ReplayStderr& errors) const;
  /// Measures the shares of the prompt and of decode tokens that a data-dependent method keeps.
  void measure_law(std::int32_t layer, const std::vector<HeadSeries>& heads);
  /// Returns numbered steps with all values zero.
  [[nodiscard]] std::vector<ReplayStep> blank_steps() const;

  const ComposedMethod& method_;
  const TraceInfo& trace_;
  const ReplayOptions& options_;
  const StepSample& sample_;
  ReplayMethod result_;
  std::vector<ReplayStep> steps_;
  std::vector<float> errors_;
  double cosine_sum_ = 0, mass_sum_ = 0, best_mass_sum_ = 0, error_sum_ = 0;
  double retrieved_ = 0, retrieval_error_ = 0;  // sums over answers; errors are weighted by
                                                // HeadSeries::retrieved
  std::int64_t samples_ = 0;
  std::int64_t why_entries_ = 0;  // listed so far
  std::int64_t kv_bytes_after_prefill_ = 0;
  TierTrip trip_;
  PrefillOutcome prompt_outcome_;
  MeasuredLaw law_;
  PagedSummary paged_;
  // One value per KV head of each layer.
  SampledMean error_means_, cosine_means_, mass_means_, best_mass_means_;
  // Sums over layers and heads at each measured step.
  std::vector<double> step_best_masses_, step_answers_, step_answer_errors_;
  SampledRatio answer_errors_;
};

/// Returns the `share` quantile of `values` with linear interpolation (as NumPy's default); NaN if
/// `values` is empty or contains NaN.
[[nodiscard]] double percentile(std::vector<float> values, double share);

}  // namespace kvsim
