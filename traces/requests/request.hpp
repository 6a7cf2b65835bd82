#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// Maximum length of a prompt or an output; larger values indicate a broken record.
inline constexpr std::int32_t kMaxTokens = 1 << 24;

/// One request of a workload: its arrival and lengths, without text.
struct Request {
  SimTime arrival{};  // since the workload's start; for a request that waits (`after`), the pause
                      // between the end of that request and this arrival
  std::int32_t prompt_tokens = 1;    // at least 1
  std::int32_t output_tokens = 0;    // tokens that it will generate; known to engines, never to
                                     // policies
  std::int32_t declared_tokens = 0;  // max_tokens, available to policies; 0: not declared
  std::int32_t priority = 0;         // lower is served earlier, under orders that use it
  std::int32_t session = -1;         // conversation or user; -1: none
  std::int32_t after = -1;           // index of an earlier request that has to end first; -1: none
  std::int32_t prefix_first = 0;     // index of its first id in RequestTrace::prefix_ids
  std::int32_t prefix_count = 0;
};

/// Data of a record of agents about a request, in addition to Request.
struct AgentRecord {
  SimTime start{};             // since the start of its session
  SimTime service{-1};         // duration of the recorded service; below 0: not recorded
  std::int32_t subagent = -1;  // number of its sub-agent; -1: the session's main agent
  /// Number of the request's prefix ids that are in the file. One more id covers the tokens after
  /// the last full block, which no other request shares.
  std::int32_t blocks = 0;
};

/// A session of agents, as recorded.
struct AgentSession {
  std::string name;
  std::int32_t subagents = 0;
};

/// `request` also waits for the end of `also`, in addition to its `after`.
struct Join {
  std::int32_t request = 0;
  std::int32_t also = 0;  // an earlier request
};

/// A workload. Requests without `after` are in order of arrival, ties in the file's order; a
/// request with `after` comes after the request for which it waits.
struct RequestTrace {
  std::string name;    // file name without folder, or name of the generator
  std::string format;  // "azure", "mooncake", …, "generated"
  std::vector<Request> requests;
  /// Equal ids mean the same tokens after the same prefix. An id covers `prefix_block` tokens, the
  /// last id of a request the rest of its prompt.
  std::vector<std::uint64_t> prefix_ids;
  std::int32_t prefix_block = 0;  // 0: prefixes are unknown
  /// A waiting request starts after the next request that ends, in the order of `requests`, rather
  /// than after its `after`: clients with a limit of requests in flight take the next request of
  /// one list.
  bool shared_list = false;
  /// Within a session, a request that waits for another is the next turn of a conversation: its
  /// prompt consists of that request's prompt and answer and new tokens. false: sessions may be
  /// users with independent requests.
  bool conversations = false;
  std::vector<Join> joins;                   // in order of `request`
  std::vector<AgentRecord> agents;           // one per request; empty if there is no record of
                                             // agents
  std::vector<AgentSession> agent_sessions;  // by Request::session, if there are `agents`
  std::int64_t skipped = 0;        // malformed records that were skipped with the caller's
                                   // permission
  std::vector<std::string> notes;  // remarks for the reader: "arrivals are quantised to 3 s", …
};

/// Returns the ids of a request that other requests may share.
[[nodiscard]] std::span<const std::uint64_t> shared_ids(const RequestTrace& trace,
                                                        std::size_t request);

/// Errors: ContractError if lengths, order, `after`, joins, records or prefix ids violate the rules
/// above.
void check_requests(const RequestTrace& trace);

}  // namespace kvsim
