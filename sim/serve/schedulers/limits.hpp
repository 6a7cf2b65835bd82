#pragma once

#include <cstdint>
#include <optional>

#include "models/stack/stack.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Limits of an iteration that a run configures. Absent limits have the scheduler's default.
struct ConfiguredLimits {
  std::optional<std::int64_t> seqs;    // running simultaneously
  std::optional<std::int64_t> tokens;  // computed
  bool sets_tokens = false;            // `tokens` is the run's choice, not the stack's default

  /// Returns the tokens per iteration; `otherwise` if not configured. Without chunks, a default is
  /// raised to the longest sequence, which must fit into one iteration.
  [[nodiscard]] std::int64_t iteration_tokens(bool has_chunks, std::int64_t longest,
                                              std::int64_t otherwise) const;
};

/// Returns the limits of `stack` as the run configures it; settings of `spec` take precedence.
[[nodiscard]] ConfiguredLimits resolve_limits(const Stack& stack, const SchedulerSpec& spec = {});

/// Returns `options` with the scheduler's limits, with which the engine is started and profiled.
[[nodiscard]] StackOptions with_limits(StackOptions options, const SchedulerSpec& spec);

}  // namespace kvsim
