#pragma once

#include <optional>
#include <string>

#include "models/cost/roofline.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// Intervals hold 90 % of cases. The end of one that holds the share `confidence` is the end of
/// the known one to this power: errors are taken to be lognormal. 1 at 0.9, 0 at 0. Errors:
/// ContractError unless 0 <= confidence < 1.
[[nodiscard]] double confidence_power(double confidence);

/// What a prediction is multiplied with before it counts.
struct WorseEnd {
  double factor = 1;  // at least 1; of the better end at most 1
  std::string basis;  // where it comes from, or why there is none
};

/// Of memory, by how the stack allocates.
[[nodiscard]] WorseEnd memory_end(const Stack& stack, double confidence);
/// The other end of the same interval: a run that takes as little as is likely.
[[nodiscard]] WorseEnd better_memory_end(const Stack& stack, double confidence);
/// Of a time whose 90 % interval is `interval`.
[[nodiscard]] WorseEnd time_end(Seconds time, const std::optional<Interval>& interval,
                                double confidence);

/// `gpu` with the memory in which a run as predicted fits where on `gpu` one fits that takes
/// `end.factor` times the predicted. `startup`: of an engine with a paged cache.
[[nodiscard]] Gpu gpu_at(const Gpu& gpu, const Stack& stack, const WorseEnd& end,
                         const std::optional<EngineStartup>& startup);
/// "; to be sure, 18.7 GiB of its 79.2 GiB are not counted on", of a GPU and of gpu_at's; empty
/// where these are the same.
[[nodiscard]] std::string held_back_text(const Gpu& gpu, const Gpu& counted);

}  // namespace kvsim
