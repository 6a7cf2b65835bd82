#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvsim {

/// A mean over layers and heads, of which some were drawn.
class SampledMean {
 public:
  void add_layer(std::vector<double> heads) { layers_.push_back(std::move(heads)); }
  /// Its standard error where `layers` and `heads` are the shares that were drawn, of two stages of
  /// random sampling. `strata`: layers of each stratum, in order; empty: all are of one. nullopt: a
  /// single draw of a stage shows no spread. Source: Cochran, Sampling Techniques, chapters 5 and
  /// 10.
  [[nodiscard]] std::optional<double> standard_error(
      double layers, double heads, std::span<const std::int32_t> strata = {}) const;

 private:
  std::vector<std::vector<double>> layers_;
};

/// A ratio of two sums over layers and heads, of which some were drawn: a mean in which the weights
/// of heads differ.
class SampledRatio {
 public:
  /// A head's part of both sums.
  struct Part {
    double above = 0, below = 0;
    Part& operator+=(const Part& other) {
      above += other.above;
      below += other.below;
      return *this;
    }
  };
  void add_layer(std::vector<Part> heads) { layers_.push_back(std::move(heads)); }
  /// Its standard error as SampledMean's, which it equals where all heads have one weight. nullopt
  /// also if one layer (or head of it) has the whole lower sum, so that no ratio is left without
  /// it.
  ///
  /// By the jackknife: how the ratio changes without each layer, and without each head. The usual
  /// formula (the spread of `above - ratio * below`) is too small where few layers have most of the
  /// weight, because the ratio of the sample is drawn to those layers: over samples of 4 of the 8
  /// layers of a recorded trace it was 0.3 to 0.8 of the true error. Source: Wolter, Introduction
  /// to Variance Estimation, chapter 4; Rao and Rao 1971, Small sample results for ratio
  /// estimators.
  [[nodiscard]] std::optional<double> standard_error(
      double layers, double heads, std::span<const std::int32_t> strata = {}) const;

 private:
  /// Variances between layers, and between heads within layers, of the ratio of all.
  [[nodiscard]] std::optional<double> between_layers(std::span<const std::int32_t> strata) const;
  [[nodiscard]] std::optional<double> within_layers() const;
  [[nodiscard]] Part total_of(std::size_t first, std::size_t end) const;

  std::vector<std::vector<Part>> layers_;
};

}  // namespace kvsim
