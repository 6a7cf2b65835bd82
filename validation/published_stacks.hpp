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
  std::string assumed{};    // what had to be taken for granted, for people; empty: nothing
  bool all_logits = false;  // a version that computes logits of all positions, upcast to fp32
};

/// By patterns of the name, versions and what the row's note says of the code. `wants_scores`: the
/// method reads attention matrices, which Hugging Face gives in eager attention alone.
[[nodiscard]] StackMatch match_stack(const PublishedRow& row, bool wants_scores);

/// Whether constants of the profile that bear on the figure were taken from the row's document: its
/// name stands among their sources. `of_time`: the figure is a time, not bytes.
[[nodiscard]] bool fitted_on(const Stack& stack, const std::string& source, bool of_time);

/// The year and month (as 2309) that an arXiv number in `source` names; nullopt without one.
[[nodiscard]] std::optional<int> arxiv_month(const std::string& source);

}  // namespace kvsim
