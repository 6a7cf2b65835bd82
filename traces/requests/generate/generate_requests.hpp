#pragma once

#include <cstdint>

#include "traces/requests/generate/workload.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// The workload of `spec`. Poisson and gamma arrivals begin one gap after 0, a fixed rate at 0.
/// Errors: InputError where times or a session's context outgrow what a trace may hold.
[[nodiscard]] RequestTrace generate_requests(const GeneratorSpec& spec, std::uint64_t seed);

/// Gives the requests of `trace` that wait for none the arrivals of `arrivals`, in their order. In
/// a closed loop a user takes the next of them `think` after the last of its former conversation
/// has ended. Errors: as above.
void replace_arrivals(RequestTrace& trace, const ArrivalSpec& arrivals, const PauseSpec& think,
                      std::uint64_t seed);

}  // namespace kvsim
