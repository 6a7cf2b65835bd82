#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/cost/rates/roofline.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"
#include "sim/batch/memory_end.hpp"

namespace kvsim {

/// Returns the exponent that turns the end of a 90 % interval into the end of the interval that
/// covers the share `confidence`. Errors are assumed to be lognormal. 1 at 0.9, 0 at 0. Errors:
/// ContractError unless 0 <= confidence < 1.
[[nodiscard]] double confidence_power(double confidence);
/// Returns the same for memory, but never more than 1. The ends of memory intervals are the
/// extremes of a few logs, which do not show how much further a rarer case would be.
[[nodiscard]] double memory_power(double confidence);

/// Returns the share of cases that the range of an answer covers: the requested confidence, or 0.9
/// (as in the models' intervals) if answers are predictions.
[[nodiscard]] double range_confidence(double confidence);

/// The factor by which a predicted time is multiplied.
struct ConservativeBound {
  double factor = 1;  // at least 1; for the better end at most 1
  std::string basis;  // its source, or why there is none
};
/// The factors by which predicted memory is multiplied.
struct MemoryMargin {
  MemoryEnd end{};
  std::string basis;
};

/// Returns the worse end for memory, by the stack's allocation and the number of GPUs that share
/// the model.
[[nodiscard]] MemoryMargin memory_end(const Stack& stack, std::int32_t gpus, double confidence);
/// Returns the other end of the same interval: a run with as little memory as is likely.
[[nodiscard]] MemoryMargin better_memory_end(const Stack& stack, std::int32_t gpus,
                                             double confidence);
/// Returns the worse end for a time whose 90 % interval is `interval`.
[[nodiscard]] ConservativeBound time_end(Seconds time, const std::optional<Interval>& interval,
                                         double confidence);
/// Text of a margin: "; at p90 activations count x 1.03, non-PyTorch memory x 7.1". For PyTorch,
/// `safety_margin` of the bytes that the run may use. Empty for the prediction.
[[nodiscard]] std::string margin_text(const MemoryMargin& margin, Bytes usable, Bytes safety_margin,
                                      double confidence);

}  // namespace kvsim
