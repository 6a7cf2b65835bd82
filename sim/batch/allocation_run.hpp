#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The allocations of a static run once more, one by one, through PyTorch's caching allocator with
/// `spec.allocator`'s settings, on a device of `usable` bytes. `prefilled` are the score rows of
/// the layers that were prefilled, `score_rows` those of the layer where it stopped. `session`:
/// where the device stands that other batches of the service run on, made by the first of them;
/// null: one of the run's own.
[[nodiscard]] AllocationReport simulate_allocations(const StaticSpec& spec, const CostInput& in,
                                                    Bytes usable,
                                                    std::vector<std::int64_t> prefilled,
                                                    std::int64_t score_rows,
                                                    std::optional<AllocationSession>* session);

}  // namespace kvsim
