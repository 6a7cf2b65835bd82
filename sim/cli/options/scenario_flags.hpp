#pragma once

// Scenarios out of options instead of a file: `kvsim plan --model … --gpu … --method …`. Every
// option is a key of scenario files, so that one reader checks both.

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "sim/cli/options/arguments.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// What messages call a scenario made of options.
inline constexpr std::string_view kOptionsPlace = "options";

/// Whether an option that is a key of a scenario is given, so that no file is read. Errors:
/// InputError where a file is given as well, where the model or the GPU is missing, and for options
/// that mean nothing together.
[[nodiscard]] bool asks_by_options(const Arguments& arguments);

/// Whether one of the options is a key of "plan" (--price, --percentile, …).
[[nodiscard]] bool has_plan_options(const Arguments& arguments);

/// Defaults of keys that no option sets. Tokens are those of one sequence.
inline constexpr const char* kFlagStack = "vllm";
inline constexpr std::int64_t kFlagPrompt = 8192;
inline constexpr std::int64_t kFlagOutput = 512;

/// A scenario made of options.
struct OptionScenario {
  nlohmann::ordered_json document;  // kvsim.scenario/1, after --set
  Scenario scenario;                // named after its model, GPU and methods
};

/// With --rate a service with Poisson arrivals, else a static batch. With `plans` it has a "plan"
/// and the full cache next to the methods. Assumptions (the card that "h100" is, default lengths)
/// go to standard error, unless --quiet. Errors: InputError that names the typed option.
[[nodiscard]] OptionScenario scenario_by_options(const Arguments& arguments, bool plans);

}  // namespace kvsim
