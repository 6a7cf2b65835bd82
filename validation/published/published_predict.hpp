#pragma once

#include <optional>
#include <string>
#include <vector>

#include "validation/published/published_csv.hpp"
#include "validation/published/published_setup.hpp"

namespace kvsim {

/// Bytes of a predicted peak, and of its activations (activations_of).
struct PredictedPeak {
  double bytes = 0, activations = 0;
};

/// The prediction of a published row.
struct PublishedPrediction {
  std::optional<double> value{};        // in the row's unit; 1 or 0 for a verdict
  std::optional<bool> runs_out{};       // whether the run is out of memory; for a figure: the
                                        // predicted run does not fit
  std::optional<PredictedPeak> peak{};  // if the value is the peak of a run
  std::string reason{};                 // why there is no prediction
  bool extrapolated = false;            // times: outside the range of all calibrations
  std::vector<std::string> assumed{};

  [[nodiscard]] bool expressed() const { return value || runs_out; }
};

/// Builds the row's run and predicts its metric. Never throws because of a row's contents: a row
/// that cannot be expressed gets a reason.
[[nodiscard]] PublishedPrediction predict_published(const PublishedRow& row,
                                                    const PublishedSetup& setup);

}  // namespace kvsim
