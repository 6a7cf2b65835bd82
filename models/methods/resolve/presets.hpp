#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"

namespace kvsim {

/// A published method: one choice per axis, and the parameters that it sets differently from the
/// choices.
struct Preset {
  MethodInfo info;
  Params defaults;
  double default_budget = 0;  // of the prompt, if neither a budget nor sizes are given; 0: none
  std::vector<Availability> available;
};
[[nodiscard]] const std::vector<Preset>& presets();

/// A row of the catalogue; axes that it does not name are neutral.
struct PresetRow {
  std::string name, summary, paper;
  std::map<std::string, std::string> axes;
  std::string size_law, cost_class;
  Params defaults{};
  double default_budget = 0;
  std::vector<Availability> available{};  // software that has it; sources: availability.cpp
};
using PresetRows = std::vector<PresetRow>;

/// Adds a row from outside this library, after the choices that it names. Call it like
/// register_choice. Errors: ContractError if the name is taken or an axis has no such choice.
void register_preset(PresetRow row);

// The catalogue, one file in catalogue/ each.
[[nodiscard]] PresetRows basic_presets();    // full, sliding windows, accumulated attention
[[nodiscard]] PresetRows window_presets();   // attention of recent queries
[[nodiscard]] PresetRows content_presets();  // contents of keys and values; wrappers of scorers
[[nodiscard]] PresetRows learned_presets();  // oracles, surrogates, recorded decisions
[[nodiscard]] PresetRows merging_presets();  // evicted entries are merged into others
[[nodiscard]] PresetRows stored_presets();   // fewer bits; layers that share
[[nodiscard]] PresetRows tier_presets();     // formats of pages outside the GPU
[[nodiscard]] PresetRows prefill_presets();  // prompts that are computed in part
[[nodiscard]] PresetRows reading_presets();  // all held, part read; references

}  // namespace kvsim
