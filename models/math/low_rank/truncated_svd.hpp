#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The matrix of rank at most `rank` that is nearest to `rows` in Frobenius norm: U_r S_r V_r^T of
/// its singular value decomposition.
///
/// rows     [m, n] row-major
/// returns  [m, n]; `rows` up to rounding if rank >= min(m, n)
/// Computed in fp64 as a projection onto the leading eigenvectors of the smaller Gram matrix.
/// Singular values below 1e-8 of the largest are therefore not distinguished; their share of the
/// result is negligible. Work is min(m, n)^2 max(m, n), memory two copies in fp64.
/// Throws ContractError if rank < 1 or the span is not m * n long.
/// Source: Eckart and Young 1936; ShadowKV factors pre-RoPE keys in this way.
[[nodiscard]] std::vector<float> nearest_of_rank(std::span<const float> rows, std::int64_t m,
                                                 std::int64_t n, std::int64_t rank);

}  // namespace kvsim
