#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/cli/options/arguments.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// What --set says. Errors: InputError where one has no "=".
[[nodiscard]] std::vector<Override> read_overrides(const Arguments& arguments);

/// What --skip-bad says of a scenario as --set leaves it: skip_bad of each of its files of
/// requests. Errors: InputError that names `place` where it reads no such file.
[[nodiscard]] std::vector<Override> skip_bad_overrides(const Arguments& arguments,
                                                       const nlohmann::json& document,
                                                       const std::string& place);

/// Both, of the scenario in `file`, in the order in which they apply.
[[nodiscard]] std::vector<Override> read_overrides(const Arguments& arguments,
                                                   const std::filesystem::path& file);

/// Errors: InputError if a scenario that is swept has a plan, too. `file` names it.
void refuse_plan_of_sweep(const nlohmann::json& document, const std::string& file);

/// The option --skip-bad.
[[nodiscard]] Option skip_bad_option();

}  // namespace kvsim
