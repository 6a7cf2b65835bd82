#pragma once

#include <memory>

#include "models/methods/method.hpp"

namespace kvsim {

/// Returns `method` as run by research code that evicts only by a mask. All entries stay cached and
/// are read at each step; dropped entries are masked out of the scores. Attention scores, operators
/// and side data do not change. There is always a size law. Sources: FMInference/H2O
/// h2o_hf/utils_hh/modify_llama.py (attention_masks_next; the returned tuple holds all keys and
/// values), hdong920/LESS src/inference/generative/llama_gen.py.
[[nodiscard]] std::shared_ptr<const Method> masked(std::shared_ptr<const Method> method);

}  // namespace kvsim
