#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The most similar row found; index -1: there was none to compare with.
struct CosineMatch {
  std::int32_t index = -1;
  double cosine = 0;
};

/// cosine[i] = row . keys[i] / (|row| |keys[i]|), 0 where either vanishes; fp64 sums in the lane
/// order of GroupAttention. row [d], keys [n, d], cosine [n]. Errors: ContractError if lengths
/// disagree.
void cosines(std::span<const float> row, std::span<const float> keys, std::span<double> cosine);

/// For each of `rows` [m, d] its most similar of `keys` [n, d], ties to the lower index: blocked
/// fp64 products. `same`: both are the same list, and a row is not compared with itself.
[[nodiscard]] std::vector<CosineMatch> best_cosines(std::span<const float> rows,
                                                    std::span<const float> keys, std::int32_t d,
                                                    bool same = false);

}  // namespace kvsim
