#pragma once

// Request traces in CSV: plain, Azure, BurstGPT, Vidur, Splitwise.

#include <optional>
#include <string>
#include <string_view>

#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"

namespace kvsim {

/// Returns the layout whose required columns are all in `header`, a file's first line; nullopt if
/// there is none.
[[nodiscard]] std::optional<RequestFormat> csv_format_of(std::string_view header);

/// Returns an error message for an unknown header: the nearest layout and the difference from it,
/// or all layouts.
[[nodiscard]] std::string csv_header_complaint(std::string_view header);

/// Reads the records after `header`, the line last read from `lines`. Errors: same as
/// read_requests.
[[nodiscard]] RequestTrace read_csv_requests(LineReader& lines, const std::string& header,
                                             RequestFormat format, const ReadOptions& options);

/// Returns nanoseconds since 1970-01-01 UTC of "YYYY-MM-DD HH:MM:SS[.f…][Z|+HH:MM]" ("T" in place
/// of the blank; no zone: UTC); decimals beyond the ninth are rounded down. nullopt for anything
/// else.
[[nodiscard]] std::optional<std::int64_t> parse_timestamp(std::string_view text);

}  // namespace kvsim
