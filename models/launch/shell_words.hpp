#pragma once

// Splitting and quoting of POSIX shell command lines.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Splits one command into words as a shell does: quotes, backslashes, continued lines and
/// comments. Throws InputError "PLACE: character N: …" for an open quote, and for text that a shell
/// would replace or run ($NAME, `…`, ;, |, &, <, >, (, )).
[[nodiscard]] std::vector<std::string> split_shell_words(std::string_view text,
                                                         std::string_view place);

/// Quotes `word` for a shell, in single quotes unless it has no special characters.
[[nodiscard]] std::string quoted_for_shell(std::string_view word);

/// Joins the words. If the line is longer than `width`, it is continued with backslashes: an option
/// and its value share a line, and lines after the first are indented. 0: one line.
[[nodiscard]] std::string shell_command(std::span<const std::string> words, std::size_t width = 0);

}  // namespace kvsim
