#pragma once

#include <cstdint>
#include <span>

namespace kvsim {

/// Probability that the value of an evicted token is spread over the values that follow it:
///
///   p = clamp(own / (sum of the takers' attention / takers), 0, 1)
///
/// 0 if there are no takers or `own` vanishes, 1 if only the takers' attention vanishes.
/// Source: CaM (Zhang et al. 2024), section 4.
[[nodiscard]] double spread_probability(double own, double takers_sum, std::int64_t takers);

/// taker[j] += share * from[j] / takers, in fp64, rounded to fp32. Throws ContractError if lengths
/// disagree.
void spread_value(std::span<float> taker, std::span<const float> from, double share,
                  std::int64_t takers);

}  // namespace kvsim
