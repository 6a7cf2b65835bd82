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
  std::string value;    // JSON; a bare word is a string
};

/// Returns the value of `file` merged over the files that it `extends`, without the `extends` key.
/// Objects merge key by key, null removes an inherited key, and everything else (lists, `model`,
/// `method`) is replaced as a whole. Paths in an extended file become relative to the folder of
/// `file`. `check` is called for each file before the merge, so that an error names the file that
/// contains it. Errors: InputError (cycles, unreadable files, wrong types).
[[nodiscard]] nlohmann::json merged_document(const std::filesystem::path& file,
                                             const std::function<void(const Field&)>& check);

/// The same for a document in memory, as if it were read from the file that `root` names.
[[nodiscard]] nlohmann::json merged_document(const Field& root,
                                             const std::function<void(const Field&)>& check);

/// Merges `overlay` over `base`, as above.
[[nodiscard]] nlohmann::json merged(nlohmann::json base, const nlohmann::json& overlay);

/// Sets the value at `change.pointer` (RFC 6901). Creates missing members; creates list items only
/// at the end ("-"). A name in place of an object becomes the object. Errors: InputError that names
/// the pointer and the obstacle.
void apply_override(nlohmann::json& document, const Override& change);

/// Sets the value at `pointer` (RFC 6901) to `value`, as apply_override does. Error messages begin
/// with `place`: "--set /batch".
void set_value(nlohmann::json& document, const std::string& pointer, nlohmann::json value,
               std::string_view place);

/// Returns the tokens of a JSON pointer. Errors: InputError, beginning with `place`, if `pointer`
/// is not a JSON pointer, is empty, is not UTF-8, or ends in an empty key.
[[nodiscard]] std::vector<std::string> pointer_tokens(const std::string& pointer,
                                                      std::string_view place);

/// Parses `text` as JSON, or returns it as a string if it is a plain word. Errors: InputError,
/// beginning with `place`, if it begins like a list, an object or a quoted string but is invalid,
/// or if it is not UTF-8.
[[nodiscard]] nlohmann::json json_or_word(const std::string& text, const std::string& place);

}  // namespace kvsim
