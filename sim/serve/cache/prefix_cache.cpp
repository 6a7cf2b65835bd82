#include "sim/serve/cache/prefix_cache.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

PrefixCache::Index PrefixCache::make() {
  if (unused_.empty()) {
    nodes_.emplace_back();
    return static_cast<Index>(nodes_.size()) - 1;
  }
  const Index at = unused_.back();
  unused_.pop_back();
  return at;
}

void PrefixCache::remove(Index at) {
  Node& n = node(at);
  if (n.listed) unlist(at);
  if (n.named) by_id_.erase(n.id);
  if (n.twice) by_id_.erase(n.other_id);
  const std::uint32_t generation = n.generation + 1;
  n = {};
  n.generation = generation;
  unused_.push_back(at);
}

void PrefixCache::list(Index at) {
  Node& n = node(at);
  n.before = newest_;
  n.after = -1;
  n.listed = true;
  n.released = ++(clock_ != nullptr ? *clock_ : own_clock_);
  (newest_ >= 0 ? node(newest_).after : oldest_) = at;
  newest_ = at;
}

void PrefixCache::unlist(Index at) {
  Node& n = node(at);
  (n.before >= 0 ? node(n.before).after : oldest_) = n.after;
  (n.after >= 0 ? node(n.after).before : newest_) = n.before;
  n.listed = false;
}

std::int64_t PrefixCache::acquire(Index at, std::int64_t blocks) {
  Node& n = node(at);
  KVSIM_CHECK(blocks >= 1 && blocks <= n.blocks, "{} of {} cached blocks", blocks, n.blocks);
  if (blocks < n.pinned) {
    n.lesser.push_back(blocks);
    return 0;
  }
  const std::int64_t more = blocks - n.pinned;
  if (more > 0) n.lesser.insert(n.lesser.end(), static_cast<std::size_t>(n.references), n.pinned);
  n.references = more > 0 ? 1 : n.references + 1;
  n.pinned = blocks;
  evictable_ -= more;
  pinned_ += more;
  if (n.listed && n.pinned == n.blocks) unlist(at);
  return more;
}

void PrefixCache::let_go(Index at, std::int64_t blocks) {
  Node& n = node(at);
  evictable_ += n.pinned - blocks;
  pinned_ -= n.pinned - blocks;
  n.pinned = blocks;
  if (n.listed) unlist(at);
  list(at);
}

void PrefixCache::release(Index at, std::int64_t blocks) {
  Node& n = node(at);
  KVSIM_CHECK(n.references > 0 && blocks <= n.pinned, "a prefix without references is released");
  if (blocks < n.pinned) {
    const auto one = std::find(n.lesser.begin(), n.lesser.end(), blocks);
    KVSIM_CHECK(one != n.lesser.end(), "{} blocks of a prefix have no references", blocks);
    n.lesser.erase(one);
    return;
  }
  if (--n.references > 0) return;
  std::int64_t max_use = 0;
  for (const std::int64_t use : n.lesser) max_use = std::max(max_use, use);
  n.references = static_cast<std::int32_t>(std::erase(n.lesser, max_use));
  let_go(at, max_use);
}

PrefixCache::Index PrefixCache::publish(std::uint64_t id, std::int64_t blocks) {
  KVSIM_CHECK(blocks >= 1 && find(id) < 0, "a prefix of {} blocks is cached twice", blocks);
  const Index at = make();
  Node& n = node(at);
  n.id = id;
  n.named = true;
  n.blocks = n.pinned = blocks;
  n.references = 1;
  pinned_ += blocks;
  by_id_.emplace(id, at);
  return at;
}

bool PrefixCache::name(Index at, std::uint64_t id) {
  KVSIM_CHECK(find(id) < 0, "a prefix is cached twice");
  Node& n = node(at);
  if (n.twice) return false;
  n.other_id = id;
  n.twice = true;
  by_id_.emplace(id, at);
  return true;
}

void PrefixCache::extend(Index at, std::int64_t blocks) {
  Node& n = node(at);
  KVSIM_CHECK(n.references > 0 && n.pinned == n.blocks && blocks >= 1,
              "a prefix that ends elsewhere is extended");
  n.lesser.insert(n.lesser.end(), static_cast<std::size_t>(n.references - 1), n.pinned);
  n.references = 1;
  n.blocks += blocks;
  n.pinned += blocks;
  pinned_ += blocks;
}

PrefixCache::Left PrefixCache::leave(std::int64_t blocks) {
  KVSIM_CHECK(blocks >= 1, "{} blocks are left", blocks);
  const Index at = make();
  Node& n = node(at);
  n.blocks = blocks;
  evictable_ += blocks;
  list(at);
  return {at + 1, n.generation};
}

std::int64_t PrefixCache::find_left(const Left& left) const {
  if (!left.any() || node(left.at()).generation != left.generation) return 0;
  return node(left.at()).blocks;
}

void PrefixCache::take_back(const Left& left, std::int64_t blocks) {
  Node& n = node(left.at());
  KVSIM_CHECK(blocks >= 1 && blocks <= find_left(left), "{} blocks of those left are gone", blocks);
  n.blocks -= blocks;
  evictable_ -= blocks;
  if (n.blocks == 0) remove(left.at());
}

void PrefixCache::touch(Index at) {
  if (!node(at).listed) return;
  unlist(at);
  list(at);
}

void PrefixCache::evict(std::int64_t blocks) {
  KVSIM_CHECK(blocks <= evictable_, "{} of {} blocks are taken away", blocks, evictable_);
  evictable_ -= blocks;
  evicted_ += blocks;
  while (blocks > 0) {
    Node& n = node(oldest_);
    const std::int64_t some = std::min(blocks, n.blocks - n.pinned);
    n.blocks -= some;
    blocks -= some;
    if (n.blocks == 0) {
      remove(oldest_);
    } else if (n.blocks == n.pinned) {
      unlist(oldest_);
    }
  }
}

}  // namespace kvsim
