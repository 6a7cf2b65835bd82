#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvsim {

/// Full blocks of a paged cache that are kept for later requests with the same tokens. Blocks are
/// counted in stretches: those that one prefix id of the workload covers, and those of one sequence
/// without an id (found again after a preemption of that sequence). A stretch's blocks without
/// references may be evicted, the least recently released stretch first, from its tail. A sequence
/// releases its last stretch first, so the head of a prefix stays longest.
class PrefixCache {
 public:
  using Index = std::int32_t;

  /// Stretch of a prefix id; -1: none of its blocks is here.
  [[nodiscard]] Index find(std::uint64_t id) const {
    const auto at = by_id_.find(id);
    return at == by_id_.end() ? -1 : at->second;
  }
  [[nodiscard]] std::int64_t blocks(Index at) const { return node(at).blocks; }
  /// Those of them without references.
  [[nodiscard]] std::int64_t unreferenced(Index at) const {
    return node(at).blocks - node(at).pinned;
  }

  /// Adds a reference to the first `blocks` of a stretch. Returns how many of these had none
  /// before. Errors: ContractError if it has fewer.
  std::int64_t acquire(Index at, std::int64_t blocks);
  /// Removes a reference to the first `blocks`; blocks without references may then be evicted.
  void release(Index at, std::int64_t blocks);
  /// A new stretch of `blocks` blocks with one reference. Errors: ContractError if the id is here.
  Index publish(std::uint64_t id, std::int64_t blocks);
  /// A second name for a stretch that ends a prompt: another id goes on from there. False: it has
  /// one already. Errors: ContractError if the id is here.
  [[nodiscard]] bool name(Index at, std::uint64_t id);
  /// Only a sequence that refers to all of a stretch extends it.
  void extend(Index at, std::int64_t blocks);
  /// Blocks of a sequence that leaves them, at most one stretch each: a handle for find_left.
  struct Left {
    Index past = 0;  // its index + 1; 0: nothing was left
    std::uint32_t generation = 0;

    [[nodiscard]] bool any() const { return past > 0; }
    [[nodiscard]] Index at() const { return past - 1; }
  };
  [[nodiscard]] Left leave(std::int64_t blocks);
  /// How many are still here.
  [[nodiscard]] std::int64_t find_left(const Left& left) const;
  /// The first `blocks` of what was left are taken back, the rest stay to be taken away.
  void take_back(const Left& left, std::int64_t blocks);

  /// The order of releases over several caches that share a clock.
  void share_clock(std::uint64_t* clock) { clock_ = clock; }
  /// When the stretch was released that would be evicted first; evictable() > 0.
  [[nodiscard]] std::uint64_t oldest_release() const { return node(oldest_).released; }
  /// Moves an unreferenced stretch of one block to the end of the order of eviction.
  void touch(Index at);
  /// Takes `blocks` away. Errors: ContractError if there are fewer unreferenced ones.
  void evict(std::int64_t blocks);
  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t pinned() const { return pinned_; }
  [[nodiscard]] std::int64_t evicted() const { return evicted_; }  // ever

 private:
  struct Node {
    std::uint64_t id = 0, other_id = 0;
    std::int64_t blocks = 0;
    std::int64_t pinned = 0;             // leading blocks with references
    std::int32_t references = 0;         // to all that is pinned
    std::vector<std::int64_t> lesser{};  // references to fewer blocks; seldom any
    std::uint32_t generation = 0;
    std::uint64_t released = 0;     // when it was listed
    Index before = -1, after = -1;  // in the order of release; of listed ones
    bool listed = false;
    bool named = false;  // by an id
    bool twice = false;  // by two
  };
  [[nodiscard]] const Node& node(Index at) const { return nodes_[static_cast<std::size_t>(at)]; }
  [[nodiscard]] Node& node(Index at) { return nodes_[static_cast<std::size_t>(at)]; }
  Index make();
  void remove(Index at);
  void list(Index at);
  void unlist(Index at);
  /// Only the first `blocks` stay pinned.
  void let_go(Index at, std::int64_t blocks);

  std::unordered_map<std::uint64_t, Index> by_id_;  // looked up, never walked
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index oldest_ = -1, newest_ = -1;
  std::uint64_t own_clock_ = 0;
  std::uint64_t* clock_ = nullptr;  // null: its own
  std::int64_t evictable_ = 0;
  std::int64_t pinned_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace kvsim
