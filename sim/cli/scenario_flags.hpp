#pragma once

// Scenarios out of options instead of a file: `kvsim plan --model … --gpu … --method …`. Every
// option is a key of scenario files, so that one reader checks both.

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/cli/arguments.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// What commands that work through a scenario take: where results go, as `out` says, and with which
/// `schema` --json answers; then the options that are keys of a scenario, and --print-scenario.
[[nodiscard]] std::vector<Option> scenario_command_options(std::string out,
                                                           std::string_view schema);
/// Whether one of them is given, so that no file is to be read. Errors: InputError where a file is
/// named beside them, or where they leave out the model or the GPU.
[[nodiscard]] bool asks_by_options(const Arguments& arguments);

/// What the keys that nobody gave are. Tokens are those of one sequence.
inline constexpr const char* kFlagStack = "vllm";
inline constexpr std::int64_t kFlagPrompt = 8192;
inline constexpr std::int64_t kFlagOutput = 512;

/// The scenario as a document (kvsim.scenario/1), after --set: of `kvsim plan` with its "plan", and
/// the full cache beside the methods asked for. Errors: InputError that names the option.
[[nodiscard]] nlohmann::ordered_json scenario_by_options(const Arguments& arguments, bool plans);

/// The same, read: called after its model, GPU and methods. Errors: InputError.
[[nodiscard]] Scenario read_scenario_by_options(const nlohmann::ordered_json& document);

}  // namespace kvsim
