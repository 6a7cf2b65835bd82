#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "validation/published/published_csv.hpp"
#include "validation/published/published_metrics.hpp"
#include "validation/published/published_predict.hpp"
#include "validation/published/published_setup.hpp"

namespace kvsim {

/// One row and its outcome.
struct ScoredRow {
  PublishedRow row;
  std::string gpu, stack, dtype;             // names of the catalogue, or as in the file
  std::string document;                      // the source without the location in it
  std::vector<std::string> residual_path{};  // for times: sim/batch/account/time_residual.hpp
  std::optional<PublishedKind> kind{};
  std::optional<double> value{};
  PublishedPrediction prediction{};
  bool in_scope = false;
  std::string out_of_scope{};
  bool fitted = false;
  bool inconsistent = false;
  bool large = false;  // 1 GiB of cache or more
  bool pool = false;   // memory that an engine's start leaves to its cache
  /// For such a row: inputs of the figure that are not stated (PublishedSetup).
  std::vector<std::string> unstated{};
  /// The 80 % interval of a value of this kind on this stack, from the rows of other documents with
  /// equal weights (of any stack if fewer than three have this stack); widened according to the
  /// number of documents and the correlation of rows within a document.
  std::optional<std::pair<double, double>> interval{};

  /// (predicted - published) / published; nullopt for a verdict, or if one of them is missing.
  [[nodiscard]] std::optional<double> error() const;
  /// log(published / predicted), for rates the inverse, so that positive values mean slower or
  /// larger; nullopt as above, or if one of them is not positive.
  [[nodiscard]] std::optional<double> log_error() const;
};

/// Errors of some rows, as fractions of the published value.
struct PublishedGroup {
  std::string metric, gpu, stack, dtype;  // "all" if rows of several are pooled
  bool inconsistent = false;
  std::size_t n_total = 0, n_expressed = 0;
  std::size_t n = 0;                                // with an error
  std::optional<double> mape, median_ape, p90_ape;  // of absolute errors
  std::optional<double> bias;                       // mean error, positive: predicted too high
  std::size_t n_large = 0;
  std::optional<double> mape_large;
  std::size_t n_held_out = 0;  // rows of documents from which no constant of the stack was taken
  std::optional<double> mape_held_out, median_ape_held_out;
  std::size_t oom_right = 0, oom_total = 0;    // verdicts, and figures of runs predicted to be OOM
  std::map<std::string, std::size_t> reasons;  // of rows without a prediction
};

struct PublishedScore {
  std::vector<ScoredRow> rows;
  std::vector<PublishedGroup> groups;  // by metric, GPU, stack, dtype; sorted
  std::vector<PublishedGroup> pooled;  // by metric; by kind of metric; all
  std::vector<PublishedGroup> stacks;  // times, then kernels, by stack; consistent sources only
  std::size_t n_in_scope = 0, n_in_scope_expressed = 0;
  std::map<std::string, std::size_t> out_of_scope;  // reasons
};

/// Predicts every row and summarizes the errors. `done` is called after each row; it may be empty.
[[nodiscard]] PublishedScore score_published(std::vector<PublishedRow> rows,
                                             const std::function<void(double)>& done = {});

}  // namespace kvsim
