#pragma once

#include <cstdint>
#include <string_view>

#include "models/cost/kernels/call.hpp"
#include "models/cost/op.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// Returns a collective of `ranks` GPUs over `bytes` in `passes` equal parts: all-reduces are the
/// stack's own, others are NCCL's. `bytes` is the total over all ranks for all-gathers and
/// reduce-scatters, and that of one rank for all-reduces.
[[nodiscard]] Op collective_op(std::string_view name, CollectiveKind kind, double bytes,
                               std::int32_t ranks, Dtype dtype, std::int32_t passes);

}  // namespace kvsim
