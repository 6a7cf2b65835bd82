#pragma once

#include <cstdint>
#include <string_view>

#include "models/cost/kernels/call.hpp"
#include "models/cost/op.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// A collective of `ranks` GPUs over `bytes` in `passes` equal parts: all-reduces are the stack's
/// own, the others NCCL's. `bytes` are those of all ranks together where parts are gathered or sums
/// scattered, and of one rank where sums go to all.
[[nodiscard]] Op collective_op(std::string_view name, CollectiveKind kind, double bytes,
                               std::int32_t ranks, Dtype dtype, std::int32_t passes);

}  // namespace kvsim
