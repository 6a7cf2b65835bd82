#pragma once

// Compression at a fixed interval of decode steps, with any scorer.

#include "models/methods/select/scored.hpp"

namespace kvsim {

struct PeriodicSettings {
  std::int64_t interval = 512;  // decode steps between compressions
  /// Entries after a compression; below 1: a share of the tokens so far; 0: the assigned budget.
  double target = 0;
  bool prompt_too = false;  // also compress the prompt at its end
  /// Scorer of the prompt, if it differs from the scorer of decode steps.
  std::shared_ptr<const Scorer> prompt_scorer{};
};

/// Returns the entries held after `tokens` tokens with a budget of `entries`.
[[nodiscard]] std::int64_t periodic_held(const PeriodicSettings& settings, std::int64_t entries,
                                         std::int64_t prompt, std::int64_t tokens);

[[nodiscard]] std::shared_ptr<const SelectRule> make_periodic(const PeriodicSettings& settings,
                                                              std::shared_ptr<const Scorer> scorer);

}  // namespace kvsim
