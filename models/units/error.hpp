#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Invalid user input. The message contains the place, the expected and the actual value; only
/// `main` catches it, prints it on one line and exits with 2.
class InputError : public std::runtime_error {
 public:
  /// A complete sentence: "file.json: /batch/size: expected an integer in [1, 4096], got 0".
  explicit InputError(const std::string& message);
  InputError(std::string_view place, std::string_view expected, std::string_view got);
};

/// Returns the result of body(); prefixes the message of an InputError with `place: `.
template <class Body>
decltype(auto) with_place(const std::string& place, Body&& body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw InputError{place + ": " + error.what()};
  }
}

/// Returns the member of `known` nearest to `word` by edit distance; empty if `word` is unlikely to
/// be a misspelling of it (up to 5 letters: 1 edit, but no substitution of dissimilar letters; more
/// letters: 2 edits, or a third of the letters).
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string> known);

/// Returns `unknown KIND "WORD"; did you mean "NEAR"? (known, names, and 40 more)`; parts without
/// content are omitted.
[[nodiscard]] std::string unknown_name(std::string_view kind, std::string_view word,
                                       std::span<const std::string> known);

/// Returns `KIND "WORD" is ambiguous; one of a, b`.
[[nodiscard]] std::string ambiguous_name(std::string_view kind, std::string_view word,
                                         std::span<const std::string> candidates);

}  // namespace kvsim
