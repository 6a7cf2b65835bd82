#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvsim {

/// Full blocks of a paged cache that are kept for later requests with the same tokens. Blocks are
/// counted in stretches: the blocks that one prefix id of the workload covers, and the blocks of
/// one sequence without an id (found again after a preemption of that sequence). A stretch's blocks
/// without references may be evicted, the least recently released stretch first, from its tail. A
/// sequence releases its last stretch first, so the head of a prefix stays longest.
class PrefixCache {
 public:
  using Index = std::int32_t;

  /// Stretch of a prefix id; -1 if none of its blocks is cached.
  [[nodiscard]] Index find(std::uint64_t id) const {
    const auto at = by_id_.find(id);
    return at == by_id_.end() ? -1 : at->second;
  }
  [[nodiscard]] std::int64_t blocks(Index at) const { return node(at).blocks; }
  /// Number of its blocks without references.
  [[nodiscard]] std::int64_t unreferenced(Index at) const {
    return node(at).blocks - node(at).pinned;
  }

  /// Adds a reference to the first `blocks` of a stretch. Returns how many of these had none
  /// before. Errors: ContractError if it has fewer.
  std::int64_t acquire(Index at, std::int64_t blocks);
  /// Removes a reference to the first `blocks`; blocks without references may then be evicted.
  void release(Index at, std::int64_t blocks);
  /// Adds a stretch of `blocks` blocks with one reference. Errors: ContractError if the id is
  /// cached.
  Index publish(std::uint64_t id, std::int64_t blocks);
  /// Adds a second name to a stretch at the end of a prompt, from which another id continues.
  /// Returns false if it already has one. Errors: ContractError if the id is cached.
  [[nodiscard]] bool name(Index at, std::uint64_t id);
  /// Extends a stretch, on behalf of a sequence that refers to all of it.
  void extend(Index at, std::int64_t blocks);
  /// Handle for find_left of the blocks that a sequence leaves, at most one stretch per sequence.
  struct Left {
    Index past = 0;  // its index + 1; 0: nothing was left
    std::uint32_t generation = 0;

    [[nodiscard]] bool any() const { return past > 0; }
    [[nodiscard]] Index at() const { return past - 1; }
  };
  [[nodiscard]] Left leave(std::int64_t blocks);
  /// Number of left blocks that are still cached.
  [[nodiscard]] std::int64_t find_left(const Left& left) const;
  /// Takes back the first `blocks` of the left blocks; the rest can still be evicted.
  void take_back(const Left& left, std::int64_t blocks);

  /// Uses a clock shared by several caches, for a common order of releases.
  void share_clock(std::uint64_t* clock) { clock_ = clock; }
  /// Release time of the stretch that would be evicted first; requires evictable() > 0.
  [[nodiscard]] std::uint64_t oldest_release() const { return node(oldest_).released; }
  /// Moves an unreferenced stretch of one block to the end of the order of eviction.
  void touch(Index at);
  /// Evicts `blocks` blocks. Errors: ContractError if there are fewer unreferenced ones.
  void evict(std::int64_t blocks);
  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t pinned() const { return pinned_; }
  [[nodiscard]] std::int64_t evicted() const { return evicted_; }  // total

 private:
  struct Node {
    std::uint64_t id = 0, other_id = 0;
    std::int64_t blocks = 0;
    std::int64_t pinned = 0;             // leading blocks with references
    std::int32_t references = 0;         // to all pinned blocks
    std::vector<std::int64_t> lesser{};  // references to fewer blocks; rarely any
    std::uint32_t generation = 0;
    std::uint64_t released = 0;     // when it was listed
    Index before = -1, after = -1;  // in the order of release; only of listed ones
    bool listed = false;
    bool named = false;  // has an id
    bool twice = false;  // has two
  };
  [[nodiscard]] const Node& node(Index at) const { return nodes_[static_cast<std::size_t>(at)]; }
  [[nodiscard]] Node& node(Index at) { return nodes_[static_cast<std::size_t>(at)]; }
  Index make();
  void remove(Index at);
  void list(Index at);
  void unlist(Index at);
  /// Unpins all but the first `blocks`.
  void let_go(Index at, std::int64_t blocks);

  std::unordered_map<std::uint64_t, Index> by_id_;  // looked up, never iterated
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index oldest_ = -1, newest_ = -1;
  std::uint64_t own_clock_ = 0;
  std::uint64_t* clock_ = nullptr;  // null: own_clock_
  std::int64_t evictable_ = 0;
  std::int64_t pinned_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace kvsim
