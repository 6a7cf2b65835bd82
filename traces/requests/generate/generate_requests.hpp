#pragma once

#include <cstdint>

#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Generates the workload of `spec`. Poisson and gamma arrivals begin one gap after 0, a fixed rate
/// at 0. Errors: InputError if times or a session's context exceed the limits of a trace.
[[nodiscard]] RequestTrace generate_requests(const GeneratorSpec& spec, std::uint64_t seed);

/// Replaces the arrivals of the requests of `trace` that wait for no others with those of
/// `arrivals`, in their order. In a closed loop a user starts the next of them `think` after the
/// end of the user's previous conversation. Errors: as above.
void replace_arrivals(RequestTrace& trace, const ArrivalSpec& arrivals, const PauseSpec& think,
                      std::uint64_t seed);

}  // namespace kvsim
