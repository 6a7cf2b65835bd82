#pragma once

// Why predictions of published values miss: known causes for rows that are off by more than half,
// and for stacks whose times are off in the median.

#include <span>
#include <string>
#include <string_view>

#include "validation/published/published_score.hpp"

namespace kvsim {

/// |error| above which a figure is listed with its reason.
constexpr double kBadMiss = 0.5;
/// Median |error| of a stack's times above which the stack is.
constexpr double kBadMedian = 0.15;

/// The known cause for some rows of one document.
struct RowReason {
  std::string document;  // as ScoredRow has it
  std::string rows;      // "RK-001, RK-004 to RK-015"
  std::string reason;
};
struct StackReason {
  std::string stack, reason;
};

/// In the order of validation/data/published-reasons.json.
[[nodiscard]] std::span<const RowReason> row_reasons();
[[nodiscard]] std::span<const StackReason> stack_reasons();

[[nodiscard]] bool misses_badly(const ScoredRow& row);
/// nullptr: none is known.
[[nodiscard]] const RowReason* find_reason(const ScoredRow& row);
[[nodiscard]] const StackReason* find_stack_reason(std::string_view stack);

}  // namespace kvsim
