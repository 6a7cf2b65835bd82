#pragma once

// Records of agents and chats in JSON lines: agentic Mooncake and Bailian.

#include <string>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {

/// Agentic Mooncake (crate dynamo-data-gen): a row with `request_id` waits for those in `wait_for`,
/// then `delay` + `tool_wait_ms`; rows of a `session_id` without `request_id` are turns in a closed
/// loop. The block size is `prefix_block`, or else the one that is consistent with the number of
/// ids of every row. `first`: the line last read from `lines`. Errors: same as read_requests.
[[nodiscard]] RequestTrace read_agentic(LineReader& lines, std::string first,
                                        const ReadOptions& options);

/// Bailian (alibaba-edu/qwen-bailian-usagetraces-anon): requests at their recorded times; chats
/// with a common root form one session. Errors: same as read_requests.
[[nodiscard]] RequestTrace read_bailian(LineReader& lines, std::string first,
                                        const ReadOptions& options);

}  // namespace kvsim
