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

/// Shares whose quantiles a residual class has.
inline constexpr std::array kResidualShares{0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975};
using ResidualQuantiles = std::array<double, kResidualShares.size()>;

/// How a predicted value moves where all times of its run are wrong by one factor exp(error): what
/// simulations at a few factors show. Near saturation a small error moves it far, and a larger one
/// hardly farther, because a run is finite.
class Response {
 public:
  /// At `errors` above 0, by how much the value's logarithm moves; both ascend.
  struct Side {
    std::vector<double> errors, changes;
  };
  /// `up`: what raises the value, `down`: what lowers it. Errors: ContractError if a side is empty
  /// or does not ascend.
  Response(Side up, Side down);
  /// A value that moves by `slope` times the error.
  [[nodiscard]] static Response linear(double slope);

  /// The change of the value's logarithm at `error` (below 0: of what lowers it): linear between
  /// the simulated points, beyond them with a slope of at most 1, and with `floor` times the error
  /// added in quadrature, the part that does not come from times. Ascends with `error` if floor >
  /// 0.
  [[nodiscard]] double change(double error, double floor) const;
  /// Its inverse.
  [[nodiscard]] double error(double change, double floor) const;
  /// The mean slope up to the first point of both sides.
  [[nodiscard]] double slope() const;

 private:
  Side up_, down_;
};

/// The errors of one kind of metric in one kind of run. An error is the one of the run's times that
/// would explain log(measured / predicted): Response::error.
struct ResidualClass {
  std::string metric;
  /// Features of its runs, in words: {"requests wait", "vllm"}. The class of an empty path has all
  /// runs.
  std::vector<std::string> path;
  /// Of a run from a document that took no part: ascending, below 0 where predictions are too long.
  ResidualQuantiles quantiles{};
  /// Response::change's: the part of an error that does not come from times.
  double floor = 0;
  /// Standard deviation of the errors of one service at several loads about their middle; 0: not
  /// known.
  double within = 0;
  std::int64_t documents = 0, rows = 0;
  /// With each document left out in turn: the share of its rows inside the 90 % interval of the
  /// others, and Winkler's score of it; means over documents.
  double coverage = 0, interval_score = 0;

  /// The quantile at `share`, between and beyond kResidualShares linear in the normal deviate.
  [[nodiscard]] double quantile(double share) const;
  /// Its inverse: the share of errors up to `error`.
  [[nodiscard]] double share_below(double error) const;
  /// What a predicted value of this response is multiplied with at `share`.
  [[nodiscard]] double factor(double share, const Response& response = Response::linear(1)) const;
  /// "TTFT, without a queue, vllm: 7 documents".
  [[nodiscard]] std::string words() const;
};

/// A residual model, which `kvsim calibrate --residuals` writes.
class ResidualModel {
 public:
  explicit ResidualModel(std::vector<ResidualClass> classes) : classes_{std::move(classes)} {}
  /// Of services: models/cost/residuals/services.json.
  [[nodiscard]] static const ResidualModel& services();
  /// Of static runs: models/cost/residuals/static.json.
  [[nodiscard]] static const ResidualModel& static_runs();

  /// The last of class_chain; null for an unknown metric.
  [[nodiscard]] const ResidualClass* find(std::string_view metric,
                                          std::span<const std::string> features) const;
  [[nodiscard]] const std::vector<ResidualClass>& classes() const { return classes_; }

 private:
  std::vector<ResidualClass> classes_;
};

/// The 90 % interval of a predicted value above 0; it contains the value.
[[nodiscard]] std::pair<double, double> residual_ends(const ResidualClass& of, double value,
                                                      const Response& response);

/// The classes of a run from the general to the particular, as indices of `paths`: that of all runs
/// (an empty path), and of those with one word more always the first whose word is a feature of the
/// run. Empty without a class of all runs.
[[nodiscard]] std::vector<std::size_t> class_chain(std::span<const std::vector<std::string>> paths,
                                                   std::span<const std::string> features);

/// Errors: InputError.
[[nodiscard]] ResidualModel read_residuals(const Field& document);

}  // namespace kvsim
