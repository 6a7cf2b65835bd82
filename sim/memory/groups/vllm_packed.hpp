#pragma once

#include "models/llm/llm.hpp"
#include "sim/memory/groups/vllm_groups.hpp"

namespace kvsim {

/// Returns whether the model has layers with compressed entries (DeepSeek-V4), which vLLM packs.
[[nodiscard]] bool has_compressed_layers(const Llm& shard);

/// Returns the groups of such a model. Entries of all ratios and index keys form one group, with
/// blocks of 256 tokens. Windows have blocks of 64, compressors' states blocks whose pages are as
/// large as those of entries, and windows of the tokens that they compress. Pages are aligned.
/// Layers of a class are counted in tuples (one of each page size); classes are divided into groups
/// of the number of tuples that leaves the fewest empty. A block id is a slab that holds one block
/// of any one group:
///   - before 0.24: the groups' tuples times the sum of the full group's page sizes;
///   - since 0.24 (PR 44454): for each page size as many pages as the group with most has;
///   - since 0.27 (PR 48993): as large as the largest group, whose pages are dense.
/// Before 0.27, pages of states are raised to the next page size of entries or index keys, and a
/// request's blocks are its bytes over the full group's pages.
/// Sources: vLLM v1/core/kv_cache_utils.py (group_and_unify_kv_cache_specs,
/// _get_kv_cache_groups_uniform_groups, _approximate_gcd, _get_packed_kv_cache_layout),
/// models/deepseek_v4/{attention,compressor}.py, v1/attention/backends/mla/sparse_swa.py.
[[nodiscard]] VllmGroups packed_groups(const Llm& shard, const VllmGroupSettings& settings);

}  // namespace kvsim
