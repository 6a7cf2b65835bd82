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

/// Intervals hold 90 % of cases. The end of one that holds the share `confidence` is the end of
/// the known one to this power: errors are taken to be lognormal. 1 at 0.9, 0 at 0. Errors:
/// ContractError unless 0 <= confidence < 1.
[[nodiscard]] double confidence_power(double confidence);
/// Of memory the same up to 0.9, and no more beyond: those ends are the largest and least that few
/// logs show, and nothing says how much further a rarer case would be.
[[nodiscard]] double memory_power(double confidence);

/// Share of cases that the range next to an answer contains: the requested confidence, or 0.9 (the
/// share of the models' intervals) if answers are predictions.
[[nodiscard]] double range_confidence(double confidence);

/// What a predicted time is multiplied with before it counts.
struct ConservativeBound {
  double factor = 1;  // at least 1; of the better end at most 1
  std::string basis;  // where it comes from, or why there is none
};
/// What predicted memory is multiplied with, likewise.
struct MemoryMargin {
  MemoryEnd end{};
  std::string basis;
};

/// Of memory, by how the stack allocates and how many GPUs share the model.
[[nodiscard]] MemoryMargin memory_end(const Stack& stack, std::int32_t gpus, double confidence);
/// The other end of the same interval: a run that takes as little as is likely.
[[nodiscard]] MemoryMargin better_memory_end(const Stack& stack, std::int32_t gpus,
                                             double confidence);
/// Of a time whose 90 % interval is `interval`.
[[nodiscard]] ConservativeBound time_end(Seconds time, const std::optional<Interval>& interval,
                                         double confidence);
/// "; at p90 activations count x 1.03, non-PyTorch memory x 7.1"; of PyTorch `safety_margin` of the
/// bytes that the run may use. Empty for the prediction.
[[nodiscard]] std::string margin_text(const MemoryMargin& margin, Bytes usable, Bytes safety_margin,
                                      double confidence);

}  // namespace kvsim
