#pragma once

// The misses of `kvsim validate published` and their known causes.

#include <cstddef>
#include <string>

#include "validation/published/published_score.hpp"

namespace kvsim {

/// Errors of times and kernels by stack, then the reasons for medians above kBadMedian.
[[nodiscard]] std::string stacks_text(const PublishedScore& score, std::size_t width);
/// Every row that misses by more than kBadMiss, grouped by reason; rows without a known reason come
/// last, by document. Empty if there are no misses.
[[nodiscard]] std::string misses_text(const PublishedScore& score, std::size_t width);

}  // namespace kvsim
