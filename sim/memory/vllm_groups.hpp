#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// What decides how a vLLM V1 engine divides its cache memory among a model's layers.
struct VllmGroupSettings {
  Dtype kv_dtype = Dtype::kBf16;
  std::int64_t max_model_len = 0;
  std::int64_t max_num_batched_tokens = 8192;  // of one step
  std::int64_t block_tokens = 0;               // as the user sets it; 0: the engine's default
  bool keeps_states = true;           // prefix caching: states at the ends of blocks are kept
  std::int64_t draft_tokens = 0;      // that a speculative step proposes for each sequence
  std::int32_t draft_layers = 0;      // full layers of a draft head, which join those of the model
  std::int32_t context_parallel = 1;  // ranks that share the tokens of full layers
};

/// Layers that share block ids: one id is a block of each of them.
struct VllmGroup {
  std::string kind;  // "full", "window", "state", …
  std::int32_t layers = 0;
  std::int32_t padding = 0;         // layers of the last group of a kind that hold nothing
  std::int64_t block_tokens = 0;    // of one block; of states the attention block
  std::int64_t request_blocks = 0;  // that one request of max_model_len tokens takes
};

struct VllmGroups {
  std::vector<VllmGroup> groups;
  std::int64_t block_tokens = 0;    // of full layers, else of the first group
  Bytes block_id{};                 // of one id: a page of each layer of a group
  std::int64_t request_blocks = 0;  // of one request, all groups
};

/// The groups of a tensor-parallel shard's layers on one GPU.
/// Layers of equal kind form classes; a group has as many layers as the smallest class, or as the
/// largest where that has less than 1.5 times as many. Pages are made equal by longer blocks where
/// they are smaller; attention blocks are made as large as a recurrent state. Layers whose caches
/// grow without a bound (full, latent, index keys) and that differ only in their pages form one
/// group. Errors: InputError where pages cannot be made equal, and for compressed entries, whose
/// packed groups are not modelled. Sources: vLLM v1/core/kv_cache_utils.py (get_kv_cache_groups),
/// v1/kv_cache_interface.py, model_executor/models/config.py (HybridAttentionMambaModelConfig).
[[nodiscard]] VllmGroups vllm_groups(const Llm& shard, const VllmGroupSettings& settings);

/// What such an engine reports for `available` bytes of cache memory on each GPU.
struct VllmCapacity {
  std::int64_t blocks = 0;
  double concurrency = 0;          // requests of max_model_len tokens
  std::int64_t tokens = 0;         // "GPU KV cache size": concurrency times max_model_len
  std::int64_t tokens_before = 0;  // the same before mid 2026: blocks of one group times its size
};
[[nodiscard]] VllmCapacity vllm_capacity(const VllmGroups& groups, Bytes available,
                                         std::int64_t max_model_len,
                                         std::int32_t context_parallel = 1);

}  // namespace kvsim
