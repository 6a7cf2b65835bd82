#pragma once

// The misses of `kvsim validate published` and their known causes.

#include <cstddef>
#include <string>

#include "validation/published/published_score.hpp"

namespace kvsim {

/// Errors of times and kernels by stack; below, why those whose median is above kBadMedian are.
[[nodiscard]] std::string stacks_text(const PublishedScore& score, std::size_t width);
/// Every row that misses by more than kBadMiss, grouped by reason; rows without a known reason come
/// last, by document. Empty: there is none.
[[nodiscard]] std::string misses_text(const PublishedScore& score, std::size_t width);

}  // namespace kvsim
