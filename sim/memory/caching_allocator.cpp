#include "sim/memory/caching_allocator.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <list>
#include <utility>

#include "models/units/check.hpp"
#include "sim/memory/allocator_blocks.hpp"

namespace kvsim {
namespace {

using namespace caching;  // NOLINT: internal parts

Bytes peak_of(Bytes peak, std::int64_t now) { return std::max(peak, Bytes{now}); }

}  // namespace

struct CachingAllocator::Impl {
  Impl(const AllocatorDevice& on, const AllocatorConfig& how) : device{on}, config{how} {
    KVSIM_CHECK(on.outside >= Bytes{} && on.total >= on.outside,
                "a device of {} B of which {} B are taken", on.total.count(), on.outside.count());
    small.small = true;
    if (how.max_split_size) max_split = how.max_split_size->count();
    limit = (on.total - on.outside).count();
    if (how.memory_fraction) {
      allowed =
          static_cast<std::int64_t>(*how.memory_fraction * static_cast<double>(on.total.count()));
    }
    collects = how.memory_fraction && how.garbage_collection_threshold > 0;
  }

  // --- blocks -------------------------------------------------------------------------------

  Block& make_block(const Pool& pool, std::int32_t stream, std::uint64_t address,
                    std::int64_t size) {
    Block* block = nullptr;
    if (unused.empty()) {
      block = &slots.emplace_back();
      block->slot = static_cast<std::uint32_t>(slots.size() - 1);
    } else {
      block = unused.back();
      unused.pop_back();
    }
    block->address = address;
    block->size = size;
    block->requested = 0;
    block->prev = block->next = nullptr;
    block->expandable = nullptr;
    block->stream = stream;
    block->small = pool.small;
    block->state = State::kFree;
    return *block;
  }

  void drop_block(Block& block) {
    block.state = State::kNone;
    ++block.generation;
    unused.push_back(&block);
  }

  static BlockId id_of(const Block& block) {
    return static_cast<BlockId>(std::uint64_t{block.generation} << 32 | block.slot);
  }
  Block& find(BlockId id) {
    const auto bits = static_cast<std::uint64_t>(id);
    const std::uint64_t slot = bits & 0xFFFFFFFFU;
    KVSIM_CHECK(slot < slots.size() && slots[slot].generation == bits >> 32,
                "block {} is not there", bits);
    return slots[slot];
  }

  Pool& pool_of(const Block& block) { return block.small ? small : large; }

  void put(Pool& pool, Block& block) {
    block.age_base = pool.searches;
    block.state = State::kFree;
    pool.blocks.insert(block);
  }

  static void splice(Block& block, Block* before, Block* after) {
    block.prev = before;
    if (before != nullptr) before->next = &block;
    block.next = after;
    if (after != nullptr) after->prev = &block;
  }

  /// Merges `other`, a neighbour of `block` in the same state, into it; returns the merged bytes,
  /// or 0.
  std::int64_t merge(Block& block, Block* other, Pool& pool) {
    const bool mapped = block.state != State::kUnmapped;
    if (other == nullptr || !other->idle() || mapped != (other->state != State::kUnmapped)) {
      return 0;
    }
    if (block.prev == other) {
      block.address = other->address;
      block.prev = other->prev;
      if (block.prev != nullptr) block.prev->next = &block;
    } else {
      block.next = other->next;
      if (block.next != nullptr) block.next->prev = &block;
    }
    if (mapped) {
      pool.blocks.erase(pool.blocks.iterator_to(*other));
    } else {
      pool.unmapped.erase(pool.unmapped.iterator_to(*other));
    }
    const std::int64_t joined = other->size;
    block.size += joined;
    drop_block(*other);
    return joined;
  }

  // --- the device ---------------------------------------------------------------------------

  void reserve(std::int64_t n) {
    reserved += n;
    ++device_allocs;
    if (reserved > reserved_peak) {
      reserved_peak = reserved;
      peak_moved = true;
    }
  }

  std::uint64_t new_address(std::int64_t size) {
    if (place != 0) return std::exchange(place, 0);
    const std::uint64_t address = next_address;
    next_address += static_cast<std::uint64_t>(size);
    return address;
  }

  /// Takes a new segment for a rounded `size`; returns nullptr if the device has no room or must
  /// not provide it.
  Block* take_segment(std::int64_t size, std::int32_t stream, Pool& pool) {
    const std::int64_t wanted = segment_size(size);
    if (allowed && reserved + wanted > *allowed) return nullptr;
    if (config.expandable_segments) return take_expandable(size, stream, pool);
    if (reserved + wanted > limit) return nullptr;
    reserve(wanted);
    ++segments;
    return &make_block(pool, stream, new_address(wanted), wanted);
  }

