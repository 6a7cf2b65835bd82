#pragma once

// Request traces in JSON: Mooncake (a record per line) and ShareGPT (a list of conversations).

#include <istream>
#include <string>
#include <string_view>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {

/// Reads Mooncake's lines; `first` is the line last read from `lines`. Errors: same as
/// read_requests.
[[nodiscard]] RequestTrace read_mooncake(LineReader& lines, std::string first,
                                         const ReadOptions& options);

/// Reads a list of conversations, or concatenated conversations; `first` is the line last read from
/// `lines`. Holds one conversation in memory, not the file. Errors: same as read_requests.
[[nodiscard]] RequestTrace read_sharegpt(LineReader& lines, std::string first,
                                         const ReadOptions& options);

}  // namespace kvsim
