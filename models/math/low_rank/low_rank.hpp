#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// x ~ a b^T.
struct LowRank {
  std::int32_t rank = 0;
  std::vector<double> a;  // [n, rank], orthonormal columns (zero ones beyond x's own rank)
  std::vector<double> b;  // [d, rank]
};

/// Rank-`rank` approximation of x [n, d] by `rounds` rounds of power iteration. `a` is orthonormal
/// and b = x^T a at the end, so |x - a b^T| <= |x| (Frobenius) after any number of rounds. The
/// iteration starts from the linearly independent rows of largest norm instead of random ones. It
/// needs no random numbers and has the same limit.
/// `rank` is clamped to min(n, d). Throws ContractError if x is not n x d, or rounds < 1.
/// Source: GEAR (Kang et al. 2024), algorithm 2.
[[nodiscard]] LowRank power_iteration(std::span<const double> x, std::int32_t n, std::int32_t d,
                                      std::int32_t rank, std::int32_t rounds);

}  // namespace kvsim
