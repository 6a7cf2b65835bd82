#include "traces/draw.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvsim {

std::vector<std::int32_t> draw(std::int32_t n, std::int32_t all, std::mt19937_64& random) {
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < all; ++i) {
    const auto left = static_cast<std::uint64_t>(all - i);
    if (random() % left < static_cast<std::uint64_t>(n) - out.size()) out.push_back(i);
  }
  return out;
}

std::vector<std::int32_t> strata_of(std::int32_t n) {
  constexpr std::int32_t kLeast = 4;
  const std::int32_t strata = std::max(1, n / kLeast);
  std::vector<std::int32_t> of;
  for (std::int32_t s = 0; s < strata; ++s) of.push_back((s + 1) * n / strata - s * n / strata);
  return of;
}

std::vector<std::int32_t> draw_by_stratum(const std::vector<std::int32_t>& strata, std::int32_t all,
                                          std::mt19937_64& random) {
  const std::int32_t n = std::accumulate(strata.begin(), strata.end(), 0);
  // Fractional bounds are rounded up or down together and at random, so that layers at either end
  // of the model are drawn as often as others.
  const double shift = strata.size() > 1 ? std::generate_canonical<double, 53>(random) : 0;
  std::vector<std::int32_t> drawn;
  std::int32_t from = 0, given = 0;
  for (const std::int32_t count : strata) {
    given += count;
    const double bound = static_cast<double>(all) * given / n;
    const std::int32_t to = given == n ? all : static_cast<std::int32_t>(std::floor(bound + shift));
    for (const std::int32_t layer : draw(count, to - from, random)) drawn.push_back(from + layer);
    from = to;
  }
  return drawn;
}

}  // namespace kvsim
