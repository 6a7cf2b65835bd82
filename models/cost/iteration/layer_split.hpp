#pragma once

#include <cstdint>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// The part of a model that one GPU holds of it where layers are split, as a model. The
/// vocabulary's matrix is there where `range` has the embedding or the head; parameters outside
/// matrices are spread evenly over the layers. Without embedding and head it has a vocabulary of
/// one word, whose row counts to no parameters.
[[nodiscard]] Llm stage_llm(const Llm& llm, const LayerRange& range);

/// Layers of each of `gpus` GPUs as device_map="auto" gives them. GPUs are filled in order with the
/// embedding, whole layers and the head, each but the last up to its even share of the weights and
/// 1.25 layers; the first keeps room free for the largest part that is still to come. A tied head
/// is with the embedding. Sources: huggingface/accelerate utils/modeling.py, get_balanced_memory
/// and infer_auto_device_map. GPUs that get no layer are left out.
[[nodiscard]] std::vector<LayerRange> device_map(const Llm& llm, const WeightStore& store,
                                                 std::int32_t gpus);

/// Errors: InputError where `gpus` GPUs cannot share the model as the stack does.
void check_gpus(const Llm& llm, const Stack& stack, std::int32_t gpus);

}  // namespace kvsim
