#pragma once

#include <optional>
#include <string>
#include <vector>

#include "validation/published/published_csv.hpp"
#include "validation/published/published_setup.hpp"

namespace kvsim {

/// Bytes of a predicted peak, and those of its activations (activations_of).
struct PredictedPeak {
  double bytes = 0, activations = 0;
};

/// The prediction of a published row.
struct PublishedPrediction {
  std::optional<double> value{};        // in the row's unit; 1 or 0 for a verdict
  std::optional<bool> runs_out{};       // out of memory, or not; of a figure: it was refused a run
  std::optional<PredictedPeak> peak{};  // where the value is a run's peak
  std::string reason{};                 // why there is no prediction
  bool extrapolated = false;            // times: beyond what any measurement calibrated
  std::vector<std::string> assumed{};

  [[nodiscard]] bool expressed() const { return value || runs_out; }
};

/// Builds the row's run and predicts its metric. Never throws for what a row says: a row that
/// cannot be expressed has a reason.
[[nodiscard]] PublishedPrediction predict_published(const PublishedRow& row,
                                                    const PublishedSetup& setup);

}  // namespace kvsim
