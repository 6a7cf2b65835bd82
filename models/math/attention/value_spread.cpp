#include "models/math/attention/value_spread.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

double spread_probability(double own, double takers_sum, std::int64_t takers) {
  if (takers == 0 || own <= 0) return 0;  // also covers 0/0: nothing to spread
  const auto m = static_cast<double>(takers);
  return takers_sum > 0 ? std::min(own / (takers_sum / m), 1.0) : 1.0;
}

void spread_value(std::span<float> taker, std::span<const float> from, double share,
                  std::int64_t takers) {
  KVSIM_CHECK(taker.size() == from.size(), "a row of {} takes one of {}", taker.size(),
              from.size());
  const auto m = static_cast<double>(takers);
  for (std::size_t j = 0; j < taker.size(); ++j) {
    taker[j] = static_cast<float>(static_cast<double>(taker[j]) +
                                  share * static_cast<double>(from[j]) / m);
  }
}

}  // namespace kvsim
