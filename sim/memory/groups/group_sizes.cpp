#include "sim/memory/groups/group_sizes.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

/// First token that the one at position `tokens` attends to in the group.
std::int64_t first_token(const VllmGroup& group, std::int64_t tokens) {
  switch (group.growth) {
    case GroupGrowth::kWindow:
      return std::max<std::int64_t>(0, tokens - group.limit + 1);
    case GroupGrowth::kChunk:
      return tokens / group.limit * group.limit;
    case GroupGrowth::kFull:
    case GroupGrowth::kState:
    case GroupGrowth::kStates:
      break;
  }
  return 0;
}

}  // namespace

GroupSizes::GroupSizes(VllmGroups groups, bool keeps_states, std::int64_t draft_tokens)
    : groups_{std::move(groups)}, keeps_states_{keeps_states}, drafts_{draft_tokens} {
  KVSIM_CHECK(!groups_.groups.empty(), "an engine without groups");
  for (VllmGroup& group : groups_.groups) group.block_tokens = groups_.tokens_of(group);
  groups_.block_tokens *= groups_.context_parallel;
  for (const VllmGroup& group : groups_.groups) {
    if (group.growth != GroupGrowth::kState) block_ = std::lcm(block_, group.block_tokens);
  }
  if (block_ == 1) block_ = groups_.block_tokens;
  for (const VllmGroup& group : groups_.groups) {
    if (group.growth == GroupGrowth::kState) {
      ++state_ids_;
    } else {
      const bool keeps_all =
          group.growth == GroupGrowth::kFull || group.growth == GroupGrowth::kStates;
      (keeps_all ? full_ids_ : window_ids_) += block_ / group.block_tokens;
    }
  }
}

std::int64_t GroupSizes::ids(std::int64_t tokens, std::int64_t chunk) const {
  if (tokens <= 0) return 0;
  std::int64_t sum = 0;
  for (const VllmGroup& group : groups_.groups) {
    if (group.growth == GroupGrowth::kState) {
      sum += 1 + drafts_ + (keeps_states_ && chunk > 1 ? 1 : 0);
      continue;
    }
    const std::int64_t first = first_token(group, std::max<std::int64_t>(0, tokens - chunk));
    sum += divide_up(tokens, group.block_tokens) - first / group.block_tokens;
  }
  return sum;
}

std::int64_t GroupSizes::same_until(std::int64_t tokens) const {
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (const VllmGroup& group : groups_.groups) {
    const std::int64_t block = group.block_tokens;
    if (group.growth == GroupGrowth::kState) continue;
    last = std::min(last, divide_up(tokens, block) * block);
    if (group.growth == GroupGrowth::kWindow) {
      const std::int64_t passed = std::max<std::int64_t>(0, tokens - group.limit);
      last = std::min(last, (passed / block + 1) * block + group.limit - 1);
    } else if (group.growth == GroupGrowth::kChunk) {
      last = std::min(last, ((tokens - 1) / group.limit + 1) * group.limit);
    }
  }
  return std::max(last, tokens);
}

std::int64_t GroupSizes::first_seen(std::int64_t tokens) const {
  std::int64_t first = tokens / block_;
  for (const VllmGroup& group : groups_.groups) {
    if (group.growth == GroupGrowth::kWindow || group.growth == GroupGrowth::kChunk) {
      first = std::min(first, first_token(group, tokens) / block_);
    }
  }
  return first;
}

}  // namespace kvsim
