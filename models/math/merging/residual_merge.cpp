#include "models/math/merging/residual_merge.hpp"

#include "models/units/check.hpp"

namespace kvsim {

void join_mean(std::span<double> mean, std::span<const float> row, double count) {
  KVSIM_CHECK(mean.size() == row.size(), "a row of {} joins a mean of {}", row.size(), mean.size());
  for (std::size_t j = 0; j < mean.size(); ++j) {
    mean[j] += (static_cast<double>(row[j]) - mean[j]) / (count + 1.0);
  }
}

}  // namespace kvsim
