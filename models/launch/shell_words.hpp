#pragma once

// Words of a POSIX shell's command line.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// The words of one command, as a shell splits them: quotes, backslashes, continued lines and
/// comments. Errors: InputError "PLACE: character N: …" for an open quote, and for what a shell
/// would replace or run ($NAME, `…`, ;, |, &, <, >, (, )).
[[nodiscard]] std::vector<std::string> split_shell_words(std::string_view text,
                                                         std::string_view place);

/// `word` so that a shell reads it back as it is: in single quotes unless it is plain.
[[nodiscard]] std::string quoted_for_shell(std::string_view word);

/// The words joined; option and value stay on one line, and lines after the first are indented and
/// continued with a backslash where the line is longer than `width`. 0: one line.
[[nodiscard]] std::string shell_command(std::span<const std::string> words, std::size_t width = 0);

}  // namespace kvsim
