#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Reads a scenario (docs/scenarios.md), follows `extends`, applies the overrides,
/// checks every key. Errors: InputError with file and JSON pointer.
[[nodiscard]] Scenario read_scenario(const std::filesystem::path& file,
                                     const std::vector<Override>& overrides);

/// The first half of read_scenario, for those that read many variants of one file: its keys after
/// `extends` and overrides, each file's form checked.
[[nodiscard]] nlohmann::json scenario_document(const std::filesystem::path& file,
                                               const std::vector<Override>& overrides);

/// The second half: a scenario out of such a document. `file` gives its name and the folder that
/// paths start at, `place` is its name in messages. `changed`: a key has been set since it was
/// read, so its form is checked again and a published value may match no point.
[[nodiscard]] Scenario scenario_of(const nlohmann::json& document,
                                   const std::filesystem::path& file, const std::string& place,
                                   bool changed);

/// Checks each key of `document` on its own. Errors: InputError.
void check_scenario_form(const nlohmann::json& document, const std::filesystem::path& file,
                         const std::string& place);

/// As scenario_document, of a text at hand, as if `file` held it, which need not be
/// there.
[[nodiscard]] nlohmann::json scenario_document_of(std::string_view text,
                                                  const std::filesystem::path& file,
                                                  const std::vector<Override>& overrides);

}  // namespace kvsim
