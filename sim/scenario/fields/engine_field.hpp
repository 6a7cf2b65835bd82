#pragma once

#include "models/json/field.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// The scenario's `engine`: settings that override the software stack's. Errors: InputError.
[[nodiscard]] StackOptions read_engine(const Field& field);

}  // namespace kvsim
