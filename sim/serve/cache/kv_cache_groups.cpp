#include <algorithm>

#include "models/units/check.hpp"
#include "sim/serve/cache/kv_cache_manager.hpp"

namespace kvsim {

std::optional<std::uint64_t> KvCacheManager::block_name(RequestId id, std::int64_t block) const {
  const std::int32_t n = id_count(id);
  if (n == 0 || block >= covered(id, n)) return std::nullopt;
  // The id whose tokens end the block, and the index of the block within them.
  std::int32_t i = static_cast<std::int32_t>(
      std::min<std::int64_t>(n - 1, ((block + 1) * block_ - 1) / trace_->prefix_block));
  while (i > 0 && covered(id, i) > block) --i;
  const auto place = static_cast<std::uint64_t>(block - covered(id, i));
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;
  std::uint64_t name = prefix_id(id, i) + (place + 1) * kOdd;
  name = (name ^ (name >> 30U)) * 0xbf58476d1ce4e5b9U;
  return name ^ (name >> 27U);
}

std::int64_t KvCacheManager::continuable(RequestId id, std::int64_t blocks) const {
  const auto has = [&](const PrefixCache& cache, std::int64_t block) {
    const auto name = block_name(id, block);
    return name && cache.find(*name) >= 0;
  };
  while (blocks > 0) {
    if (state_ids_ > 0 && !has(states_, blocks - 1)) {
      --blocks;
      continue;
    }
    // The last block missing within the windows.
    std::int64_t missing = -1;
    if (window_ids_ > 0) {
      for (std::int64_t b = blocks; b-- > groups_->first_seen(blocks * block_) && missing < 0;) {
        if (!has(windows_, b)) missing = b;
      }
    }
    if (missing < 0) return blocks;
    blocks = missing;
  }
  return 0;
}

std::int64_t KvCacheManager::named_blocks(RequestId id, std::int64_t blocks) const {
  const std::int32_t n = id_count(id);
  return n > 0 ? std::min(blocks, covered(id, n)) : 0;
}

std::int64_t KvCacheManager::found_in_groups(RequestId id, std::int64_t found) const {
  const auto left = left_in_groups_.find(id);
  const Holding& h = holding(id);
  if (left == left_in_groups_.end() || h.left_from != found) return 0;
  const auto& [blocks, windows, state] = left->second;
  if (prefixes_.find_left(h.left) < blocks - found) return 0;
  if (state_ids_ > 0 && states_.find_left(state) < 1) return 0;
  const std::int64_t first = groups_->first_seen(blocks * block_);
  const std::int64_t named = std::max(first, named_blocks(id, blocks));
  if (window_ids_ == 0) return blocks;
  if (named < blocks && windows_.find_left(windows) < blocks - named) return 0;
  for (std::int64_t b = first; b < named; ++b) {
    const auto name = block_name(id, b);
    if (!name || windows_.find(*name) < 0) return 0;
  }
  return blocks;
}

void KvCacheManager::leave_in_groups(RequestId id, const Sequence& s, std::int64_t blocks) {
  Holding& h = holding(id);
  const auto leave = [&](PrefixCache& cache, std::int64_t count, std::int64_t ids) {
    const std::int64_t units = count * ids;
    const std::int64_t own = std::min(units, h.units);
    if (count < 1 || units - own > free_) return PrefixCache::Left{};
    h.units -= own;
    private_ -= own;
    free_ -= units - own;
    return cache.leave(count);
  };
  LeftInGroups left{.blocks = blocks};
  if (window_ids_ > 0) {
    const std::int64_t first = groups_->first_seen(blocks * block_);
    left.windows = leave(windows_, blocks - std::max(first, named_blocks(id, blocks)), window_ids_);
  }
  if (state_ids_ > 0 && s.computed == blocks * block_) {
    left.state = leave(states_, 1, state_ids_);
  }
  left_in_groups_.insert_or_assign(id, left);
}

void KvCacheManager::take_back_in_groups(RequestId id) {
  Holding& h = holding(id);
  const LeftInGroups left = left_in_groups_.at(id);
  const auto back = [&](PrefixCache& cache, const PrefixCache::Left& own, std::int64_t ids) {
    const std::int64_t count = cache.find_left(own);
    if (count < 1) return;
    cache.take_back(own, count);
    h.units += count * ids;
    private_ += count * ids;
  };
  back(windows_, left.windows, window_ids_);
  back(states_, left.state, state_ids_);
}

void KvCacheManager::evict(std::int64_t units) {
  const std::int64_t goal = free_ + units;
  while (free_ < goal) {
    PrefixCache* oldest = nullptr;
    for (PrefixCache* cache : {&prefixes_, &windows_, &states_}) {
      if (cache->evictable() == 0) continue;
      if (oldest == nullptr || cache->oldest_release() < oldest->oldest_release()) oldest = cache;
    }
    KVSIM_CHECK(oldest != nullptr, "{} cached units to take away are not there", goal - free_);
    oldest->evict(1);
    free_ += oldest == &prefixes_ ? block_units_ : oldest == &windows_ ? window_ids_ : state_ids_;
  }
}

void KvCacheManager::keep_one(PrefixCache& cache, std::uint64_t name, std::int64_t ids) {
  if (const PrefixCache::Index at = cache.find(name); at >= 0) {
    cache.touch(at);
    return;
  }
  if (ids > available()) return;
  if (ids > free_) evict(ids - free_);
  free_ -= ids;
  cache.release(cache.publish(name, 1), 1);
}

void KvCacheManager::keep_bounded(RequestId id, const Sequence& s, std::int64_t until, bool state) {
  Holding& h = holding(id);
  for (; window_ids_ > 0 && h.seen < until; ++h.seen) {
    if (const auto name = block_name(id, h.seen)) keep_one(windows_, *name, window_ids_);
  }
  if (!state || state_ids_ == 0 || s.computed % block_ != 0 || s.computed == 0) return;
  if (const auto name = block_name(id, s.computed / block_ - 1)) {
    keep_one(states_, *name, state_ids_);
  }
}

}  // namespace kvsim
