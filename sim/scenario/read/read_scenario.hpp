#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Reads a scenario (docs/scenarios.md), resolves `extends`, applies the overrides and checks every
/// key. Errors: InputError with file and JSON pointer.
[[nodiscard]] Scenario read_scenario(const std::filesystem::path& file,
                                     const std::vector<Override>& overrides);

/// The first half of read_scenario, for callers that read many variants of one file. Returns its
/// keys after `extends` and overrides. The form of each file is checked.
[[nodiscard]] nlohmann::json scenario_document(const std::filesystem::path& file,
                                               const std::vector<Override>& overrides);

/// The second half: builds a scenario from such a document. `file` provides its name and the base
/// folder of paths; `place` is the document's name in messages. `changed`: values were set after it
/// was read. Its form is then checked again, and a published figure need not match a point.
[[nodiscard]] Scenario scenario_of(const nlohmann::json& document,
                                   const std::filesystem::path& file, const std::string& place,
                                   bool changed);

/// Checks each key of `document` separately. Errors: InputError.
void check_scenario_form(const nlohmann::json& document, const std::filesystem::path& file,
                         const std::string& place);

/// Reads the keys `layers`, `heads` and `steps` of a `replay`. Errors: InputError unless they are
/// integers in their range.
[[nodiscard]] SampleSize read_sample_size(const Field& replay);

/// The same as scenario_document for a document in memory, as if it were read from `file`, which
/// need not exist.
[[nodiscard]] nlohmann::json scenario_document_of(std::string_view text,
                                                  const std::filesystem::path& file,
                                                  const std::vector<Override>& overrides);

}  // namespace kvsim
