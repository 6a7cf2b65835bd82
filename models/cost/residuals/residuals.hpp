#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/json/field.hpp"

namespace kvsim {

/// Probabilities of a residual class's quantiles.
inline constexpr std::array kResidualShares{0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975};
using ResidualQuantiles = std::array<double, kResidualShares.size()>;

/// The change of a predicted value if all times of its run are wrong by one factor exp(error), from
/// simulations at a few factors. Near saturation a small error changes it much, and a larger one
/// hardly more, because a run is finite.
class Response {
 public:
  /// For `errors` above 0, the changes of the value's logarithm; both ascend.
  struct Side {
    std::vector<double> errors, changes;
  };
  /// `up`: errors that raise the value, `down`: errors that lower it. Throws ContractError if a
  /// side is empty or does not ascend.
  Response(Side up, Side down);
  /// Returns the response of a value that changes by `slope` times the error.
  [[nodiscard]] static Response linear(double slope);

  /// Returns the change of the value's logarithm at `error` (below 0: it lowers the value). It is
  /// linear between the simulated points, with a slope of at most 1 beyond them; `floor` times the
  /// error, the part not caused by times, is added in quadrature. Ascends with `error` if floor >
  /// 0.
  [[nodiscard]] double change(double error, double floor) const;
  /// The inverse of change().
  [[nodiscard]] double error(double change, double floor) const;
  /// Returns the mean slope up to the first point of both sides.
  [[nodiscard]] double slope() const;

 private:
  Side up_, down_;
};

/// The errors of one kind of metric in one kind of run. An error is the error of the run's times
/// that would explain log(measured / predicted): Response::error.
struct ResidualClass {
  std::string metric;
  /// Features of its runs: {"requests wait", "vllm"}. The class with an empty path has all runs.
  std::vector<std::string> path;
  /// For a run from a document not used in the fit: ascending, below 0 if predictions are too long.
  ResidualQuantiles quantiles{};
  /// Response::change's floor: the part of an error that is not caused by times.
  double floor = 0;
  /// Standard deviation of the errors of one service at several loads around their median;
  /// 0: unknown.
  double within = 0;
  std::int64_t documents = 0, rows = 0;
  /// From leave-one-document-out validation: the share of the document's rows inside the 90 %
  /// interval of the others, and Winkler's score of it; means over documents.
  double coverage = 0, interval_score = 0;

  /// Returns the quantile at `share`; linear in the normal deviate between and beyond
  /// kResidualShares.
  [[nodiscard]] double quantile(double share) const;
  /// The inverse of quantile(): the share of errors up to `error`.
  [[nodiscard]] double share_below(double error) const;
  /// Returns the factor for a predicted value with this response at `share`.
  [[nodiscard]] double factor(double share, const Response& response = Response::linear(1)) const;
  /// Returns "TTFT, without a queue, vllm: 7 documents".
  [[nodiscard]] std::string words() const;
};

/// A residual model, written by `kvsim calibrate --residuals`.
class ResidualModel {
 public:
  explicit ResidualModel(std::vector<ResidualClass> classes) : classes_{std::move(classes)} {}
  /// The model of services: models/cost/residuals/services.json.
  [[nodiscard]] static const ResidualModel& services();
  /// The model of static runs: models/cost/residuals/static.json.
  [[nodiscard]] static const ResidualModel& static_runs();

  /// Returns the last class of class_chain; null for an unknown metric.
  [[nodiscard]] const ResidualClass* find(std::string_view metric,
                                          std::span<const std::string> features) const;
  [[nodiscard]] const std::vector<ResidualClass>& classes() const { return classes_; }

 private:
  std::vector<ResidualClass> classes_;
};

/// Returns the 90 % interval of a predicted value above 0; it contains the value.
[[nodiscard]] std::pair<double, double> residual_ends(const ResidualClass& of, double value,
                                                      const Response& response);

/// Returns the classes of a run from general to specific, as indices of `paths`: the class of all
/// runs (an empty path), then at each further level the first class whose additional word is a
/// feature of the run. Empty without a class of all runs.
[[nodiscard]] std::vector<std::size_t> class_chain(std::span<const std::vector<std::string>> paths,
                                                   std::span<const std::string> features);

/// Throws InputError.
[[nodiscard]] ResidualModel read_residuals(const Field& document);

}  // namespace kvsim