  void release_segment(Pool& pool, Block& block) {
    reserved -= block.size;
    ++device_frees;
    --segments;
    pool.blocks.erase(pool.blocks.iterator_to(block));
    drop_block(block);
  }

  // --- expandable segments --------------------------------------------------------------------

  /// Returns the lowest unmapped block of the stream (or the free one in front of it) at which
  /// there is address space for `size`; a new segment if there is none.
  Block& find_expandable(std::int64_t size, std::int32_t stream, Pool& pool) {
    Block key;
    key.stream = stream;
    for (auto it = pool.unmapped.lower_bound(key);
         it != pool.unmapped.end() && it->stream == stream; ++it) {
      Block* from = &*it;
      if (from->prev != nullptr && from->prev->idle()) from = from->prev;
      std::int64_t room = 0;
      for (const Block* b = from; room < size && b != nullptr && b->idle(); b = b->next) {
        room += b->size;
      }
      if (room >= size) return *from;
    }
    // The address space exceeds the device by an eighth: memory unmapped at the front may be needed
    // at the end.
    const std::int64_t granule = pool.small ? kSmallBuffer : kLargeBuffer;
    const std::int64_t total = device.total.count();
    const std::int64_t space = (total + total / 8 + granule - 1) / granule * granule;
    expandables.push_back({.base = new_address(space), .granule = granule, .size = space});
    ++segments;
    Block& block = make_block(pool, stream, expandables.back().base, space);
    block.expandable = &expandables.back();
    block.state = State::kUnmapped;
    pool.unmapped.insert(block);
    return block;
  }

  /// Maps memory to the first `size` bytes of an unmapped block, in whole granules.
  bool map(Block& block, std::int64_t size, Pool& pool) {
    const std::int64_t granule = block.expandable->granule;
    const std::int64_t mapped = (size + granule - 1) / granule * granule;
    KVSIM_CHECK(mapped <= block.size, "{} B mapped of {}", mapped, block.size);
    if (reserved + mapped > limit) return false;
    pool.unmapped.erase(pool.unmapped.iterator_to(block));
    if (mapped < block.size) {
      Block& rest =
          make_block(pool, block.stream, block.address + static_cast<std::uint64_t>(mapped),
                     block.size - mapped);
      rest.expandable = block.expandable;
      rest.state = State::kUnmapped;
      splice(rest, &block, block.next);
      pool.unmapped.insert(rest);
      block.size = mapped;
    }
    block.state = State::kFree;
    merge(block, block.prev, pool);
    merge(block, block.next, pool);
    put(pool, block);
    reserve(mapped);
    return true;
  }

  Block* take_expandable(std::int64_t size, std::int32_t stream, Pool& pool) {
    Block* at = &find_expandable(size, stream, pool);
    if (at->state == State::kUnmapped && !map(*at, std::min(at->size, size), pool)) return nullptr;
    while (at->size < size) {
      Block* next = at->next;
      if (!map(*next, std::min(size - at->size, next->size), pool)) return nullptr;
      at = next;
    }
    pool.blocks.erase(pool.blocks.iterator_to(*at));
    return at;
  }

  /// Unmaps the memory of the whole granules of a free block.
  void unmap(Block& block, Pool& pool) {
    const auto granule = static_cast<std::uint64_t>(block.expandable->granule);
    const std::uint64_t base = block.expandable->base;
    const std::uint64_t stop = block.address + static_cast<std::uint64_t>(block.size);
    const std::uint64_t first = base + (block.address - base + granule - 1) / granule * granule;
    const std::uint64_t last = base + (stop - base) / granule * granule;
    if (first >= last) return;
    pool.blocks.erase(pool.blocks.iterator_to(block));
    if (first > block.address) {
      Block& before = make_block(pool, block.stream, block.address,
                                 static_cast<std::int64_t>(first - block.address));
      before.expandable = block.expandable;
      splice(before, block.prev, &block);
      put(pool, before);
    }
    if (stop > last) {
      Block& after = make_block(pool, block.stream, last, static_cast<std::int64_t>(stop - last));
      after.expandable = block.expandable;
      splice(after, &block, block.next);
      put(pool, after);
    }
    block.address = first;
    block.size = static_cast<std::int64_t>(last - first);
    block.state = State::kUnmapped;
    reserved -= block.size;
    ++device_frees;
    merge(block, block.prev, pool);
    merge(block, block.next, pool);
    pool.unmapped.insert(block);
  }

