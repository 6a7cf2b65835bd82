#include "models/cost/kernels/spread.hpp"

#include <algorithm>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::vector<double> pooled(const Clusters& clusters) {
  std::vector<double> all;
  for (const std::vector<double>& cluster : clusters) {
    all.insert(all.end(), cluster.begin(), cluster.end());
  }
  return all;
}

}  // namespace

double quantile_of(std::vector<double> values, double q) {
  KVSIM_CHECK(!values.empty() && q >= 0 && q <= 1, "the quantile {} of {} values", q,
              values.size());
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

void ExceedanceCorrelation::add(const Clusters& clusters, double limit) {
  double n = 0, beyond = 0, squares = 0;
  for (const std::vector<double>& cluster : clusters) {
    const auto size = static_cast<double>(cluster.size());
    n += size;
    squares += size * size;
    for (const double value : cluster) beyond += value > limit;
  }
  if (clusters.size() < 2 || n == 0) return;
  const double mean = beyond / n;
  for (const std::vector<double>& cluster : clusters) {
    const auto size = static_cast<double>(cluster.size());
    if (size == 0) continue;
    double here = 0;
    for (const double value : cluster) here += value > limit;
    const double share = here / size;
    between_ += size * (share - mean) * (share - mean);
    within_ += size * share * (1 - share);
  }
  between_free_ += static_cast<double>(clusters.size()) - 1;
  within_free_ += n - static_cast<double>(clusters.size());
  sizes_ += n - squares / n;
}

double ExceedanceCorrelation::value() const {
  if (between_free_ <= 0 || within_free_ <= 0) return 1;
  const double between = between_ / between_free_;
  const double within = within_ / within_free_;
  const double size = sizes_ / between_free_;
  const double all = between + (size - 1) * within;
  return all > 0 ? std::clamp((between - within) / all, 0.0, 1.0) : 0;
}

double effective_number(const Clusters& clusters, double correlation) {
  double n = 0, squares = 0, filled = 0;
  for (const std::vector<double>& cluster : clusters) {
    const auto size = static_cast<double>(cluster.size());
    n += size;
    squares += size * size;
    filled += size > 0;
  }
  if (n == 0) return 0;
  return std::max(filled, n / (1 + (squares / n - 1) * correlation));
}

double small_sample_level(double level, double n) {
  return n > 0 ? std::min(1.0, level * (n + 1) / n) : 1;
}

double upper_limit(const Clusters& clusters, double level, double correlation) {
  return quantile_of(pooled(clusters),
                     small_sample_level(level, effective_number(clusters, correlation)));
}

double upper_limit(const Clusters& clusters, double level) {
  ExceedanceCorrelation correlation;
  correlation.add(clusters, quantile_of(pooled(clusters), level));
  return upper_limit(clusters, level, correlation.value());
}

}  // namespace kvsim
