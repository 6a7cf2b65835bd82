#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/step.hpp"

namespace kvsim {

// Parts shared by the graphs of an iteration and their compiled form.

[[nodiscard]] CostInput of_one_sequence(const CostInput& in);
[[nodiscard]] HeadRows head_rows(const CostInput& in, const MixedStep& step);
/// Returns host_time of `layers` layers without scheduling.
[[nodiscard]] Seconds mixed_host_time(const CostInput& in, const MixedStep& step,
                                      std::int32_t layers);
/// Returns inter_step_overhead and hidden_scheduling for the sequences in `step`.
[[nodiscard]] Seconds mixed_between(const CostInput& in, const MixedStep& step);
[[nodiscard]] Seconds mixed_hidden(const CostInput& in, const MixedStep& step);
/// Throws ContractError if `step` does not match `layers` and `classes` layer classes.
void check_step(const CostInput& in, const MixedStep& step, const LayerRange& layers,
                std::size_t classes);
/// Returns a layer's work at the end of a prompt, and after all layers if it compresses then. `one`
/// describes one sequence.
[[nodiscard]] OpGraph prompt_compression(const CostInput& one, std::int32_t layer,
                                         std::int64_t prompt);
[[nodiscard]] std::optional<OpGraph> late_compression(const CostInput& one, std::int32_t layer,
                                                      std::int64_t prompt);

}  // namespace kvsim
