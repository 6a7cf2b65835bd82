#pragma once

// Methods of the user's own code. They are not part of the catalogue: "all" does not name them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "models/methods/axis_choice.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/methods/select/own_scores.hpp"

namespace kvsim {

/// Adds `method`, to be used by its name like a preset ("my_press.py:MyPress+int8"). Thread-safe;
/// what is added stays. Errors: InputError if the name is empty, has a "+", "=" or ",", is a
/// catalogue's or another method's, or if a parameter has the name of one that every method has.
void register_own_method(std::shared_ptr<const OwnMethod> method);

/// The method with that name as a row of the catalogue; nullptr: there is none.
[[nodiscard]] const Preset* find_own_preset(std::string_view name);
/// The same as a choice of the select axis.
[[nodiscard]] const AxisChoice* find_own_choice(std::string_view name);

/// What a result with the method `name` says about its own method; nullopt if there is none in it:
/// whose scores these are, and which part of their time and memory is counted.
[[nodiscard]] std::optional<std::string> own_method_note(const std::string& name);

}  // namespace kvsim
