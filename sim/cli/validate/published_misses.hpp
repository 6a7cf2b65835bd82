#pragma once

// Where `kvsim validate published` misses, and what is known of why.

#include <cstddef>
#include <string>

#include "validation/published/published_score.hpp"

namespace kvsim {

/// Errors of times and kernels by stack; below, why those whose median is above kBadMedian are.
[[nodiscard]] std::string stacks_text(const PublishedScore& score, std::size_t width);
/// Every row that misses by more than kBadMiss, with the others of its reason; rows of which none
/// is known stand last, by document. Empty: no row does.
[[nodiscard]] std::string misses_text(const PublishedScore& score, std::size_t width);

}  // namespace kvsim
