#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The entries among those similar to a key that are spared, i.e. kept.
enum class RetainDirection : std::uint8_t { kLast, kFirst, kLastPercent, kFirstPercent };

struct RedundancyRule {
  double threshold = 0.5;  // cosines above it count as similar
  RetainDirection retain = RetainDirection::kLast;
  double retain_ratio = 0.1;  // share of the entries, for the two percentages; at least one entry
};

/// Redundancy of each key with respect to the keys similar to it.
///
///   c_ij = cos(k_i, k_j), c_ii = 0; in each row i the spared among {j : c_ij > threshold} become 0
///   redundancy = softmax over j of (1/n) sum over i of c_ij
/// keys     [n, d] row-major, in order of position; a zero key is similar to none
/// returns  [n], positive, summing to 1
/// Source: R-KV (Cai et al. 2025), cal_similarity of the released code. There a row with nothing
/// above the threshold spares entry 0, `first` always spares entry 0, and the percentages spare one
/// entry. Here a row without similar keys spares nothing, `first` spares the first similar key, and
/// the percentages spare their full share. Rows are computed one at a time: no n^2 memory.
[[nodiscard]] std::vector<double> key_redundancy(std::span<const float> keys, std::int32_t head_dim,
                                                 const RedundancyRule& rule);

/// x <- exp(x - max) / sum. Throws ContractError if empty.
void softmax_in_place(std::span<double> x);

/// 1-D pooling with stride 1 and padding width / 2: the maximum, or the mean in which padding
/// counts as zeros. Even widths are rejected because their padding would be asymmetric.
[[nodiscard]] std::vector<double> pool(std::span<const double> x, std::int32_t width, bool maximum);

}  // namespace kvsim
