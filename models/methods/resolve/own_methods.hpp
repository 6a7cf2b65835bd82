#pragma once

// Methods implemented in the user's code. They are not part of the catalogue, and "all" does not
// include them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/methods/axis_choice.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/methods/select/own_scores.hpp"

namespace kvsim {

/// Registers `method`, whose name can be used like a preset's ("my_press.py:MyPress+int8").
/// Thread-safe; methods cannot be removed. Errors: InputError if the name is empty, contains "+",
/// "=" or ",", or belongs to the catalogue or another method, or if a parameter has the name of a
/// parameter of all methods.
void register_own_method(std::shared_ptr<const OwnMethod> method);

/// Returns the method with that name as a row of the catalogue; nullptr if there is none.
[[nodiscard]] const Preset* find_own_preset(std::string_view name);
/// The same as a choice of the select axis.
[[nodiscard]] const AxisChoice* find_own_choice(std::string_view name);

/// Returns the note for results of the method `name`: the origin of the scores, and the part of
/// their time and memory that is counted. nullopt if it contains no user method.
[[nodiscard]] std::optional<std::string> own_method_note(const std::string& name);

}  // namespace kvsim
