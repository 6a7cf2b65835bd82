#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sim/serve/cache/active_array.hpp"
#include "sim/serve/cache/outside_format.hpp"
#include "sim/serve/cache/outside_tier.hpp"
#include "sim/serve/cache/prefix_cache.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// The KV cache of one engine: a pool of units, the units of each sequence by its method's size
/// law, and cached prefixes in unused units. In an engine with groups of layers, a prefix is found
/// up to a point from which all groups can continue. Groups that keep everything need its blocks
/// from the start, a window the last blocks that it attends to, and a state group a state kept at
/// exactly that point, where a prefill step ended on a block boundary.
///
/// free + evictable + pinned + private = pool, at any time
///
/// pinned: prefix blocks that sequences refer to, each counted once; private: units of a single
/// sequence. Decisions before an iteration (admit, grow) take effect after it.
class KvCacheManager {
 public:
  struct Setup {
    const RequestTrace* trace = nullptr;
    const BlockSizes* sizes = nullptr;
    SequenceFootprints* footprints = nullptr;  // null: every layer holds every token
    std::int64_t pool_units = 0;
    bool prefix_caching = false;
    /// The next turn of a conversation finds a request's output as a prefix.
    bool keeps_answers = false;
    OutsideTier* outside = nullptr;  // for entries kept outside the GPU; null: none
    OutsideFormat format{};          // of pages there
  };
  explicit KvCacheManager(const Setup& setup);
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;
  /// Detaches all sequences from their size laws; the footprints must outlive this object.
  ~KvCacheManager();

  [[nodiscard]] std::int64_t pool() const { return pool_; }
  [[nodiscard]] std::int64_t free() const { return free_; }
  [[nodiscard]] std::int64_t cached() const {
    return prefixes_.evictable() * block_units_ + windows_.evictable() * window_ids_ +
           states_.evictable() * state_ids_;
  }
  [[nodiscard]] std::int64_t available() const { return free_ + cached(); }
  [[nodiscard]] std::int64_t taken() const { return pool_ - available(); }
  [[nodiscard]] std::int64_t private_units() const { return private_; }
  [[nodiscard]] std::int64_t pinned() const { return prefixes_.pinned() * block_units_; }
  [[nodiscard]] bool full_law() const { return footprints_ == nullptr; }
  [[nodiscard]] std::int64_t held(RequestId id) const {
    const Holding& h = holding(id);
    return h.units + h.shared_blocks * block_units_;
  }
  /// Number of shared blocks that were copied because their reader's method wrote to or released
  /// them.
  [[nodiscard]] std::int64_t unshared_blocks() const { return unshared_; }

  /// Number of tokens of a waiting sequence found in the cache.
  [[nodiscard]] std::int32_t cached_tokens(RequestId id, const Sequence& s) const;
  /// Takes the blocks of `found` tokens (cached_tokens) and room for `tokens` after them, for a
  /// prefill that ends at s.known; returns false without changes if they do not fit.
  [[nodiscard]] bool admit(RequestId id, Sequence& s, std::int32_t found, std::int32_t tokens,
                           std::int64_t keep_free);
  [[nodiscard]] bool grow(RequestId id, Sequence& s, std::int32_t tokens);
  /// Equivalent to grow() of several sequences that each need one more block; catch_up() assigns
  /// the blocks to sequences later. Returns false without changes if fewer than `keep_free` units
  /// would be left. Every layer must hold every token.
  [[nodiscard]] bool grow_by_blocks(std::int64_t blocks, std::int64_t keep_free);
  /// Assigns a sequence its blocks of grow_by_blocks(): room for `tokens` tokens, in whole blocks.
  void catch_up(RequestId id, Sequence& s, std::int32_t tokens);
  /// After an iteration computed s.planned tokens (included in s.computed): compresses, releases
  /// units, publishes full prompt blocks.
  void resolve(RequestId id, Sequence& s);
  /// Releases a sequence that ends or is preempted; full blocks of its first `keep` tokens stay
  /// cached.
  void release(RequestId id, Sequence& s, std::int32_t keep) { let_go(id, s, keep, true); }
  void release(RequestId id, Sequence& s) { release(id, s, s.computed); }
  /// Releases a sequence after its last token. Its full blocks stay cached, those of the output
  /// under the names that the next turn of its conversation uses, as engines hash generated tokens.
  void finish(RequestId id, Sequence& s);
  /// Removes the units of a sequence from the pool at a swap-out, or takes them again at a swap-in.
  std::int64_t swap_out(RequestId id, Sequence& s);
  [[nodiscard]] bool swap_in(RequestId id, Sequence& s, std::int64_t units);

