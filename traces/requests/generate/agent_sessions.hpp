#pragma once

#include <cstdint>

#include "traces/requests/lengths.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Sessions of coding agents from distributions. A request's prompt is the previous prompt and
/// `growth` more tokens. A share of the requests restarts from a part of it, as after edits and
/// summaries. Sub-agents start from a separate prompt and run in parallel; the request after them
/// waits for them.
struct AgentSpec {
  std::int32_t sessions = 1;
  LengthSpec requests{};  // of the main agent, per session
  LengthSpec first_prompt{}, growth{}, output{};
  LengthSpec think_ms{};    // pause before a request: tools and users
  LengthSpec service_ms{};  // recorded service time of a request, which shifts the recorded starts
  double restart_share = 0.0;   // of the requests after the first
  double restart_keep = 0.0;    // mean share of its blocks that such a request keeps
  double subagent_share = 0.0;  // share of the main agent's requests that start a sub-agent
  LengthSpec subagent_requests{}, subagent_prompt{};
};

/// The statistics of 31 published sessions (callanjfox/kv-cache-tester, docs/requests.md).
[[nodiscard]] AgentSpec published_agents();

/// Generates sessions that all start at 0, with local prefix ids of `block` tokens. Every component
/// draws from a stream with its name. Errors: InputError for a prompt longer than kMaxTokens.
[[nodiscard]] RequestTrace generate_agents(const AgentSpec& spec, std::int32_t block,
                                           std::uint64_t seed);

}  // namespace kvsim
