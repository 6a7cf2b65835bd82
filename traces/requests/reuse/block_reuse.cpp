#include "traces/requests/reuse/block_reuse.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kNever = -1;

/// Recency of blocks: their last uses, and the number of distinct blocks used since.
class RecencyStack {
 public:
  /// Returns the number of distinct blocks used since the last use of `block`; kNever if it has not
  /// been used.
  [[nodiscard]] std::int64_t distance(std::size_t block) const {
    const std::int64_t at = last_[block];
    return at == kNever ? kNever : live_ - count_up_to(at);
  }
  /// Whether `block` was used immediately before `later`, so that its distance is one more.
  [[nodiscard]] bool precedes(std::size_t block, std::size_t later) const {
    return last_[block] != kNever && last_[block] + 1 == last_[later];
  }
  void resize(std::size_t blocks) { last_.resize(std::max(blocks, last_.size()), kNever); }

  void use(std::size_t block) {
    if (next_ == std::ssize(sums_)) renumber();
    std::int64_t& at = last_[block];
    if (at == kNever) {
      ++live_;
    } else {
      add(at, -1);
      owner_[static_cast<std::size_t>(at)] = kNoOwner;
    }
    at = next_++;
    owner_[static_cast<std::size_t>(at)] = static_cast<std::uint32_t>(block);
    add(at, 1);
  }

 private:
  static constexpr std::uint32_t kNoOwner = UINT32_MAX;

  // Updates a Fenwick tree over times of use, which is 1 at the last use of each block.
  void add(std::int64_t at, std::int32_t change) {
    for (std::int64_t i = at; i < std::ssize(sums_); i |= i + 1) {
      sums_[static_cast<std::size_t>(i)] += change;
    }
  }
  [[nodiscard]] std::int64_t count_up_to(std::int64_t at) const {
    std::int64_t sum = 0;
    for (std::int64_t i = at; i >= 0; i = (i & (i + 1)) - 1)
      sum += sums_[static_cast<std::size_t>(i)];
    return sum;
  }
  /// Renumbers times as 0, 1, … in their order, with room for the same number of further times.
  void renumber() {
    std::vector<std::uint32_t> kept;
    kept.reserve(static_cast<std::size_t>(live_));
    for (const std::uint32_t block : owner_) {
      if (block != kNoOwner) kept.push_back(block);
    }
    const std::size_t size = std::max<std::size_t>(1024, 4 * kept.size());
    owner_.assign(size, kNoOwner);
    sums_.assign(size, 0);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      owner_[i] = kept[i];
      last_[kept[i]] = static_cast<std::int64_t>(i);
      sums_[i] = 1;
    }
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t up = i | (i + 1);
      if (up < size) sums_[up] += sums_[i];
    }
    next_ = std::ssize(kept);
  }

  std::vector<std::int64_t> last_{};    // by block: its last use
  std::vector<std::uint32_t> owner_{};  // by time: the block last used at that time
  std::vector<std::int32_t> sums_{};
  std::int64_t next_ = 0;
  std::int64_t live_ = 0;
};

}  // namespace

std::int64_t ReuseCurve::hits_of(std::int64_t capacity) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < capacities.size() && capacities[i] <= capacity; ++i) {
    sum += hits_at[i];
  }
  return sum;
}

ReuseCurve reuse_curve(const RequestTrace& trace, std::span<const std::int32_t> order,
                       TouchOrder touch) {
  ReuseCurve out;
  RecencyStack stack;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  std::map<std::int64_t, std::int64_t> hits;  // by required capacity
  std::vector<std::size_t> blocks;
  for (const std::int32_t i : order) {
    const auto request = static_cast<std::size_t>(i);
    const auto ids = shared_ids(trace, request);
    blocks.clear();
    for (const std::uint64_t id : ids) {
      const auto next = static_cast<std::uint32_t>(numbers.size());
      blocks.push_back(numbers.try_emplace(id, next).first->second);
    }
    KVSIM_CHECK(numbers.size() < UINT32_MAX, "{} different blocks", numbers.size());
    stack.resize(numbers.size());
    std::int64_t needed = 0;
    std::int64_t distance = kNever;
    std::size_t found = 0;
    std::size_t since = 0;  // the first block whose required capacity is that of the latest
    for (; found < blocks.size(); ++found) {
      const bool adjacent = found > 0 && stack.precedes(blocks[found], blocks[found - 1]);
      distance = adjacent ? distance + 1 : stack.distance(blocks[found]);
      if (distance == kNever) break;
      if (distance < needed) continue;
      if (found > since) hits[needed] += static_cast<std::int64_t>(found - since);
      needed = distance + 1;
      since = found;
    }
    if (found > since) hits[needed] += static_cast<std::int64_t>(found - since);
    out.blocks += std::ssize(blocks);
    out.hits += static_cast<std::int64_t>(found);
    const std::int64_t tokens = std::ssize(blocks) * std::int64_t{trace.prefix_block};
    if (found > 0 && found == blocks.size() && tokens == trace.requests[request].prompt_tokens) {
      ++out.whole_prompts;
    }
    if (touch == TouchOrder::kTailFirst) std::reverse(blocks.begin(), blocks.end());
    for (const std::size_t block : blocks) stack.use(block);
  }
  out.distinct = static_cast<std::int64_t>(numbers.size());
  for (const auto& [capacity, count] : hits) {
    out.capacities.push_back(capacity);
    out.hits_at.push_back(count);
  }
  return out;
}

}  // namespace kvsim
