#pragma once

#include "models/stack/stack.hpp"

namespace kvsim {

/// Applies the options of decode and prefill context parallelism. Throws InputError if the release
/// does not support it, if both are combined, or if prompts are split while weights are in host
/// memory.
void take_context_parallel(Stack& out, const StackOptions& options);

}  // namespace kvsim
