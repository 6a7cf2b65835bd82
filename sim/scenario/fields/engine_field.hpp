#pragma once

#include "models/json/field.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// Reads the scenario's `engine`: settings that override those of the software stack. Errors:
/// InputError.
[[nodiscard]] StackOptions read_engine(const Field& field);

}  // namespace kvsim
