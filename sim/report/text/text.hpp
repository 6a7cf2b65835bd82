#pragma once

// Makes names and titles from users' files safe to print.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units_format.hpp"  // with_commas, to_text: users of this header need both

namespace kvsim {

/// `text` with control characters (line ends, tabs, first bytes of escape sequences, C1 controls,
/// directional marks and overrides) replaced by spaces and invalid UTF-8 by "?".
[[nodiscard]] std::string clean_text(std::string_view text);

/// A name from a user's file, cleaned and at most `width` columns; a longer name loses its middle.
inline constexpr std::size_t kLongestName = 80;
[[nodiscard]] std::string name_text(std::string_view text, std::size_t width = kLongestName);

/// The number of terminal columns of `text`: combining marks take 0, wide East Asian characters and
/// emoji 2.
[[nodiscard]] std::size_t display_width(std::string_view text);

/// `text` cut to `width` columns; "…" replaces the end.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t width);

/// Lines of at most `width` columns, broken at spaces if possible.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view text, std::size_t width);

/// Lines that end in "\n", cleaned; lines after the first are indented by `indent` columns.
[[nodiscard]] std::string paragraph(std::string_view text, std::size_t width,
                                    std::size_t indent = 0);

/// A number for display, with two or three significant digits below 1,000 and whole above:
/// "12,345", "37.2", "0.042"; "-" if it is not finite.
[[nodiscard]] std::string amount(double value);
[[nodiscard]] std::string amount(const std::optional<double>& value);

/// A part of a file name: lower-case letters, digits, "-" and "."; other characters become "-". It
/// is never empty, has at most 40 characters, and never starts with "." or "-".
[[nodiscard]] std::string slug(std::string_view text);

}  // namespace kvsim
