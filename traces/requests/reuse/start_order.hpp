#pragma once

#include <cstdint>
#include <vector>

#include "models/units/units.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Returns the starts of requests if service times are as recorded. For agents: session s starts at
/// s times `stagger`, and its requests at their recorded times. Other traces record no service
/// times: requests take no time, so a waiting request starts its pause immediately after the
/// previous one.
[[nodiscard]] std::vector<SimTime> recorded_starts(const RequestTrace& trace, SimTime stagger);

/// Returns indices of requests in order of start, then of session, then of the trace.
[[nodiscard]] std::vector<std::int32_t> start_order(const RequestTrace& trace,
                                                    const std::vector<SimTime>& starts);

/// Concurrent load of agents, as recorded. A request is in flight from its start to its end; one
/// without a recorded service never is. At equal times, ends precede starts.
struct AgentLoad {
  std::int64_t max_requests_in_flight = 0;
  std::int64_t max_sessions_open = 0;  // from the first start to the last end of each session
  std::int64_t max_sessions_and_subagents_open = 0;
  SimTime span{};  // first start to last end overall
};
/// `starts`: from recorded_starts. Errors: ContractError for a trace that is not of agents.
[[nodiscard]] AgentLoad agent_load(const RequestTrace& trace, const std::vector<SimTime>& starts);

}  // namespace kvsim
