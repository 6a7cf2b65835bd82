#pragma once

#include <cstdint>

#include "traces/requests/lengths.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Sessions of coding agents from distributions. A request's prompt is the one before it and
/// `growth` more; a share of the requests starts again from a part of it, as after edits and
/// summaries. Sub-agents start from a separate prompt, run next to each other, and the request
/// after them waits for them.
struct AgentSpec {
  std::int32_t sessions = 1;
  LengthSpec requests{};  // of the main agent, per session
  LengthSpec first_prompt{}, growth{}, output{};
  LengthSpec think_ms{};    // pause before a request: tools and users
  LengthSpec service_ms{};  // recorded service time of a request, which moves the recorded starts
  double restart_share = 0.0;   // of the requests behind the first
  double restart_keep = 0.0;    // mean share of its blocks that such a request keeps
  double subagent_share = 0.0;  // requests of the main agent that start a sub-agent
  LengthSpec subagent_requests{}, subagent_prompt{};
};

/// The statistics of 31 published sessions (callanjfox/kv-cache-tester, docs/requests.md).
[[nodiscard]] AgentSpec published_agents();

/// Sessions that all start at 0, of local prefix ids of `block` tokens. Every component draws from
/// a stream with its name. Errors: InputError for a prompt beyond kMaxTokens.
[[nodiscard]] RequestTrace generate_agents(const AgentSpec& spec, std::int32_t block,
                                           std::uint64_t seed);

}  // namespace kvsim
