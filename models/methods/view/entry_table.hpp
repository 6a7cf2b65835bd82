#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The cache of one (layer, stored head): rows of K and V with their ids and weights.
///
/// An entry is identified by its id, the position of its (first) token. Ids are unique, survive
/// moves between slots, and break ties. Slots are dense, 0 … size()-1, in no guaranteed order.
class EntryTable {
 public:
  explicit EntryTable(std::int32_t head_dim) : d_{static_cast<std::size_t>(head_dim)} {}

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ids_.size()); }
  /// Number of entries that are excluded from eviction (residual slots).
  [[nodiscard]] std::int32_t pinned_size() const { return n_pinned_; }
  [[nodiscard]] std::int32_t free_size() const { return size() - n_pinned_; }

  void reserve(std::int32_t entries);
  /// Adds a token and returns its slot. Ids must ascend over calls.
  std::int32_t append(std::int32_t id, std::span<const float> key, std::span<const float> value);
  /// Adds an entry that represents the tokens `members` (ascending); its id is the first member.
  std::int32_t append_merged(std::vector<std::int32_t> members, std::span<const double> key,
                             std::span<const double> value, bool pinned = true);
  /// Removes the entry at `slot` and moves the last entry there (one row moved, as in a swap).
  void erase(std::int32_t slot);
  /// Pins the token at `slot` as a merge target; its only member is this token.
  void pin(std::int32_t slot);
  /// Merges the token at `from` into the pinned entry at `into` as a running mean with weights w
  /// and 1: k <- (w k + k') / (w + 1), the same for v; then `from` is erased. w is the number of
  /// members, at most `weight_cap`. The mean is kept in fp64, so it stalls only at the cap.
  void merge_mean(std::int32_t into, std::int32_t from, std::int32_t weight_cap);
  /// Merges the entries `from` (ids) into `into`, which then also represents their members; they
  /// are erased. `into` is set to the given row and weight, keeps its id and can still be evicted.
  void merge_into(std::int32_t into, std::span<const std::int32_t> from,
                  std::span<const double> key, std::span<const double> value, double weight);

  [[nodiscard]] std::span<const std::int32_t> ids() const { return ids_; }
  [[nodiscard]] std::int32_t id(std::int32_t slot) const { return ids_[index(slot)]; }
  /// Slot of the entry `id`; -1 if there is none.
  [[nodiscard]] std::int32_t slot_of(std::int32_t id) const {
    return index(id) < slots_.size() ? slots_[index(id)] : -1;
  }
  /// True if the entry represents, or can represent, tokens in addition to that of its id.
  [[nodiscard]] bool is_merged(std::int32_t slot) const { return merged_[index(slot)] >= 0; }
  [[nodiscard]] bool is_pinned(std::int32_t slot) const {
    return is_merged(slot) && groups_[index(merged_[index(slot)])].pinned;
  }
  [[nodiscard]] bool any_merged() const { return n_merged_ > 0; }
  /// The merger's weight of the entry (votes); 1 for a token.
  [[nodiscard]] double weight(std::int32_t slot) const {
    return is_merged(slot) ? groups_[index(merged_[index(slot)])].weight : 1.0;
  }
  /// Tokens that the entry represents: 1, or the number of members.
  [[nodiscard]] std::int32_t count(std::int32_t slot) const;
  /// Positions that the entry represents, ascending.
  [[nodiscard]] std::vector<std::int32_t> members(std::int32_t slot) const;
  /// Slots of merged entries, in order of creation.
  [[nodiscard]] std::vector<std::int32_t> merged_slots() const;

  [[nodiscard]] std::span<const float> keys() const { return keys_; }
  [[nodiscard]] std::span<const float> values() const { return values_; }
  [[nodiscard]] std::span<const float> key(std::int32_t slot) const {
    return std::span{keys_}.subspan(index(slot) * d_, d_);
  }
  [[nodiscard]] std::span<const float> value(std::int32_t slot) const {
    return std::span{values_}.subspan(index(slot) * d_, d_);
  }
  [[nodiscard]] std::span<float> mutable_key(std::int32_t slot) {
    rewrite(slot);
    return std::span{keys_}.subspan(index(slot) * d_, d_);
  }
  [[nodiscard]] std::span<float> mutable_value(std::int32_t slot) {
    rewrite(slot);
    return std::span{values_}.subspan(index(slot) * d_, d_);
  }

  // Versions: while they are recorded, each row content that attention uses in a slot has a number.
  // Replaced or removed contents are kept, so that attention over several steps can be computed
  // after the last of them.

  /// Starts recording: the current rows get the numbers 0 … size()-1, by slot.
  void start_versions();
  void stop_versions();
  /// Marks the current rows as used by attention: rows that leave or change later are kept.
  void mark_seen() { seen_ = next_version_; }
  [[nodiscard]] std::span<const std::uint32_t> versions() const { return versions_; }  // by slot
  /// Rows with this or a higher number have not been used yet.
  [[nodiscard]] std::uint32_t first_unseen() const { return seen_; }
  [[nodiscard]] std::uint32_t next_version() const { return next_version_; }
  /// Used rows that were removed or changed, in this order.
  struct PastRows {
    std::vector<std::uint32_t> versions;
    std::vector<float> keys, values;
  };
  [[nodiscard]] const PastRows& past_rows() const { return past_; }

 private:
  /// Additional data of a merged entry; found through merged_[slot].
  struct Merged {
    std::vector<std::int32_t> members;
    std::vector<double> key_mean, value_mean;
    double weight = 1.0;
    bool pinned = true;
  };
  [[nodiscard]] static std::size_t index(std::int32_t slot) {
    return static_cast<std::size_t>(slot);
  }
  void write_mean(std::int32_t slot);
  /// Called before the row at `slot` changes or leaves.
  void keep_past(std::int32_t slot);
  void rewrite(std::int32_t slot) {
    if (!recording_ || versions_[index(slot)] >= seen_) return;
    keep_past(slot);
    versions_[index(slot)] = next_version_++;
  }

  std::size_t d_;
  std::vector<float> keys_, values_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int32_t> merged_;  // index into groups_, -1 for a token
  std::vector<std::int32_t> slots_;   // by id, -1 for none
  std::vector<Merged> groups_;
  std::vector<std::uint32_t> versions_;  // by slot
  std::uint32_t seen_ = 0, next_version_ = 0;
  PastRows past_;
  bool recording_ = false;
  std::int32_t n_merged_ = 0;
  std::int32_t n_pinned_ = 0;
};

}  // namespace kvsim
