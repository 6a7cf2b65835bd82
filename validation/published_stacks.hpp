#pragma once

#include <optional>
#include <string>

#include "models/stack/stack.hpp"
#include "validation/published_csv.hpp"

namespace kvsim {

/// The profile that a published row's framework runs as.
struct StackMatch {
  const Stack* stack = nullptr;  // null: none, and `reason` says why
  std::string reason{};
  std::string assumed{};  // what had to be taken for granted, for people; empty: nothing
};

/// By patterns of the name, versions and what the row's note says of the code. `wants_scores`: the
/// method reads attention matrices, which Hugging Face gives in eager attention alone.
[[nodiscard]] StackMatch match_stack(const PublishedRow& row, bool wants_scores);

/// Whether constants of the profile were taken from the row's document: its name stands among the
/// profile's sources.
[[nodiscard]] bool fitted_on(const Stack& stack, const std::string& source);

}  // namespace kvsim
