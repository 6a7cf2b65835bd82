#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvsim {

/// sum over i of w_i x_i x_i^T over the rows [n, d]: [d, d]. weights: [n]; empty: 1 each.
/// Throws ContractError if a length disagrees.
[[nodiscard]] std::vector<double> weighted_gram(std::span<const float> rows, std::size_t d,
                                                std::span<const double> weights);

/// Eigenvectors of a symmetric matrix [d, d] as columns, eigenvalues ascending. The sign of a
/// vector is not defined. Throws ContractError if the span is not d * d long.
[[nodiscard]] std::vector<double> symmetric_eigenvectors(std::span<const double> matrix,
                                                         std::size_t d);

}  // namespace kvsim
