#pragma once

#include <string>
#include <vector>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// The trace as the text of a file in a layout: plain (times exact, prefix ids left out), Azure
/// (times of 100 ns, rounded down, from 2024-01-01 00:00:00) or Mooncake (ms, rounded down; blocks
/// of prefix ids as the trace has them, and no ids where they are not known). Errors: InputError
/// for another layout, and where the layout cannot say what the trace does: requests that wait for
/// others (of a shared list in every layout), declared lengths, priorities; for Mooncake also
/// blocks of other than 512 tokens.
[[nodiscard]] std::string requests_text(const RequestTrace& trace, RequestFormat format);

/// Parts of this trace that requests_text omits without an error: "prefix ids", "times below 1 ms",
/// …
[[nodiscard]] std::vector<std::string> left_out_by(const RequestTrace& trace, RequestFormat format);

}  // namespace kvsim
