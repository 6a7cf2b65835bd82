#pragma once

#include <cstdint>

#include "sim/memory/groups/vllm_groups.hpp"

namespace kvsim {

/// Block ids that a sequence holds in a vLLM engine's groups. All groups draw them from one pool:
/// full groups keep a sequence's blocks, windows and chunks release blocks that no later token
/// attends to, and a state takes one id, plus one more if prefix caching keeps the state before a
/// prefill step.
class GroupSizes {
 public:
  GroupSizes(VllmGroups groups, bool keeps_states, std::int64_t draft_tokens);

  /// Tokens that are whole blocks in every group: prefixes are found in multiples of this.
  [[nodiscard]] std::int64_t block_tokens() const { return block_; }
  [[nodiscard]] Bytes id() const { return groups_.block_id; }
  /// Ids of a sequence of `tokens` tokens while the last `chunk` of them are computed.
  [[nodiscard]] std::int64_t ids(std::int64_t tokens, std::int64_t chunk) const;
  /// Last decode step, as a number of tokens from `tokens`, for which ids(…, 1) stays the same.
  [[nodiscard]] std::int64_t same_until(std::int64_t tokens) const;

  /// Ids of one block of block_tokens in the groups that keep everything and in windows and chunks;
  /// and ids of one state in each group of states.
  [[nodiscard]] std::int64_t full_ids() const { return full_ids_; }
  [[nodiscard]] std::int64_t window_ids() const { return window_ids_; }
  [[nodiscard]] std::int64_t state_ids() const { return state_ids_; }
  /// First block of block_tokens that a token at position `tokens` attends to in any window or
  /// chunk.
  [[nodiscard]] std::int64_t first_seen(std::int64_t tokens) const;

 private:
  VllmGroups groups_;
  bool keeps_states_;
  std::int64_t drafts_;
  std::int64_t block_ = 1;
  std::int64_t full_ids_ = 0, window_ids_ = 0, state_ids_ = 0;
};

}  // namespace kvsim
