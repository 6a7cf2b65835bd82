#pragma once

#include "models/stack/stack.hpp"

namespace kvsim {

/// Applies the defaults of `out`'s engine at `site`, and sets `out.settings` to the resulting
/// settings. `out.defaults` must not be null. Throws InputError if the engine reserves more memory
/// than the GPU has, or if it rejects such limits.
void take_defaults(Stack& out, const StackOptions& options, const EngineSite& site);

/// Sets the slots of `out`'s state pool after its rules have set the default.
void take_state_slots(Stack& out, const StackOptions& options);

}  // namespace kvsim
