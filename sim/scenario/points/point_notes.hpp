#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// Returns a note if this version of the software that `stack` describes does not include the
/// method; nullopt if it does, or if the stack describes no released software (ideal,
/// torch-standard, …).
[[nodiscard]] std::optional<std::string> missing_in_stack(const std::string& method,
                                                          const Stack& stack);

/// Appends the notes for results with `method` on `stack`: missing_in_stack, or the source of the
/// scores of a user's method (own_method_note).
void add_method_notes(const std::string& method, const Stack& stack,
                      std::vector<std::string>& notes);

/// Returns a note if a sequence is longer than the model's positions; otherwise nullopt.
[[nodiscard]] std::optional<std::string> exceeded_positions(const Llm& llm, std::int64_t tokens);

}  // namespace kvsim
