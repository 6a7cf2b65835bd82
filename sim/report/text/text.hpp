#pragma once

// Names and titles come from users' files; these make them fit to print.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/units_format.hpp"  // with_commas, to_text: what prints names prints numbers

namespace kvsim {

/// `text` with control characters (line ends, tabs, escape sequences' first byte, C1 controls,
/// marks and overrides of direction) as blanks and bytes that are no UTF-8 as "?".
[[nodiscard]] std::string clean_text(std::string_view text);

/// A name out of a user's file, cleaned: at most `width` columns, what is longer loses its middle.
inline constexpr std::size_t kLongestName = 80;
[[nodiscard]] std::string name_text(std::string_view text, std::size_t width = kLongestName);

/// Terminal columns `text` takes: combining marks none, East Asian wide characters and emoji two.
[[nodiscard]] std::size_t display_width(std::string_view text);

/// At most `width` columns of `text`: its end gives way to "…".
[[nodiscard]] std::string shortened(std::string_view text, std::size_t width);

/// Lines of at most `width` columns, broken at blanks where there are any.
[[nodiscard]] std::vector<std::string> wrapped(std::string_view text, std::size_t width);

/// As lines that end in "\n", cleaned; those after the first are indented by `indent` columns.
[[nodiscard]] std::string paragraph(std::string_view text, std::size_t width,
                                    std::size_t indent = 0);

/// Three figures or more, never an exponent a reader has to undo: "12,345", "37.2", "0.042"; "-"
/// where there is no number.
[[nodiscard]] std::string amount(double value);
[[nodiscard]] std::string amount(const std::optional<double>& value);

/// A part of a file name: lower-case letters, digits, "-" and ".", everything else "-"; never
/// empty, at most 40 characters, never starting with "." or "-".
[[nodiscard]] std::string slug(std::string_view text);

}  // namespace kvsim
