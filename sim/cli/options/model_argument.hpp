#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvsim {

/// The path of the Hugging Face config.json that `name` refers to: the file itself, or the one in
/// this folder. Returns nullopt for a name of the catalogue. Catalogue ids contain slashes like
/// paths, so existing files decide. Errors: InputError "PLACE: …" for a missing path, with the
/// place that was searched and similar catalogue models, and for a folder without a config.json.
[[nodiscard]] std::optional<std::filesystem::path> model_file(const std::string& name,
                                                              std::string_view place);

}  // namespace kvsim
