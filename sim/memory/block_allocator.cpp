#include "sim/memory/block_allocator.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::int64_t blocks_for(std::int64_t entries, std::int64_t block_size) {
  return (entries + block_size - 1) / block_size;
}

/// Heads that share blocks: all heads of a layer, or one.
struct Sharing {
  const PagedLayer& layer;
  std::span<const std::vector<std::int32_t>> heads;
};

struct Count {
  std::int64_t logical = 0, allocated = 0, compacted = 0, moved = 0;  // bytes
  std::int64_t kept = 0, total_blocks = 0, used_blocks = 0;
};

Count count(const Sharing& sharing, std::int64_t block_size) {
  Count out;
  const std::int64_t row = sharing.layer.row_bytes;
  const auto n_heads = static_cast<std::int64_t>(sharing.heads.size());
  out.total_blocks = blocks_for(sharing.layer.written, block_size);
  std::vector<std::int64_t> held(static_cast<std::size_t>(out.total_blocks));
  std::int64_t longest = 0;
  for (const auto& kept : sharing.heads) {
    std::int64_t before = -1;
    for (const std::int32_t p : kept) {
      KVSIM_CHECK(p > before && p < sharing.layer.written, "entry {} after {} of {} written", p,
                  before, sharing.layer.written);
      before = p;
      ++held[static_cast<std::size_t>(p / block_size)];
    }
    out.kept += static_cast<std::int64_t>(kept.size());
    longest = std::max(longest, static_cast<std::int64_t>(kept.size()));
  }
  const std::int64_t block_bytes = block_size * n_heads * row;
  out.used_blocks =
      out.total_blocks - static_cast<std::int64_t>(std::count(held.begin(), held.end(), 0));
  out.logical = out.kept * row;
  out.allocated = out.used_blocks * block_bytes;
  // The fullest blocks stay, in the number that the longest head needs.
  const std::int64_t needed = blocks_for(longest, block_size);
  std::sort(held.begin(), held.end(), std::greater<>{});
  out.compacted = needed * block_bytes;
  out.moved = std::accumulate(held.begin() + static_cast<std::ptrdiff_t>(needed), held.end(),
                              std::int64_t{0}) *
              row;
  return out;
}

}  // namespace

BlockAllocator::BlockAllocator(Index blocks) {
  KVSIM_CHECK(blocks >= 0, "{} blocks", blocks);
  references_.resize(static_cast<std::size_t>(blocks));
  for (Index b = blocks; b-- > 0;) free_.push_back(b);
}

std::optional<BlockAllocator::Index> BlockAllocator::allocate() {
  if (free_.empty()) return std::nullopt;
  const Index block = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(block)] = 1;
  ++total_references_;
  return block;
}

std::int32_t BlockAllocator::references(Index block) const {
  KVSIM_CHECK(block >= 0 && block < size(), "block {} of {}", block, size());
  return references_[static_cast<std::size_t>(block)];
}

void BlockAllocator::share(Index block) {
  KVSIM_CHECK(references(block) > 0, "block {} is free", block);
  ++references_[static_cast<std::size_t>(block)];
  ++total_references_;
}

bool BlockAllocator::release(Index block) {
  KVSIM_CHECK(references(block) > 0, "block {} is free already", block);
  --total_references_;
  if (--references_[static_cast<std::size_t>(block)] > 0) return false;
  free_.push_back(block);
  return true;
}

std::string_view name_of(BlockLayout layout) {
  return layout == BlockLayout::kAcrossHeads ? "across_heads" : "per_head";
}

std::string_view name_of(CompactionPolicy policy) {
  switch (policy) {
    case CompactionPolicy::kNone:
      return "none";
    case CompactionPolicy::kSlack:
      return "slack";
    case CompactionPolicy::kEveryStep:
      return "every_step";
  }
  return "";
}

PagedReport paged_report(std::span<const PagedLayer> layers, std::int64_t block_size,
                         BlockLayout layout) {
  KVSIM_CHECK(block_size >= 1, "blocks of {} entries", block_size);
  PagedReport out{.block_size = block_size, .layout = layout};
  for (const PagedLayer& layer : layers) {
    KVSIM_CHECK(layer.written >= 0 && layer.row_bytes >= 0, "a layer of {} entries of {} B",
                layer.written, layer.row_bytes);
    const std::size_t step = layout == BlockLayout::kAcrossHeads ? layer.kept.size() : 1;
    Count sum;
    std::int64_t full = 0;
    for (std::size_t h = 0; h < layer.kept.size(); h += step) {
      const Count c = count({layer, std::span{layer.kept}.subspan(h, step)}, block_size);
      sum.logical += c.logical;
      sum.allocated += c.allocated;
      sum.compacted += c.compacted;
      sum.moved += c.moved;
      sum.kept += c.kept;
      sum.total_blocks += c.total_blocks;
      sum.used_blocks += c.used_blocks;
      full += c.total_blocks * block_size * static_cast<std::int64_t>(step) * layer.row_bytes;
    }
    out.logical += Bytes{sum.logical};
    out.allocated += Bytes{sum.allocated};
    out.slack += Bytes{sum.allocated - sum.logical};
    out.reclaimable += Bytes{full - sum.allocated};
    out.entries_dropped += layer.written * static_cast<std::int64_t>(layer.kept.size()) - sum.kept;
    out.blocks_total += sum.total_blocks;
    out.blocks_freed += sum.total_blocks - sum.used_blocks;

    const bool slack = static_cast<double>(sum.allocated - sum.logical) >
                       kCompactionSlack * static_cast<double>(sum.allocated);
    const auto add = [&](CompactionPolicy policy, bool acts, std::int64_t moved) {
      PagedCompaction& to = out.compaction[static_cast<std::size_t>(policy)];
      to.allocated += Bytes{acts ? sum.compacted : sum.allocated};
      to.bytes_moved += Bytes{acts ? moved : 0};
    };
    add(CompactionPolicy::kNone, false, 0);
    add(CompactionPolicy::kSlack, slack, sum.moved);
    add(CompactionPolicy::kEveryStep, true,
        layer.evicted_by_steps ? *layer.evicted_by_steps * layer.row_bytes : sum.moved);
  }
  return out;
}

}  // namespace kvsim
