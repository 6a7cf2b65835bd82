#pragma once

#include <span>
#include <vector>

namespace kvsim {

/// Values in clusters of similar members: errors of one shape's rows, of one pair of GPU and stack,
/// of one document.
using Clusters = std::vector<std::vector<double>>;

/// Returns the quantile `q` of `values` with linear interpolation. Throws ContractError if empty.
[[nodiscard]] double quantile_of(std::vector<double> values, double q);

/// Intra-class correlation of "exceeds a limit", pooled over several sets of clusters: the share of
/// the variance between clusters, by one-way analysis of variance, at least 0.
class ExceedanceCorrelation {
 public:
  /// Counts values above `limit` as exceeding it. Sets of fewer than two clusters are ignored.
  void add(const Clusters& clusters, double limit);
  /// Returns the correlation, from 0 (values are independent) to 1 (a cluster counts as one value);
  /// 1 if nothing was added.
  [[nodiscard]] double value() const;

 private:
  double between_ = 0, within_ = 0;            // sums of squares
  double between_free_ = 0, within_free_ = 0;  // degrees of freedom
  double sizes_ = 0;                           // cluster size, times the degrees of freedom between
};

/// Returns the effective number of independent values: their number divided by Kish's design
/// effect, 1 + (m - 1) correlation with m the size of a value's cluster. At least the number of
/// clusters. Source: Kish, Survey Sampling, 1965, section 5.4.
[[nodiscard]] double effective_number(const Clusters& clusters, double correlation);

/// Returns the level of the quantile of n values that a new value does not exceed with probability
/// `level`: level (n + 1) / n, at most 1. Source: split conformal prediction, Vovk et al. 2005.
[[nodiscard]] double small_sample_level(double level, double n);

/// Returns the upper limit of a new value with probability `level`: the quantile of all values at
/// `small_sample_level` of their effective number.
[[nodiscard]] double upper_limit(const Clusters& clusters, double level, double correlation);
/// The same with the correlation of these clusters at that quantile.
[[nodiscard]] double upper_limit(const Clusters& clusters, double level);

}  // namespace kvsim