  void drop_expandable(Block& block, Pool& pool) {
    KVSIM_CHECK(block.size == block.expandable->size, "a segment of {} B has a block of {} B",
                block.expandable->size, block.size);
    pool.unmapped.erase(pool.unmapped.iterator_to(block));
    const Expandable* gone = block.expandable;
    expandables.remove_if([&](const Expandable& each) { return &each == gone; });
    --segments;
    drop_block(block);
  }

  // --- the rules ------------------------------------------------------------------------------

  [[nodiscard]] bool should_split(const Block& block, std::int64_t size) const {
    const std::int64_t rest = block.size - size;
    if (block.small || config.expandable_segments) return rest >= kMinBlockSize;
    return size < max_split && rest > kSmallSize;
  }

  Block* best_fit(std::int64_t size, std::int32_t stream, Pool& pool) {
    if (collects) ++pool.searches;
    Block key;
    key.stream = stream;
    key.size = size;
    auto it = pool.blocks.lower_bound(key);
    if (it == pool.blocks.end() || it->stream != stream) return nullptr;
    if (it->expandable != nullptr) {
      // A block that can grow counts with the size it can grow to.
      const auto room = [](const Block& b) {
        return b.size + (b.next != nullptr && b.next->state == State::kUnmapped ? b.next->size : 0);
      };
      for (auto next = std::next(it);
           next != pool.blocks.end() && next->stream == stream && room(*next) < room(*it);) {
        it = next++;
      }
    }
    if (size < max_split && it->size >= max_split) return nullptr;
    if (size >= max_split && it->size >= size + config.max_non_split_rounding.count()) {
      return nullptr;
    }
    Block& found = *it;
    pool.blocks.erase(it);
    return &found;
  }

  void collect_garbage() {
    const auto threshold = static_cast<std::int64_t>(config.garbage_collection_threshold *
                                                     static_cast<double>(*allowed));
    if (reserved <= threshold) return;
    const std::int64_t target = reserved - threshold;
    const auto age = [this](const Block& b) { return large.searches - b.age_base; };
    std::int64_t total_age = 0;
    std::int64_t count = 0;
    for (const Block& b : large.blocks) {
      if (b.split()) continue;
      total_age += age(b);
      ++count;
    }
    std::int64_t reclaimed = 0;
    for (bool freed = true; reclaimed < target && freed && count > 0;) {
      // All blocks older than the average are freed, even past the target, so that this is rarely
      // needed.
      const double mean = static_cast<double>(total_age) / static_cast<double>(count);
      freed = false;
      for (auto it = large.blocks.begin(); it != large.blocks.end();) {
        Block& b = *it++;
        if (b.split() || b.expandable != nullptr || static_cast<double>(age(b)) < mean) continue;
        freed = true;
        reclaimed += b.size;
        total_age -= age(b);
        --count;
        release_segment(large, b);
      }
    }
  }

  /// With max_split_size: releases one cached block that is large enough, or the largest oversize
  /// ones until their sum is.
  bool release_oversize(std::int64_t size, std::int32_t stream, Pool& pool) {
    if (!config.max_split_size) return false;
    Block key;
    key.stream = stream;
    key.size = std::max(size, max_split);
    auto it = pool.blocks.lower_bound(key);
    if (it != pool.blocks.end() && it->stream == stream && it->expandable == nullptr) {
      release_segment(pool, *it);
      return true;
    }
    if (it == pool.blocks.begin()) return false;
    --it;
    std::int64_t released = 0;
    while (released < key.size && it->size >= max_split && it->stream == stream) {
      Block& block = *it;
      const bool first = it == pool.blocks.begin();
      if (!first) --it;
      if (block.expandable == nullptr) {
        released += block.size;
        release_segment(pool, block);
      }
      if (first) break;
    }
    return released >= key.size;
  }

  void release_cached(Pool& pool) {
    std::vector<Block*> to_unmap;
    for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
      Block& block = *it++;
      if (block.expandable != nullptr) {
        to_unmap.push_back(&block);
      } else if (!block.split()) {
        release_segment(pool, block);
      }
    }
    for (Block* block : to_unmap) {
      unmap(*block, pool);
      if (!block->split() && block->state == State::kUnmapped) drop_expandable(*block, pool);
    }
  }
  void release_cached() {
    release_cached(large);
    release_cached(small);
  }

