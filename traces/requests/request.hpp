#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// No prompt and no output is longer than this; more is taken for a broken record.
inline constexpr std::int32_t kMaxTokens = 1 << 24;

/// One request of a workload: when it comes and how long it is. No text.
struct Request {
  SimTime arrival{};  // since the workload's start; of one that waits (`after`): the pause
                      // between that request's end and this one's arrival
  std::int32_t prompt_tokens = 1;    // at least 1
  std::int32_t output_tokens = 0;    // what it will generate; engines know it, policies never do
  std::int32_t declared_tokens = 0;  // max_tokens, which policies may know; 0: none was declared
  std::int32_t priority = 0;         // lower is served earlier, under orders that use it
  std::int32_t session = -1;         // its conversation or user; -1: none
  std::int32_t after = -1;           // index of an earlier request that has to end first; -1: none
  std::int32_t prefix_first = 0;     // its ids in RequestTrace::prefix_ids
  std::int32_t prefix_count = 0;
};

/// What the record of agents says about a request, besides Request.
struct AgentRecord {
  SimTime start{};             // since the start of its session
  SimTime service{-1};         // how long the recorded service took; below 0: not recorded
  std::int32_t subagent = -1;  // number of its sub-agent; -1: the session's main agent
  /// Of the request's prefix ids those that the file has. One that follows covers the tokens behind
  /// the last full block, which no other request shares.
  std::int32_t blocks = 0;
};

/// A session of agents, as recorded.
struct AgentSession {
  std::string name;
  std::int32_t subagents = 0;
};

/// `request` waits for the end of `also` too, besides the request that its `after` names.
struct Join {
  std::int32_t request = 0;
  std::int32_t also = 0;  // an earlier one
};

/// A workload. Requests without `after` are in order of arrival, ties in the file's order; one with
/// `after` comes after the request it waits for.
struct RequestTrace {
  std::string name;    // the file's, without folder, or the generator's
  std::string format;  // "azure", "mooncake", …, "generated"
  std::vector<Request> requests;
  /// Equal ids: the same tokens after the same prefix. An id covers `prefix_block` tokens, the last
  /// of a request the rest of its prompt.
  std::vector<std::uint64_t> prefix_ids;
  std::int32_t prefix_block = 0;  // 0: nothing is known of prefixes
  /// A request that waits comes after whichever request ends next, in the order of `requests`, not
  /// after its `after`: clients with a limit of requests in flight take the next of one list.
  bool shared_list = false;
  /// Of one session a request that waits for another is the next turn of a conversation: its prompt
  /// is that one's prompt and answer and more. false: sessions may be users, whose requests are
  /// their own.
  bool conversations = false;
  std::vector<Join> joins;                   // in order of `request`
  std::vector<AgentRecord> agents;           // one per request; empty: not a record of agents
  std::vector<AgentSession> agent_sessions;  // by Request::session, where there are `agents`
  std::int64_t skipped = 0;        // malformed records that the caller allowed to be passed over
  std::vector<std::string> notes;  // what a reader should know: "arrivals are quantised to 3 s", …
};

/// Ids of a request that other requests may share.
[[nodiscard]] std::span<const std::uint64_t> shared_ids(const RequestTrace& trace,
                                                        std::size_t request);

/// Errors: ContractError if lengths, order, `after`, joins, records or prefix ids break what is
/// said above.
void check_requests(const RequestTrace& trace);

}  // namespace kvsim
