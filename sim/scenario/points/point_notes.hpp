#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// A note if the software that `stack` describes does not have the method in its version; nullopt
/// if it does, or if the stack describes no released software (ideal, torch-standard, …).
[[nodiscard]] std::optional<std::string> missing_in_stack(const std::string& method,
                                                          const Stack& stack);

/// Appends what results with `method` on `stack` have to say: missing_in_stack, or whose scores a
/// user's method has (own_method_note).
void add_method_notes(const std::string& method, const Stack& stack,
                      std::vector<std::string>& notes);

/// A note if a sequence is longer than the model's positions; nullopt otherwise.
[[nodiscard]] std::optional<std::string> exceeded_positions(const Llm& llm, std::int64_t tokens);

}  // namespace kvsim
