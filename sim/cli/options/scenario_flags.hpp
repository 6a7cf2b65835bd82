#pragma once

// Scenarios made from options instead of a file: `kvsim plan --model … --gpu … --method …`. Every
// option is a key of scenario files, so that the same reader checks both.

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "sim/cli/options/arguments.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The name in messages of a scenario made from options.
inline constexpr std::string_view kOptionsPlace = "options";

/// Whether an option that is a scenario key is given, so that no file is read. Errors: InputError
/// if a file is also given, if the model or the GPU is missing, and for contradictory options.
[[nodiscard]] bool asks_by_options(const Arguments& arguments);

/// Whether one of the options is a key of "plan" (--price, --percentile, …).
[[nodiscard]] bool has_plan_options(const Arguments& arguments);

/// Defaults of keys that no option sets. Token counts are per sequence.
inline constexpr const char* kFlagStack = "vllm";
inline constexpr std::int64_t kFlagPrompt = 8192;
inline constexpr std::int64_t kFlagOutput = 512;

/// A scenario made from options.
struct OptionScenario {
  nlohmann::ordered_json document;  // kvsim.scenario/1, after --set
  Scenario scenario;                // named after its model, GPU and methods
};

/// Makes a service with Poisson arrivals if --rate is given, otherwise a static batch. With `plans`
/// the scenario has a "plan" and the full cache in addition to the methods. Prints assumptions (the
/// GPU for "h100", default lengths) on standard error, unless --quiet. Errors: InputError that
/// names the typed option.
[[nodiscard]] OptionScenario scenario_by_options(const Arguments& arguments, bool plans);

}  // namespace kvsim
