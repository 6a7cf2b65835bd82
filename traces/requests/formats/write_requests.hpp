#pragma once

#include <string>
#include <vector>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Returns the trace as the text of a file in a layout: plain (exact times, no prefix ids), Azure
/// (times of 100 ns, rounded down, from 2024-01-01 00:00:00) or Mooncake (ms, rounded down; the
/// trace's blocks of prefix ids, and no ids if they are unknown). Errors: InputError for another
/// layout, and if the layout cannot represent the trace: requests that wait for others (for a
/// shared list in every layout), declared lengths, priorities; for Mooncake also blocks of other
/// than 512 tokens.
[[nodiscard]] std::string requests_text(const RequestTrace& trace, RequestFormat format);

/// Returns the parts of this trace that requests_text omits without an error: "prefix ids", "times
/// below 1 ms", …
[[nodiscard]] std::vector<std::string> left_out_by(const RequestTrace& trace, RequestFormat format);

}  // namespace kvsim
