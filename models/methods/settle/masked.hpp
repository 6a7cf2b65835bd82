#pragma once

#include <memory>

#include "models/methods/method.hpp"

namespace kvsim {

/// `method` as research code runs it that evicts by a mask alone: every entry stays cached and is
/// read at each step, and what the method lets go is masked out of the scores. Its attention
/// scores, its own operators and what it carries beside the entries are its own. There is always a
/// size law. Sources: FMInference/H2O h2o_hf/utils_hh/modify_llama.py (attention_masks_next; the
/// tuple that is returned holds all keys and values), hdong920/LESS
/// src/inference/generative/llama_gen.py.
[[nodiscard]] std::shared_ptr<const Method> masked(std::shared_ptr<const Method> method);

}  // namespace kvsim
