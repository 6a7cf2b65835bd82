#pragma once

#include <cstdint>

#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Applies `spec` in the order of its members. Pauses of requests that wait for others are never
/// stretched. Errors: InputError if no request remains, lengths or times exceed the limits of a
/// trace, a prompt scale does not result in whole prefix blocks, or a trace without duration is
/// repeated.
void transform_requests(RequestTrace& trace, const TransformSpec& spec, std::uint64_t seed);

}  // namespace kvsim
