#pragma once

#include <cstdint>

#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Applies `spec` in the order of its members. Pauses of requests that wait for others are never
/// stretched. Errors: InputError where no request is left, lengths or times outgrow what a trace
/// may hold, a prompt scale does not leave whole prefix blocks, or what has no duration is
/// repeated.
void transform_requests(RequestTrace& trace, const TransformSpec& spec, std::uint64_t seed);

}  // namespace kvsim
