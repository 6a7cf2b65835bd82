#pragma once

#include <cstdint>
#include <vector>

#include "models/units/units.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// When requests start if a service takes as long as the record says. Of agents: session s starts
/// at s times `stagger`, and its requests at their recorded times. Of other traces, which record no
/// times of service: requests take none, so that one that waits starts its pause after the one
/// before it.
[[nodiscard]] std::vector<SimTime> recorded_starts(const RequestTrace& trace, SimTime stagger);

/// Indices of requests in order of start, then of session, then of the trace.
[[nodiscard]] std::vector<std::int32_t> start_order(const RequestTrace& trace,
                                                    const std::vector<SimTime>& starts);

/// What agents keep busy at once, as recorded. A request is in flight from its start to its end,
/// one without a recorded service never; what ends at a moment ends before what starts then.
struct AgentLoad {
  std::int64_t max_requests_in_flight = 0;
  std::int64_t max_sessions_open = 0;  // from the first start to the last end
  std::int64_t max_sessions_and_subagents_open = 0;
  SimTime span{};  // first start to last end of all
};
/// `starts`: as recorded_starts gives them. Errors: ContractError for a trace that is not of
/// agents.
[[nodiscard]] AgentLoad agent_load(const RequestTrace& trace, const std::vector<SimTime>& starts);

}  // namespace kvsim
