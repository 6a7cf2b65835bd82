#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/settle/availability.hpp"

namespace kvsim {

/// A published method: one choice an axis, and the parameters it sets otherwise than the choices
/// do.
struct Preset {
  MethodInfo info;
  Params defaults;
  double default_budget = 0;  // of the prompt, where neither a budget nor sizes are given; 0: none
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

/// Adds a row from outside this library, after the choices that it names; when and how as
/// register_choice. Errors: ContractError if the name is taken or an axis has no such choice.
void register_preset(PresetRow row);

// The catalogue, a file of catalogue/ each.
[[nodiscard]] PresetRows basic_presets();    // full, sliding windows, accumulated attention
[[nodiscard]] PresetRows window_presets();   // attention of recent queries
[[nodiscard]] PresetRows content_presets();  // what keys and values look like; wrappers of scorers
[[nodiscard]] PresetRows learned_presets();  // oracles, surrogates, recorded decisions
[[nodiscard]] PresetRows merging_presets();  // what leaves lives on in another entry
[[nodiscard]] PresetRows stored_presets();   // fewer bits; layers that share
[[nodiscard]] PresetRows reading_presets();  // all held, part read; references

}  // namespace kvsim
