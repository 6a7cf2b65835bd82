#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"

namespace kvsim {

/// An override from the command line: "/batch=8".
struct Override {
  std::string pointer;  // RFC 6901
  std::string value;    // JSON, or a bare word taken as a string
};

/// One value out of the files: `file`, under what it `extends`, without the key itself. Objects
/// merge key by key, a null takes an inherited key away, everything else (lists, `model`, `method`)
/// is replaced whole. Paths that an extended file names are rewritten to start where `file` lies.
/// `check` sees every file by itself before it is merged, so that a complaint names the file that
/// holds the fault. Errors: InputError (cycles, files that cannot be read, wrong types).
[[nodiscard]] nlohmann::json merged_document(const std::filesystem::path& file,
                                             const std::function<void(const Field&)>& check);

/// The same of a document at hand, as if the file that it is called after held it.
[[nodiscard]] nlohmann::json merged_document(const Field& root,
                                             const std::function<void(const Field&)>& check);

/// `overlay` over `base`, as above.
[[nodiscard]] nlohmann::json merged(nlohmann::json base, const nlohmann::json& overlay);

/// Sets the value at `change.pointer` (RFC 6901). Members are created, list items only at the end
/// ("-"). Errors: InputError that names the pointer and the obstacle.
void apply_override(nlohmann::json& document, const Override& change);

/// Sets what `pointer` (RFC 6901) names to `value`, as apply_override does. `place` begins every
/// complaint: "--set /batch".
void set_value(nlohmann::json& document, const std::string& pointer, nlohmann::json value,
               std::string_view place);

/// The tokens of a JSON pointer. Errors: InputError, beginning with `place`, if it is none, is
/// empty, no UTF-8, or ends in an empty key.
[[nodiscard]] std::vector<std::string> pointer_tokens(const std::string& pointer,
                                                      std::string_view place);

/// `text` as JSON, or as the plain word it is. Errors: InputError, beginning with `place`, if it
/// begins as a list, an object or a quoted text and is none, or is no UTF-8.
[[nodiscard]] nlohmann::json json_or_word(const std::string& text, const std::string& place);

/// FNV-1a of 64 bits over `text`, 16 hexadecimal digits.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace kvsim
