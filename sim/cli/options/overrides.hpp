#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/cli/options/arguments.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The overrides of --set. Errors: InputError for one without "=".
[[nodiscard]] std::vector<Override> read_overrides(const Arguments& arguments);

/// The overrides of --skip-bad for a scenario after --set: skip_bad of each of its request files.
/// Errors: InputError that names `place` if the scenario reads no request file.
[[nodiscard]] std::vector<Override> skip_bad_overrides(const Arguments& arguments,
                                                       const nlohmann::json& document,
                                                       const std::string& place);

/// The overrides of both options for the scenario in `file`, in the order in which they apply.
[[nodiscard]] std::vector<Override> read_overrides(const Arguments& arguments,
                                                   const std::filesystem::path& file);

/// Throws InputError if a scenario with a sweep also has a plan. `file` is its name.
void refuse_plan_of_sweep(const nlohmann::json& document, const std::string& file);

/// The option --skip-bad.
[[nodiscard]] Option skip_bad_option();

}  // namespace kvsim
