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

/// Whether that release caches prefixes of models with recurrent states unless it is switched off.
/// Starts of 0.19 log capacities without kept states, starts of 0.26 with them.
[[nodiscard]] constexpr bool keeps_states_by_default(EngineVersion release) {
  return release >= EngineVersion{0, 22, 0};
}

/// What decides how a vLLM V1 engine divides its cache memory among a model's layers.
struct VllmGroupSettings {
  Dtype kv_dtype = Dtype::kBf16;
  // In place of kv_dtype, for keys and values of heads: a method with rows of fixed size. Not
  // owned; null: none.
  const Method* format = nullptr;
  std::optional<Dtype> state_dtype{};  // of recurrent matrices; none: the model's
  std::int64_t max_model_len = 0;
  std::int64_t max_num_batched_tokens = 8192;  // of one step
  std::int64_t block_tokens = 0;               // as the user sets it; 0: the engine's default
  bool keeps_states = true;           // prefix caching: states at the ends of blocks are kept
  std::int64_t draft_tokens = 0;      // that a speculative step proposes for each sequence
  std::int32_t draft_layers = 0;      // layers of a draft head, which join those of the model
  std::int32_t context_parallel = 1;  // ranks that share the tokens of full layers
  bool schedules_ahead = true;        // a step is scheduled while the one before it runs
  EngineVersion release{0, 30, 0};

  /// Tokens that are scheduled and not yet counted as computed: windows let go behind what is
  /// computed. Two steps' where the engine schedules ahead, since vLLM 0.26 (PR 47728).
  [[nodiscard]] std::int64_t tokens_in_flight() const;
};

/// How the blocks that a request holds in a group grow. A state is one block; kStates keep one
/// after each block of tokens, which vLLM does for Mamba layers with prefix caching
/// (mamba_cache_mode "all": vLLM model_executor/models/config.py, MambaModelConfig, for models that
/// declare supports_mamba_prefix_caching) unless drafts are proposed (PR 40454).
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
  std::int32_t padding = 0;         // layers of the last group of a kind that hold nothing
  std::int64_t block_tokens = 0;    // of one block; of states the attention block
  std::int64_t request_blocks = 0;  // that one request of max_model_len tokens takes
  /// Bytes of one id by layer of the model; empty: packed layers and those of a draft.
  struct Page {
    std::int32_t layer = 0;
    std::int64_t bytes = 0;
  };
  std::vector<Page> pages{};
};

struct VllmGroups {
  std::vector<VllmGroup> groups;
  std::int64_t block_tokens = 0;      // of full layers, else of the first group
  std::int32_t context_parallel = 1;  // ranks over which full groups deal tokens
  Bytes block_id{};                   // of one id: a page of each layer of a group
  std::int64_t request_blocks = 0;    // of one request, all groups

  [[nodiscard]] bool has_states() const;
  /// Bytes of one id in layers [first, last), which are those of a stage of a pipeline: the groups
  /// are of the whole model, and the one with the most there sets the size. Source: vLLM
  /// v1/core/kv_cache_utils.py, _project_kv_cache_groups_to_worker.
  [[nodiscard]] Bytes id_of_layers(std::int32_t first, std::int32_t last) const;
  /// Tokens of a sequence in one block id of `group`, over all ranks.
  [[nodiscard]] std::int64_t tokens_of(const VllmGroup& group) const {
    return group.block_tokens * (group.growth == GroupGrowth::kFull ? context_parallel : 1);
  }
};

/// The groups of a tensor-parallel shard's layers on one GPU.
/// Layers of equal kind form classes; a group has as many layers as the smallest class, or as the
/// largest where that has less than 1.5 times as many. Pages are made equal by longer blocks where
/// they are smaller; attention blocks are made as large as a recurrent state. Layers whose caches
/// grow without a bound (full, latent, index keys) and that differ only in their pages form one
/// group. Compressed entries (DeepSeek-V4) are packed: sim/memory/groups/vllm_packed.hpp. Errors:
/// InputError where pages cannot be made equal. Sources: vLLM v1/core/kv_cache_utils.py
/// (get_kv_cache_groups), v1/kv_cache_interface.py, model_executor/models/config.py
/// (HybridAttentionMambaModelConfig).
[[nodiscard]] VllmGroups vllm_groups(const Llm& shard, const VllmGroupSettings& settings);

/// Blocks of `block` tokens that a request takes at `tokens` tokens, of which as many as
/// tokens_in_flight() may not be computed yet. Source: vLLM v1/kv_cache_interface.py,
/// max_memory_usage_bytes and max_admission_blocks_per_request.
[[nodiscard]] std::int64_t group_blocks(GroupGrowth growth, std::int64_t limit, std::int64_t block,
                                        std::int64_t tokens, const VllmGroupSettings& settings);

/// The longest request, of at most settings.max_model_len tokens, that takes at most `blocks` block
/// ids; 0: not even one token's. Source: vLLM v1/core/kv_cache_utils.py, estimate_max_model_len.
[[nodiscard]] std::int64_t longest_request(const Llm& shard, VllmGroupSettings settings,
                                           std::int64_t blocks);

/// What such an engine reports for `available` bytes of cache memory on each GPU.
struct VllmCapacity {
  std::int64_t blocks = 0;
  double concurrency = 0;          // requests of max_model_len tokens
  std::int64_t tokens = 0;         // "GPU KV cache size": concurrency times max_model_len
  std::int64_t tokens_before = 0;  // the same before mid 2026: blocks of one group times its size
};
[[nodiscard]] VllmCapacity vllm_capacity(const VllmGroups& groups, Bytes available,
                                         std::int64_t max_model_len);
/// The same of a number of blocks.
[[nodiscard]] VllmCapacity capacity_of_blocks(const VllmGroups& groups, std::int64_t blocks,
                                              std::int64_t max_model_len);

}  // namespace kvsim
