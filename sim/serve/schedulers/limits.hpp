#pragma once

#include <cstdint>
#include <optional>

#include "models/stack/stack.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Limits of an iteration that a run configures. An absent one is the scheduler's own default.
struct ConfiguredLimits {
  std::optional<std::int64_t> seqs;    // running at once
  std::optional<std::int64_t> tokens;  // computed
  bool sets_tokens = false;            // `tokens` is the run's choice, not the stack's default

  /// Tokens of an iteration, `otherwise` if none are configured. Without chunks, a default is
  /// raised to the longest sequence, which one iteration has to take.
  [[nodiscard]] std::int64_t iteration_tokens(bool has_chunks, std::int64_t longest,
                                              std::int64_t otherwise) const;
};

/// The limits of `stack`, as the run sets it up, under `spec`, whose settings come first.
[[nodiscard]] ConfiguredLimits resolve_limits(const Stack& stack, const SchedulerSpec& spec = {});

/// `options` of the engine that a scheduler runs in: it is started, and profiled, with its limits.
[[nodiscard]] StackOptions with_limits(StackOptions options, const SchedulerSpec& spec);

}  // namespace kvsim
