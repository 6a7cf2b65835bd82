#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Directions of the largest variance of a set of rows.
struct PrincipalBasis {
  std::int64_t width = 0, rank = 0;
  std::vector<double> mean;  // [width]
  /// [rank, width], orthonormal, by decreasing variance; the largest component of each is positive,
  /// so that codes of coefficients do not depend on the solver's signs.
  std::vector<double> vectors;

  /// (row - mean) times the basis: [rank].
  [[nodiscard]] std::vector<double> coefficients(std::span<const float> row) const;
  /// mean + coefficients times the basis: [width].
  void restore(std::span<const double> coefficients, std::span<float> row) const;
};

/// Computes at most `rank` directions of rows [n, width], limited to the rank of their covariance
/// (one if all rows are equal). Exact, by the eigenvectors of the covariance in fp64. Work is n
/// width^2 + width^3. Throws ContractError if n < 1, rank < 1 or the span is not n * width long.
[[nodiscard]] PrincipalBasis principal_basis(std::span<const float> rows, std::int64_t n,
                                             std::int64_t width, std::int64_t rank);

}  // namespace kvsim