  Block* take_new(std::int64_t size, std::int32_t stream, Pool& pool) {
    if (collects) collect_garbage();
    if (Block* block = take_segment(size, stream, pool)) return block;
    if (release_oversize(size, stream, pool)) {
      if (Block* block = take_segment(size, stream, pool)) return block;
    }
    release_cached();
    ++retries;
    return take_segment(size, stream, pool);
  }

  /// Splits `size` bytes off a block taken from the pool, if the rest is worth keeping.
  Block& carve(Block& block, std::int64_t size, Pool& pool) {
    const bool was_split = block.split();
    const bool counts = block.expandable == nullptr;
    if (!should_split(block, size)) {
      if (was_split && counts) inactive_split -= block.size;
      return block;
    }
    Block& part = make_block(pool, block.stream, block.address, size);
    part.expandable = block.expandable;
    splice(part, block.prev, &block);
    block.address += static_cast<std::uint64_t>(size);
    block.size -= size;
    put(pool, block);
    if (counts) inactive_split += was_split ? -size : block.size;
    return part;
  }

  Result<BlockId, OutOfMemory> malloc(std::int64_t n, OwnerId owner, std::int32_t stream) {
    KVSIM_CHECK(n >= 1, "an allocation of {} bytes", n);
    const auto who = static_cast<std::size_t>(owner);
    KVSIM_CHECK(who < names.size(), "owner {} has no name", who);
    const std::int64_t size = rounded_size(config, n);
    Pool& pool = size <= kSmallSize ? small : large;
    Block* found = best_fit(size, stream, pool);
    if (found == nullptr) found = take_new(size, stream, pool);
    place = 0;
    if (found == nullptr) {
      ++refusals;
      return refusal(n, size);
    }
    Block& block = carve(*found, size, pool);
    block.state = State::kInUse;
    block.requested = n;
    block.owner = static_cast<std::int32_t>(who);
    allocated += block.size;
    active += block.size;
    requested += n;
    ++blocks;
    held[who] += block.size;
    allocated_peak = peak_of(allocated_peak, allocated);
    active_peak = peak_of(active_peak, active);
    // The owners at the peak include the block that made the allocator grow.
    if (std::exchange(peak_moved, false)) peak_held = held;
    return id_of(block);
  }

  OutOfMemory refusal(std::int64_t n, std::int64_t size) const {
    OutOfMemory out{.device = device,
                    .requested = Bytes{n},
                    .tried = Bytes{segment_size(size)},
                    .free = Bytes{limit - reserved},
                    .allocated = Bytes{allocated},
                    .reserved = Bytes{reserved},
                    .owners = named(held)};
    if (allowed) out.allowed = Bytes{*allowed};
    return out;
  }

  [[nodiscard]] Owners named(const std::vector<std::int64_t>& by_owner) const {
    Owners owners;
    for (std::size_t i = 0; i < by_owner.size(); ++i) {
      if (by_owner[i] > 0) owners[names[i]] = Bytes{by_owner[i]};
    }
    return owners;
  }

  void request_free(Block& block) {
    KVSIM_CHECK(block.state == State::kInUse, "a block that is not in use is freed");
    block.state = State::kPending;
    allocated -= block.size;
    --blocks;
    held[static_cast<std::size_t>(block.owner)] -= block.size;
  }

  void hand_over(Block& block, OwnerId owner) {
    KVSIM_CHECK(block.state == State::kInUse, "a block that is not in use changes hands");
    held[static_cast<std::size_t>(block.owner)] -= block.size;
    block.owner = static_cast<std::int32_t>(owner);
    held.at(static_cast<std::size_t>(owner)) += block.size;
  }

  void complete_free(Block& block) {
    KVSIM_CHECK(block.state == State::kPending, "a free is completed that was not requested");
    Pool& pool = pool_of(block);
    const bool counts = block.expandable == nullptr;
    active -= block.size;
    requested -= block.requested;
    block.state = State::kFree;
    std::int64_t joined = merge(block, block.prev, pool);
    joined += merge(block, block.next, pool);
    put(pool, block);
    if (counts) inactive_split += (block.split() ? block.size : 0) - joined;
    // A caller that kept the old id must not reach the cached block with it.
    ++block.generation;
  }

  AllocatorDevice device;
  AllocatorConfig config;
  std::int64_t max_split = std::numeric_limits<std::int64_t>::max();
  std::int64_t limit = 0;               // of segments
  std::optional<std::int64_t> allowed;  // by a memory fraction
  bool collects = false;

  std::deque<Block> slots;
  std::vector<Block*> unused;
  std::list<Expandable> expandables;
  Pool small, large;
  std::uint64_t next_address = kFirstAddress;
  std::uint64_t place = 0;  // of the next segment; 0: next_address

