#pragma once

#include "models/stack/stack.hpp"

namespace kvsim {

/// Sets `out` to the defaults of its engine at `site`, and `out.settings` to what it runs with.
/// `out.defaults` is not null. Errors: InputError where the engine reserves more memory than the
/// GPU has, or does not start with such limits.
void take_defaults(Stack& out, const StackOptions& options, const EngineSite& site);

/// The slots of `out`'s pool of states, of which its rules have set the default.
void take_state_slots(Stack& out, const StackOptions& options);

}  // namespace kvsim
