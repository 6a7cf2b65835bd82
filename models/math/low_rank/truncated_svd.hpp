#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The matrix of rank at most `rank` that is nearest to `rows` in Frobenius norm: U_r S_r V_r^T of
/// its singular value decomposition.
///
/// rows [m, n] row-major returns [m, n]; `rows` to rounding where rank >= min(m, n) Computed as a
/// projection onto the leading eigenvectors of the smaller Gram matrix, in fp64, so singular values
/// below 1e-8 of the largest are not distinguished: their share of the result is negligible. Work
/// min(m, n)^2 max(m, n), memory of two copies in fp64.
/// Errors: ContractError if rank < 1 or the span is not m * n long.
/// Source: Eckart and Young 1936; ShadowKV factors pre-RoPE keys so.
[[nodiscard]] std::vector<float> nearest_of_rank(std::span<const float> rows, std::int64_t m,
                                                 std::int64_t n, std::int64_t rank);

}  // namespace kvsim
