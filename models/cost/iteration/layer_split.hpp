#pragma once

#include <cstdint>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/stack/stack.hpp"

namespace kvsim {

/// Returns the part of a model on one GPU with layer splitting, as a model. It contains the
/// vocabulary's matrix if `range` has the embedding or the head; parameters outside matrices are
/// spread evenly over the layers. Without embedding and head its vocabulary has one word, whose row
/// is not counted as parameters.
[[nodiscard]] Llm stage_llm(const Llm& llm, const LayerRange& range);

/// Returns the layers of each of `gpus` GPUs as assigned by device_map="auto". GPUs are filled in
/// order with the embedding, whole layers and the head, each except the last up to its even share
/// of the weights and 1.25 layers; the first keeps room for the largest remaining part. A tied head
/// is placed with the embedding. Sources: huggingface/accelerate utils/modeling.py,
/// get_balanced_memory and infer_auto_device_map. GPUs without layers are omitted.
[[nodiscard]] std::vector<LayerRange> device_map(const Llm& llm, const WeightStore& store,
                                                 std::int32_t gpus);

/// Throws InputError if `gpus` GPUs cannot share the model in the stack's way.
void check_gpus(const Llm& llm, const Stack& stack, std::int32_t gpus);

}  // namespace kvsim
