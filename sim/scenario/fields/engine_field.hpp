#pragma once

#include "models/json/field.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// The scenario's `engine`: what a run sets of its software stack. Errors: InputError.
[[nodiscard]] StackOptions read_engine(const Field& field);

}  // namespace kvsim
