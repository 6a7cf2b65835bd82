#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvsim {

/// The Hugging Face config.json that `name` is, or that the folder of this name holds; nullopt
/// where it is a name of the catalogue. Ids of catalogue models hold slashes as paths do, so that
/// what is there decides. Errors: InputError "PLACE: …" for what is written as a path and is not
/// there, with where it was looked for and the models of the catalogue that it may mean; for a
/// folder without a config.json.
[[nodiscard]] std::optional<std::filesystem::path> model_file(const std::string& name,
                                                              std::string_view place);

}  // namespace kvsim
