#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvsim {

/// `n` of the numbers 0 … all - 1, ascending: each set of them is as likely as another.
[[nodiscard]] std::vector<std::int32_t> draw(std::int32_t n, std::int32_t all,
                                             std::mt19937_64& random);
/// How many of `n` layers each stratum of neighbours gives: four or more, so that their spread
/// within it is known.
[[nodiscard]] std::vector<std::int32_t> strata_of(std::int32_t n);
/// Layers of 0 … all - 1, ascending: as many from each stratum as it gives. Strata have layers in
/// proportion.
[[nodiscard]] std::vector<std::int32_t> draw_by_stratum(const std::vector<std::int32_t>& strata,
                                                        std::int32_t all, std::mt19937_64& random);

}  // namespace kvsim
