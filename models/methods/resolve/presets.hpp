#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"

namespace kvsim {

/// A published method: one choice per axis, and the parameters whose defaults differ from those of
/// the choices.
struct Preset {
  MethodInfo info;
  Params defaults;
  double default_budget = 0;  // of the prompt, if neither a budget nor sizes are given; 0: none
  std::vector<Availability> available;
};
[[nodiscard]] const std::vector<Preset>& presets();

/// A row of the catalogue; axes that are not listed are neutral.
struct PresetRow {
  std::string name, summary, paper;
  std::map<std::string, std::string> axes;
  std::string size_law, cost_class;
  Params defaults{};
  double default_budget = 0;
  std::vector<Availability> available{};  // software that implements it; sources: availability.cpp
};
using PresetRows = std::vector<PresetRow>;

/// Adds a row from outside this library, after its choices are registered. Call it like
/// register_choice. Errors: ContractError if the name is taken or a choice does not exist.
void register_preset(PresetRow row);

// The catalogue: one file in catalogue/ per function.
[[nodiscard]] PresetRows basic_presets();    // full, sliding windows, accumulated attention
[[nodiscard]] PresetRows window_presets();   // attention of recent queries
[[nodiscard]] PresetRows content_presets();  // contents of keys and values; wrappers of scorers
[[nodiscard]] PresetRows learned_presets();  // oracles, learned surrogates, recorded decisions
[[nodiscard]] PresetRows merging_presets();  // merging of evicted entries
[[nodiscard]] PresetRows stored_presets();   // fewer bits; layers that share
[[nodiscard]] PresetRows tier_presets();     // formats of pages outside the GPU
[[nodiscard]] PresetRows prefill_presets();  // partly computed prompts
[[nodiscard]] PresetRows reading_presets();  // all entries held, some read; references

}  // namespace kvsim
