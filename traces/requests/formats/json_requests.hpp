#pragma once

// Request traces in JSON: Mooncake (a record a line) and ShareGPT (a list of conversations).

#include <istream>
#include <string>
#include <string_view>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {

/// Mooncake's lines, `first` the one that `lines` gave last. Errors: as read_requests.
[[nodiscard]] RequestTrace read_mooncake(LineReader& lines, std::string first,
                                         const ReadOptions& options);

/// A list of conversations, or conversations behind each other, `first` the line that `lines` gave
/// last. A conversation is read as a whole, the file is not. Errors: as read_requests.
[[nodiscard]] RequestTrace read_sharegpt(LineReader& lines, std::string first,
                                         const ReadOptions& options);

}  // namespace kvsim
