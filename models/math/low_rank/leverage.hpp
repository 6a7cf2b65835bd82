#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvsim {

/// Returns the leverage of each row: x_i^T (ridge I + sum over j of w_j x_j x_j^T)^-1 x_i.
///
/// rows     [n, d] row-major
/// weights  [n], at least 0; empty: 1 each
/// returns [n]; with weights of 1 each in [0, 1), with a sum of at most d
/// Throws ContractError if ridge <= 0, d < 1 or a length disagrees.
/// Source: statistical leverage scores; Compactor (Chari and Van Durme 2025) computes them with a
/// Cholesky factor, as here; CapKV uses weights.
[[nodiscard]] std::vector<double> ridge_leverage(std::span<const double> rows, std::size_t d,
                                                 std::span<const double> weights, double ridge);

/// The first right singular vector [d] of rows [n, d]. Its sign is such that more than half of the
/// rows have a positive product with it (with exactly half, such that the products sum to at least
/// 0).
/// Throws ContractError if n or d < 1.
/// Source: Q-Filters (Godey et al. 2025), make_filters.py.
[[nodiscard]] std::vector<double> leading_direction(std::span<const float> rows, std::size_t d);

}  // namespace kvsim