  std::vector<std::string> names;
  std::vector<std::int64_t> held, peak_held;  // by owner
  bool peak_moved = false;
  std::int64_t allocated = 0, active = 0, requested = 0, reserved = 0, inactive_split = 0;
  std::int64_t reserved_peak = 0;
  Bytes allocated_peak, active_peak;
  std::int64_t blocks = 0, segments = 0, device_allocs = 0, device_frees = 0, retries = 0,
               refusals = 0;
};

CachingAllocator::CachingAllocator(const AllocatorDevice& device, const AllocatorConfig& config)
    : impl_{std::make_unique<Impl>(device, config)} {}
CachingAllocator::CachingAllocator(CachingAllocator&&) noexcept = default;
CachingAllocator& CachingAllocator::operator=(CachingAllocator&&) noexcept = default;
CachingAllocator::~CachingAllocator() = default;

CachingAllocator::OwnerId CachingAllocator::owner(std::string_view name) {
  auto& names = impl_->names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    names.emplace_back(name);
    impl_->held.push_back(0);
    impl_->peak_held.push_back(0);
    return static_cast<OwnerId>(names.size() - 1);
  }
  return static_cast<OwnerId>(found - names.begin());
}

Result<CachingAllocator::BlockId, OutOfMemory> CachingAllocator::malloc(Bytes n, OwnerId owner,
                                                                        std::int32_t stream) {
  return impl_->malloc(n.count(), owner, stream);
}

void CachingAllocator::free(BlockId id) {
  Block& block = impl_->find(id);
  impl_->request_free(block);
  impl_->complete_free(block);
}
void CachingAllocator::request_free(BlockId id) { impl_->request_free(impl_->find(id)); }
void CachingAllocator::complete_free(BlockId id) { impl_->complete_free(impl_->find(id)); }
void CachingAllocator::hand_over(BlockId id, OwnerId owner) {
  impl_->hand_over(impl_->find(id), owner);
}
void CachingAllocator::empty_cache() { impl_->release_cached(); }
void CachingAllocator::place_next_segment(std::uint64_t address) { impl_->place = address; }

AllocatorStats CachingAllocator::stats() const {
  const Impl& at = *impl_;
  std::int64_t largest = 0;
  for (const Pool* pool : {&at.small, &at.large}) {
    for (const Block& block : pool->blocks) largest = std::max(largest, block.size);
  }
  return {.allocated = Bytes{at.allocated},
          .active = Bytes{at.active},
          .requested = Bytes{at.requested},
          .reserved = Bytes{at.reserved},
          .inactive_split = Bytes{at.inactive_split},
          .largest_free = Bytes{largest},
          .allocated_peak = at.allocated_peak,
          .active_peak = at.active_peak,
          .reserved_peak = Bytes{at.reserved_peak},
          .blocks = at.blocks,
          .segments = at.segments,
          .device_allocs = at.device_allocs,
          .device_frees = at.device_frees,
          .retries = at.retries,
          .refusals = at.refusals};
}

Bytes CachingAllocator::allocated() const { return Bytes{impl_->allocated}; }
Bytes CachingAllocator::reserved() const { return Bytes{impl_->reserved}; }
std::int64_t CachingAllocator::segments() const { return impl_->segments; }
Owners CachingAllocator::owners() const { return impl_->named(impl_->held); }
Owners CachingAllocator::peak_owners() const { return impl_->named(impl_->peak_held); }
std::uint64_t CachingAllocator::address(BlockId id) const { return impl_->find(id).address; }

std::vector<CachingAllocator::SegmentView> CachingAllocator::snapshot() const {
  std::vector<const Block*> firsts;
  for (const Block& block : impl_->slots) {
    if (block.state != State::kNone && block.prev == nullptr) firsts.push_back(&block);
  }
  std::sort(firsts.begin(), firsts.end(),
            [](const Block* a, const Block* b) { return a->address < b->address; });
  std::vector<SegmentView> out;
  for (const Block* first : firsts) {
    SegmentView segment{.stream = first->stream,
                        .small = first->small,
                        .expandable = first->expandable != nullptr,
                        .blocks = {}};
    for (const Block* b = first; b != nullptr; b = b->next) {
      segment.blocks.push_back({.address = b->address,
                                .size = b->size,
                                .in_use = !b->idle(),
                                .mapped = b->state != State::kUnmapped});
    }
    out.push_back(std::move(segment));
  }
  return out;
}

}  // namespace kvsim
