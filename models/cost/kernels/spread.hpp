#pragma once

#include <span>
#include <vector>

namespace kvsim {

/// Values in clusters whose members resemble each other: errors of one shape's rows, of one pair of
/// GPU and stack, of one document.
using Clusters = std::vector<std::vector<double>>;

/// The share `q` of `values`, between neighbours in proportion. Errors: ContractError if empty.
[[nodiscard]] double quantile_of(std::vector<double> values, double q);

/// Intra-class correlation of "beyond a limit", pooled over several sets of clusters: the share of
/// the variance between clusters, by the one-way analysis of variance, at least 0.
class ExceedanceCorrelation {
 public:
  /// Counts values above `limit` as beyond it. Sets of fewer than two clusters say nothing.
  void add(const Clusters& clusters, double limit);
  /// 0 (a value says as much as an independent one) to 1 (a cluster says no more than one value);
  /// 1 where nothing was added: nothing is known.
  [[nodiscard]] double value() const;

 private:
  double between_ = 0, within_ = 0;            // sums of squares
  double between_free_ = 0, within_free_ = 0;  // degrees of freedom
  double sizes_ = 0;                           // of a cluster, times the degrees of freedom between
};

/// The effective number of independent values: their number over Kish's design effect, 1 + (m - 1)
/// correlation with m the size of the cluster of a value. At least the number of clusters. Source:
/// Kish, Survey Sampling, 1965, section 5.4.
[[nodiscard]] double effective_number(const Clusters& clusters, double correlation);

/// The level of the quantile below which a new value is in `level` of cases, if the quantile is of
/// n values: level (n + 1) / n, at most 1. Source: split conformal prediction, Vovk et al. 2005.
[[nodiscard]] double small_sample_level(double level, double n);

/// The upper limit of a new value in `level` of cases: the quantile of all values at
/// `small_sample_level` of their effective number.
[[nodiscard]] double upper_limit(const Clusters& clusters, double level, double correlation);
/// The same with the correlation that these clusters show at that quantile.
[[nodiscard]] double upper_limit(const Clusters& clusters, double level);

}  // namespace kvsim
