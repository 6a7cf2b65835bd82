#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Something the user gave is wrong. Says where, what was expected and what was there; only `main`
/// catches it, prints it on one line and exits 2.
class InputError : public std::runtime_error {
 public:
  /// A complete sentence: "file.json: /batch/size: expected an integer in [1, 4096], got 0".
  explicit InputError(const std::string& message);
  InputError(std::string_view place, std::string_view expected, std::string_view got);
};

/// The result of body(); an InputError gets `place: ` before its message.
template <class Body>
decltype(auto) with_place(const std::string& place, Body&& body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw InputError{place + ": " + error.what()};
  }
}

/// The member of `known` nearest to `word` by edit distance; empty if `word` is no likely slip of
/// one (up to 5 letters: 1 slip, none of unlike letters; more letters: 2, or a third of them).
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string> known);

/// `unknown KIND "WORD"; did you mean "NEAR"? (known, names, and 40 more)`; leaves out what it
/// cannot say.
[[nodiscard]] std::string unknown_name(std::string_view kind, std::string_view word,
                                       std::span<const std::string> known);

/// `KIND "WORD" is ambiguous; one of a, b`.
[[nodiscard]] std::string ambiguous_name(std::string_view kind, std::string_view word,
                                         std::span<const std::string> candidates);

}  // namespace kvsim
