#pragma once

// Names that users type: spellings that count as equal, and answers to names that nothing has.

#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// `name` in lower case with "_" and blanks as "-": spellings that count as one name.
[[nodiscard]] std::string folded_name(std::string_view name);

/// The same without separators: "Llama 3.1-8B" is "llama3.18b".
[[nodiscard]] std::string squeezed_name(std::string_view name);

/// Names that a catalogue has.
struct KnownNames {
  std::string_view kind;          // "model"
  std::string_view list_command;  // "kvsim list models"
  std::vector<std::string> names{};
  std::vector<std::string> aliases{};  // also searched for the nearest name
};

/// `unknown KIND "WORD"; did you mean "NEAR"?`. Without a near name: the names that contain the
/// word, else a few examples, and the command that lists all. Of a Hugging Face name
/// ("org/model") the part after the slash is compared, too.
[[nodiscard]] std::string unknown_entry(const KnownNames& known, std::string_view word);

}  // namespace kvsim
