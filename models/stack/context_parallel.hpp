#pragma once

#include "models/stack/stack.hpp"

namespace kvsim {

/// Sets what `options` say of decode and prefill context parallelism. Errors: InputError for a
/// release that does not have it, and where both are combined, or prompts that are split with
/// weights in host memory.
void take_context_parallel(Stack& out, const StackOptions& options);

}  // namespace kvsim