  /// For a sequence that is prefilled on another replica: allocates `units` (held() there) for its
  /// cache, and the method's other data that it needs here. Returns false without changes if there
  /// is no room.
  [[nodiscard]] bool reserve(RequestId id, const Sequence& s, std::int64_t units);
  /// Accepts its arrived cache; a method that has not compressed it yet does so.
  void receive(RequestId id, Sequence& s);

  [[nodiscard]] std::int64_t max_units(std::int32_t prompt, std::int64_t tokens);
  /// Bytes of a running sequence's entries by the size law, whole model.
  [[nodiscard]] Bytes logical(RequestId id, const Sequence& s);
  /// The same without prefix blocks, which several sequences may share.
  [[nodiscard]] Bytes own_logical(RequestId id, const Sequence& s);
  /// Frees the other bytes outside the GPU when a swapped-out sequence ends.
  void release_outside(RequestId id) { set_outside(holding(id), Bytes{}); }
  /// Bytes of a sequence outside the GPU.
  [[nodiscard]] Bytes outside(RequestId id) const { return holding(id).outside; }
  /// Bytes that did not fit outside the GPU at its last attempt; 0: all fit.
  [[nodiscard]] Bytes outside_shortage(RequestId id) const {
    return short_of_outside_ == id ? shortage_ : Bytes{};
  }
  /// Bytes of a prompt outside the GPU after its prefill.
  [[nodiscard]] Bytes outside_of(std::int32_t prompt) {
    return outside_ != nullptr ? format_.held(footprints_->at(prompt, *sizes_).outside(0))
                               : Bytes{};
  }
  /// Releases a group of ActiveArray whose requests have ended.
  void release_group(std::size_t group) { holdings_.release_group(group); }
  /// Over finished sequences, at their ends: bytes of the entries that their method had dropped,
  /// and of the blocks that this freed (blocks of all tokens minus blocks held).
  [[nodiscard]] Bytes dropped() const { return dropped_; }
  [[nodiscard]] Bytes reclaimed() const { return reclaimed_; }
  /// The footprint that a running sequence follows; null: the full cache.
  [[nodiscard]] SequenceFootprint* footprint(RequestId id) const { return holding(id).footprint; }

  /// Errors: ContractError if the units do not add up. O(1).
  void check() const;

