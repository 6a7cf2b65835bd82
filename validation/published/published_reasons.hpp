#pragma once

// Why predictions of published values are wrong: known causes for rows with errors of more than 50
// %, and for stacks with a large median error of times.

#include <span>
#include <string>
#include <string_view>

#include "validation/published/published_score.hpp"

namespace kvsim {

/// |error| above which a figure is listed with its reason.
constexpr double kBadMiss = 0.5;
/// Median |error| of a stack's times above which the stack is listed with its reason.
constexpr double kBadMedian = 0.15;

/// The known cause for some rows of one document.
struct RowReason {
  std::string document;  // ScoredRow::document
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
/// Return nullptr if no reason is known.
[[nodiscard]] const RowReason* find_reason(const ScoredRow& row);
[[nodiscard]] const StackReason* find_stack_reason(std::string_view stack);

}  // namespace kvsim
