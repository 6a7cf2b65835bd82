#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// Repeats the allocations of a static run one by one through PyTorch's caching allocator with
/// `spec.allocator`'s settings, on a device of `usable` bytes. `prefilled` are the score rows of
/// the prefilled layers, `score_rows` those of the layer where prefill stopped. `session`: the
/// device shared with other batches of the service, created by the first of them; null: a device
/// for this run only.
[[nodiscard]] AllocationReport simulate_allocations(const StaticSpec& spec, const CostInput& in,
                                                    Bytes usable,
                                                    std::vector<std::int64_t> prefilled,
                                                    std::int64_t score_rows,
                                                    std::optional<AllocationSession>* session);

}  // namespace kvsim