 private:
  struct Holding {
    SequenceFootprint* footprint = nullptr;
    std::int64_t units = 0;          // private
    std::int32_t shared_ids = 0;     // leading prefix ids it refers to
    std::int32_t shared_blocks = 0;  // blocks of them
    PrefixCache::Left left{};        // of a preempted one: full private blocks
    std::int32_t left_from = 0;      // blocks before them
    std::int32_t seen = 0;  // blocks before it have left all windows, or were found as a prefix
    bool publishes = false;
    Bytes outside{};
  };
  /// Of a preempted sequence in an engine with groups, in addition to Holding::left.
  struct LeftInGroups {
    std::int64_t blocks = 0;      // full blocks that it had, including those of prefix ids
    PrefixCache::Left windows{};  // blocks that windows need after them, without those of prefix
                                  // ids
    PrefixCache::Left state{};    // the state after them, if it ended on a block boundary
  };
  [[nodiscard]] Holding& holding(RequestId id) { return holdings_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Holding& holding(RequestId id) const {
    return holdings_[static_cast<std::size_t>(id)];
  }
  /// Private units needed to compute up to `to` tokens, in addition to `shared` prefix blocks.
  [[nodiscard]] std::int64_t wanted(const Holding& h, const Sequence& s, std::int32_t to,
                                    std::int64_t shared) const;
  [[nodiscard]] bool take(Holding& h, std::int64_t units);
  [[nodiscard]] bool take(std::int64_t units);
  /// Whether `next` bytes outside the GPU can replace those that `id` has there.
  [[nodiscard]] bool outside_fits(RequestId id, Bytes next);
  void set_outside(Holding& h, Bytes next);
  void give(Holding& h, std::int64_t units);
  void set_room(const Holding& h, Sequence& s) const;
  void publish(RequestId id, const Sequence& s);
  /// Longest prefix, of at most `blocks` blocks, from which all groups can continue.
  [[nodiscard]] std::int64_t continuable(RequestId id, std::int64_t blocks) const;
  /// Number of a request's first `blocks` blocks that prefix ids cover.
  [[nodiscard]] std::int64_t named_blocks(RequestId id, std::int64_t blocks) const;
  /// Number of blocks that a preempted sequence left and all groups still have, if `found` of them
  /// are found by prefix ids; 0 if a group has lost some.
  [[nodiscard]] std::int64_t found_in_groups(RequestId id, std::int64_t found) const;
  /// Leaves the blocks that windows need after the first `blocks` of a sequence's blocks, and the
  /// state there.
  void leave_in_groups(RequestId id, const Sequence& s, std::int64_t blocks);
  void take_back_in_groups(RequestId id);
  /// Keeps the windows' blocks before `until` and, if `state`, the state after s.computed tokens,
  /// for later lookups.
  void keep_bounded(RequestId id, const Sequence& s, std::int64_t until, bool state);
  /// The name of block `block` of a request's prefix; nullopt: no prefix id covers it.
  [[nodiscard]] std::optional<std::uint64_t> block_name(RequestId id, std::int64_t block) const;
  /// Frees units of cached prefixes, least recently released first.
  void evict(std::int64_t units);
  /// Adds an unreferenced stretch of one block to `cache`, in `ids` units, if that many are
  /// available.
  void keep_one(PrefixCache& cache, std::uint64_t name, std::int64_t ids);
  void drop_shared(RequestId id);
  void let_go(RequestId id, Sequence& s, std::int32_t keep, bool comes_back);
  [[nodiscard]] std::int64_t name_answer(RequestId id, const Sequence& s);
  void follow(Holding& h, SequenceFootprint* footprint);
  [[nodiscard]] std::int32_t id_count(RequestId id) const;
  /// Full blocks that the first `ids` prefix ids of a request cover.
  [[nodiscard]] std::int64_t covered(RequestId id, std::int32_t ids) const;
  [[nodiscard]] std::uint64_t prefix_id(RequestId id, std::int32_t i) const;

  const RequestTrace* trace_;
  const BlockSizes* sizes_;
  SequenceFootprints* footprints_;
  std::int64_t pool_, free_;
  std::int64_t private_ = 0;
  std::int64_t block_, block_units_;
  bool caches_;
  PrefixCache prefixes_;
  const GroupSizes* groups_;      // null: one kind of blocks
  PrefixCache windows_, states_;  // of single blocks, by block_name
  std::int64_t window_ids_ = 0, state_ids_ = 0;
  std::uint64_t clock_ = 0;  // of releases in all three
  ActiveArray<Holding> holdings_;
  std::unordered_map<RequestId, LeftInGroups> left_in_groups_;  // looked up, never iterated
  std::vector<RequestId> next_turns_;  // -1: none; empty: no request has one
  std::int64_t unshared_ = 0;
  Bytes dropped_{}, reclaimed_{};
  OutsideTier* outside_;
  OutsideFormat format_;
  RequestId short_of_outside_ = -1;  // the last request that needed more than was free,
  Bytes shortage_{};                 // and the missing bytes
};

}  // namespace kvsim
