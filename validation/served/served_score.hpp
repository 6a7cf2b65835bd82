#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "validation/served/served_mapping.hpp"
#include "validation/served/served_predict.hpp"
#include "validation/served/served_runs.hpp"

namespace kvsim {

/// One measured value next to its prediction.
struct ServedComparison {
  std::size_t run = 0;  // of ServedScore::runs
  std::string metric{}, stat{};
  double measured = 0, predicted = 0;
  std::optional<double> low{}, high{};  // the 90 % interval
  std::optional<Response> response{};   // PredictedMetric's

  /// (predicted - measured) / measured.
  [[nodiscard]] double error() const { return (predicted - measured) / measured; }
  [[nodiscard]] bool is_covered() const { return *low <= measured && measured <= *high; }
  /// Winkler's score of the 90 % interval, divided by the measured value: its width plus 20 times
  /// the distance to a value outside.
  [[nodiscard]] double interval_score() const;
};

struct ScoredRun {
  ServedRun run;
  MappedRun mapped;
  ServedPrediction predicted;
  std::string load;    // "low", "mid", "high", "unknown"
  std::string source;  // the repository or thread, without the location in it
  /// Why there is no prediction; empty if there is one.
  [[nodiscard]] const std::string& reason() const {
    return mapped.refused.empty() ? predicted.failed : mapped.refused;
  }
};

/// Errors of one metric in a group of runs, as fractions of the measured values.
struct ServedGroup {
  std::string metric, stat, load;
  bool complete = false;
  std::string engine, version, gpu, source;  // empty if runs of several are pooled
  std::size_t n = 0;
  double median_ape = 0, p90_ape = 0;      // of absolute errors
  double bias = 0;                         // median error; positive: predicted too high
  std::optional<double> coverage{};        // of the 90 % intervals
  std::optional<double> width_median{};    // ratio high / low
  std::optional<double> interval_score{};  // mean
};

struct ServedScore {
  std::vector<ScoredRun> runs;
  std::vector<ServedComparison> comparisons;
  std::vector<ServedGroup> pooled;                // by metric, stat, complete, load
  std::vector<ServedGroup> groups;                // also by engine, version, GPU, source
  std::map<std::string, std::size_t> reasons;     // of runs without a prediction
  std::map<std::string, std::size_t> ignored;     // options of expressed runs without a key
  std::map<std::string, std::size_t> uncompared;  // metrics of expressed runs without a prediction
  /// Open loops with a measured throughput; those that were saturated, and wrong predictions of
  /// saturation.
  std::size_t open_runs = 0, saturated = 0, saturated_only_predicted = 0,
              saturated_only_measured = 0;
  [[nodiscard]] std::size_t expressed() const;
};

/// Returns the group of these comparisons; the caller sets its names. `of` must not be empty.
[[nodiscard]] ServedGroup group_of(const std::vector<const ServedComparison*>& of);

struct ServedOptions {
  ServedFolders folders{};
  std::vector<Override> overrides{};   // of every run's scenario
  int threads = 0;                     // 0: all threads of the machine
  std::function<void(double)> done{};  // runs done, from any thread; may be empty
};

/// Maps, simulates and compares every run. The result does not depend on the number of threads.
/// Errors: InputError for an invalid file of requests or lengths.
[[nodiscard]] ServedScore score_served(std::vector<ServedRun> runs, const ServedOptions& options);

}  // namespace kvsim
