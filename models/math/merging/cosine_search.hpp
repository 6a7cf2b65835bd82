#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The most similar row; index -1: there were no rows to compare with.
struct CosineMatch {
  std::int32_t index = -1;
  double cosine = 0;
};

/// cosine[i] = row . keys[i] / (|row| |keys[i]|), 0 if either vanishes. fp64 sums in the lane order
/// of GroupAttention. row [d], keys [n, d], cosine [n]. Throws ContractError if lengths disagree.
void cosines(std::span<const float> row, std::span<const float> keys, std::span<double> cosine);

/// For each row of `rows` [m, d], the most similar row of `keys` [n, d]; ties go to the lower
/// index. Uses blocked fp64 products. `same`: both are the same list, and a row is not compared
/// with itself.
[[nodiscard]] std::vector<CosineMatch> best_cosines(std::span<const float> rows,
                                                    std::span<const float> keys, std::int32_t d,
                                                    bool same = false);

}  // namespace kvsim
