#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvsim {

/// Draws `n` of the numbers 0 … all - 1, ascending; every subset is equally likely.
[[nodiscard]] std::vector<std::int32_t> draw(std::int32_t n, std::int32_t all,
                                             std::mt19937_64& random);
/// Returns the number of layers drawn from each stratum of adjacent layers, `n` in total: four or
/// more, so that the spread within a stratum is known.
[[nodiscard]] std::vector<std::int32_t> strata_of(std::int32_t n);
/// Draws layers of 0 … all - 1, ascending: from each stratum the number given in `strata`. The
/// sizes of strata are proportional to these numbers.
[[nodiscard]] std::vector<std::int32_t> draw_by_stratum(const std::vector<std::int32_t>& strata,
                                                        std::int32_t all, std::mt19937_64& random);

}  // namespace kvsim
