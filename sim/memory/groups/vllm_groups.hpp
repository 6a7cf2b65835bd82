#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/llm/llm.hpp"
#include "models/methods/method.hpp"
#include "models/stack/engine_defaults.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Returns whether this release caches prefixes of models with recurrent states by default. Starts
/// of 0.19 log capacities without kept states, starts of 0.26 with them.
[[nodiscard]] constexpr bool keeps_states_by_default(EngineVersion release) {
  return release >= EngineVersion{0, 22, 0};
}

/// Inputs of a vLLM V1 engine's division of its cache memory among a model's layers.
struct VllmGroupSettings {
  Dtype kv_dtype = Dtype::kBf16;
  // Replaces kv_dtype for keys and values of heads: a method with rows of fixed size. Not owned;
  // null: none.
  const Method* format = nullptr;
  std::optional<Dtype> state_dtype{};  // of recurrent matrices; none: the model's
  std::int64_t max_model_len = 0;
  std::int64_t max_num_batched_tokens = 8192;  // per step
  std::int64_t block_tokens = 0;               // as configured by the user; 0: the engine's default
  bool keeps_states = true;           // prefix caching: states at the ends of blocks are kept
  std::int64_t draft_tokens = 0;      // proposed per sequence and speculative step
  std::int32_t draft_layers = 0;      // layers of a draft head, which are added to those of the
                                      // model
  std::int32_t context_parallel = 1;  // ranks that share the tokens of full layers
  bool schedules_ahead = true;        // a step is scheduled while the previous one runs
  EngineVersion release{0, 30, 0};

  /// Tokens that are scheduled but not yet counted as computed: windows release blocks relative to
  /// the computed tokens. Covers two steps if the engine schedules ahead, since vLLM 0.26 (PR
  /// 47728).
  [[nodiscard]] std::int64_t tokens_in_flight() const;
};

/// Growth of the blocks that a request holds in a group. A state is one block; kStates keep one
/// after each block of tokens, as vLLM does for Mamba layers with prefix caching (mamba_cache_mode
/// "all": vLLM model_executor/models/config.py, MambaModelConfig, for models that declare
/// supports_mamba_prefix_caching) unless drafts are proposed (PR 40454).
enum class GroupGrowth : std::uint8_t { kFull, kWindow, kChunk, kState, kStates };
[[nodiscard]] constexpr bool holds_states(GroupGrowth growth) {
  return growth == GroupGrowth::kState || growth == GroupGrowth::kStates;
}

/// Layers that share block ids: one id is a block of each of them.
struct VllmGroup {
  std::string kind;  // "full", "window", "state", …
  GroupGrowth growth = GroupGrowth::kFull;
  std::int64_t limit = 0;  // tokens of a window or a chunk
  std::int32_t layers = 0;
  std::int32_t padding = 0;         // empty layers of the last group of a kind
  std::int64_t block_tokens = 0;    // of one block; for states, of the attention block
  std::int64_t request_blocks = 0;  // of one request of max_model_len tokens
  /// Bytes of one id by layer of the model; empty for packed layers and those of a draft.
  struct Page {
    std::int32_t layer = 0;
    std::int64_t bytes = 0;
  };
  std::vector<Page> pages{};
};

struct VllmGroups {
  std::vector<VllmGroup> groups;
  std::int64_t block_tokens = 0;      // of full layers, else of the first group
  std::int32_t context_parallel = 1;  // ranks over which full groups distribute tokens
  Bytes block_id{};                   // of one id: a page of each layer of a group
  std::int64_t request_blocks = 0;    // of one request, all groups

  [[nodiscard]] bool has_states() const;
  /// Bytes of one id in layers [first, last), those of a pipeline stage. The groups are of the
  /// whole model, and the group with the most bytes there sets the size. Source: vLLM
  /// v1/core/kv_cache_utils.py, _project_kv_cache_groups_to_worker.
  [[nodiscard]] Bytes id_of_layers(std::int32_t first, std::int32_t last) const;
  /// Tokens of a sequence in one block id of `group`, over all ranks.
  [[nodiscard]] std::int64_t tokens_of(const VllmGroup& group) const {
    return group.block_tokens * (group.growth == GroupGrowth::kFull ? context_parallel : 1);
  }
};

/// Returns the groups of a tensor-parallel shard's layers on one GPU.
/// Layers of equal kind form classes; a group has as many layers as the smallest class, or as the
/// largest class if that has less than 1.5 times as many. Smaller pages are made equal by longer
/// blocks; attention blocks are made as large as a recurrent state. Layers whose caches grow
/// without a bound (full, latent, index keys) and that differ only in their pages form one group.
/// Compressed entries (DeepSeek-V4) are packed: sim/memory/groups/vllm_packed.hpp. Errors:
/// InputError if pages cannot be made equal. Sources: vLLM v1/core/kv_cache_utils.py
/// (get_kv_cache_groups), v1/kv_cache_interface.py, model_executor/models/config.py
/// (HybridAttentionMambaModelConfig).
[[nodiscard]] VllmGroups vllm_groups(const Llm& shard, const VllmGroupSettings& settings);

/// Number of blocks of `block` tokens of a request with `tokens` tokens, of which up to
/// tokens_in_flight() may not be computed yet. Source: vLLM v1/kv_cache_interface.py,
/// max_memory_usage_bytes and max_admission_blocks_per_request.
[[nodiscard]] std::int64_t group_blocks(GroupGrowth growth, std::int64_t limit, std::int64_t block,
                                        std::int64_t tokens, const VllmGroupSettings& settings);

/// Longest request, at most settings.max_model_len tokens, that takes at most `blocks` block ids; 0
/// if not even one token fits. Source: vLLM v1/core/kv_cache_utils.py, estimate_max_model_len.
[[nodiscard]] std::int64_t longest_request(const Llm& shard, VllmGroupSettings settings,
                                           std::int64_t blocks);

/// Capacity that such an engine reports for `available` bytes of cache memory on each GPU.
struct VllmCapacity {
  std::int64_t blocks = 0;
  double concurrency = 0;          // requests of max_model_len tokens
  std::int64_t tokens = 0;         // "GPU KV cache size": concurrency times max_model_len
  std::int64_t tokens_before = 0;  // the same before mid 2026: blocks of one group times its size
};
[[nodiscard]] VllmCapacity vllm_capacity(const VllmGroups& groups, Bytes available,
                                         std::int64_t max_model_len);
/// The same for a given number of blocks.
[[nodiscard]] VllmCapacity capacity_of_blocks(const VllmGroups& groups, std::int64_t blocks,
                                              std::int64_t max_model_len);

}  // namespace kvsim
