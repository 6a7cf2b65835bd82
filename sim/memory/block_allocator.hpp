#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// Fixed-size blocks of a paged cache with reference counts: sequences with a common prefix share
/// its blocks. The most recently freed block is allocated first. O(1) per operation.
class BlockAllocator {
 public:
  using Index = std::int32_t;

  /// Errors: ContractError if `blocks` is negative.
  explicit BlockAllocator(Index blocks);

  /// Returns a block without references; nullopt if none is free.
  [[nodiscard]] std::optional<Index> allocate();
  /// Adds a reference (a prefix is shared). Errors: ContractError if the block is free.
  void share(Index block);
  /// Removes a reference; returns whether the block is now free. Errors: ContractError if it was
  /// free.
  bool release(Index block);

  [[nodiscard]] Index size() const { return static_cast<Index>(references_.size()); }
  [[nodiscard]] Index used() const { return size() - static_cast<Index>(free_.size()); }
  [[nodiscard]] std::int32_t references(Index block) const;
  [[nodiscard]] std::int64_t total_references() const { return total_references_; }

 private:
  std::vector<std::int32_t> references_;
  std::vector<Index> free_;
  std::int64_t total_references_ = 0;
};

/// The contents of one block of a paged cache.
enum class BlockLayout : std::uint8_t {
  kAcrossHeads,  // a layer's entries of all heads: freed when the last head has released it
  kPerHead       // one head's
};
inline constexpr std::array kBlockLayouts{BlockLayout::kAcrossHeads, BlockLayout::kPerHead};
[[nodiscard]] std::string_view name_of(BlockLayout layout);

/// Policy for moving entries together.
enum class CompactionPolicy : std::uint8_t {
  kNone,
  kSlack,     // a layer whose slack exceeds kCompactionSlack of its allocated bytes
  kEveryStep  // after every step that evicts
};
inline constexpr std::array kCompactionPolicies{CompactionPolicy::kNone, CompactionPolicy::kSlack,
                                                CompactionPolicy::kEveryStep};
inline constexpr double kCompactionSlack = 0.25;
[[nodiscard]] std::string_view name_of(CompactionPolicy policy);

/// One layer of a cache whose entries were written in order (entry p of each head into block p /
/// block_size) before some were dropped.
struct PagedLayer {
  std::int64_t written = 0;                     // entries written per head
  std::vector<std::vector<std::int32_t>> kept;  // [head], ascending, below `written`
  std::int64_t row_bytes = 0;                   // K and V of one entry of one head
  // Entries of all heads that decode steps dropped one by one, and whose places every-step
  // compaction filled immediately; nullopt: they were dropped at once.
  std::optional<std::int64_t> evicted_by_steps{};
};

struct PagedCompaction {
  Bytes allocated;    // afterwards
  Bytes bytes_moved;  // rows copied, each counted once; the traffic is a read and a write of each
};

/// Logical and reclaimable bytes of a paged cache. Logical + slack = allocated; allocated +
/// reclaimable = the blocks before anything was dropped.
struct PagedReport {
  std::int64_t block_size = 0;  // entries
  BlockLayout layout = BlockLayout::kAcrossHeads;
  Bytes logical{};                   // rows kept
  Bytes allocated{};                 // blocks with at least one kept row
  Bytes reclaimable{};               // blocks without kept rows
  Bytes slack{};                     // dropped or never written rows in blocks that stay
  std::int64_t entries_dropped = 0;  // of all heads and layers
  std::int64_t blocks_total = 0, blocks_freed = 0;
  std::array<PagedCompaction, 3> compaction{};  // by CompactionPolicy
};

/// Compaction keeps the fullest blocks and moves the entries of the others into their holes. Across
/// heads, a layer needs as many blocks as its longest head; per head, each head needs its own
/// blocks. Every-step compaction moves one row into the place of each entry in `evicted_by_steps`.
/// Errors: ContractError if block_size < 1 or positions are not ascending within [0, written).
[[nodiscard]] PagedReport paged_report(std::span<const PagedLayer> layers, std::int64_t block_size,
                                       BlockLayout layout);

}  // namespace kvsim
