#include "models/math/merging/cosine_merge.hpp"

#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {

void cosine_merge(std::span<double> key, std::span<double> value,
                  std::span<const CosineJoining> joining, CosineWeights weights) {
  KVSIM_CHECK(!joining.empty() && key.size() == value.size(), "{} entries join rows of {} and {}",
              joining.size(), key.size(), value.size());
  const bool paper = weights == CosineWeights::kPaper;
  const double own = paper ? std::exp(1.0) : 1.0;
  double total = own;
  for (const CosineJoining& each : joining) total += paper ? std::exp(each.cosine) : 1.0;
  for (double& x : key) x *= own / total;
  for (double& x : value) x *= own / total;
  for (const CosineJoining& each : joining) {
    KVSIM_CHECK(each.key.size() == key.size() && each.value.size() == key.size(),
                "a row of {} joins one of {}", each.key.size(), key.size());
    const double weight = (paper ? std::exp(each.cosine) : each.cosine) / total;
    for (std::size_t j = 0; j < key.size(); ++j) {
      key[j] += weight * static_cast<double>(each.key[j]);
      value[j] += weight * static_cast<double>(each.value[j]);
    }
  }
}

double next_cosine_threshold(double threshold, double mean, double keep, double take) {
  return std::isnan(threshold) ? mean : keep * threshold + take * mean;
}

}  // namespace kvsim
