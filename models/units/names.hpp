#pragma once

// Names that users type: equivalent spellings, and messages for unknown names.

#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Returns `name` in lower case with "_" and blanks as "-"; equal results denote the same name.
[[nodiscard]] std::string folded_name(std::string_view name);

/// As folded_name, without separators: "Llama 3.1-8B" is "llama3.18b".
[[nodiscard]] std::string squeezed_name(std::string_view name);

/// The names of a catalogue.
struct KnownNames {
  std::string_view kind;          // "model"
  std::string_view list_command;  // "kvsim list models"
  std::vector<std::string> names{};
  std::vector<std::string> aliases{};  // also searched for the nearest name
};

/// Returns `unknown KIND "WORD"; did you mean "NEAR"?`. Without a near name, it lists the names
/// that contain the word, else a few examples, and the command that lists all names. For a Hugging
/// Face name ("org/model"), the part after the slash is compared as well.
[[nodiscard]] std::string unknown_entry(const KnownNames& known, std::string_view word);

}  // namespace kvsim
