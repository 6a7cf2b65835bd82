#include "sim/serve/cache/kv_cache_manager.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// For each request, the next turn of its conversation: a request that waits for it and whose
/// prompt continues its prompt and output. Waiting for an earlier request or an equal beginning is
/// not sufficient: requests of a closed loop's user also share a system prompt.
std::vector<RequestId> next_turns(const RequestTrace& trace) {
  std::vector<RequestId> next;
  if (trace.prefix_block == 0 || !trace.conversations) return next;
  const auto id = [&](const Request& r, std::int32_t i) {
    return trace.prefix_ids[static_cast<std::size_t>(r.prefix_first) + static_cast<std::size_t>(i)];
  };
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Request& turn = trace.requests[i];
    if (turn.after < 0 || turn.prefix_count == 0) continue;
    const Request& before = trace.requests[static_cast<std::size_t>(turn.after)];
    if (turn.session < 0 || turn.session != before.session) continue;
    const std::int32_t whole = before.prompt_tokens / trace.prefix_block;
    const bool goes_on = turn.prompt_tokens >= before.prompt_tokens + before.output_tokens &&
                         turn.prefix_count > whole &&
                         (whole == 0 || (before.prefix_count >= whole &&
                                         id(before, whole - 1) == id(turn, whole - 1)));
    if (!goes_on) continue;
    if (next.empty()) next.assign(trace.requests.size(), -1);
    RequestId& first = next[static_cast<std::size_t>(turn.after)];
    if (first < 0) first = static_cast<RequestId>(i);
  }
  return next;
}

}  // namespace

KvCacheManager::KvCacheManager(const Setup& setup)
    : trace_{setup.trace},
      sizes_{setup.sizes},
      footprints_{setup.footprints},
      pool_{setup.pool_units},
      free_{setup.pool_units},
      block_{setup.sizes->block_tokens()},
      block_units_{setup.sizes->block_units()},
      caches_{setup.prefix_caching},
      groups_{setup.sizes->groups()},
      holdings_(setup.trace->requests.size()),
      outside_{setup.footprints != nullptr ? setup.outside : nullptr},
      format_{setup.format} {
  KVSIM_CHECK(!caches_ || groups_ != nullptr || (sizes_->plain() && !sizes_->windowed()),
              "prefixes of a cache with unequal rows");
  if (groups_ != nullptr) {
    window_ids_ = groups_->window_ids();
    state_ids_ = groups_->state_ids();
    for (PrefixCache* cache : {&prefixes_, &windows_, &states_}) cache->share_clock(&clock_);
  }
  if (caches_ && footprints_ == nullptr && setup.keeps_answers) next_turns_ = next_turns(*trace_);
}

KvCacheManager::~KvCacheManager() {
  if (footprints_ == nullptr) return;  // no holding has one
  for (std::size_t i = 0; i < holdings_.size(); ++i) follow(holdings_[i], nullptr);
}

std::int32_t KvCacheManager::id_count(RequestId id) const {
  return trace_->requests[static_cast<std::size_t>(id)].prefix_count;
}

std::uint64_t KvCacheManager::prefix_id(RequestId id, std::int32_t i) const {
  const Request& r = trace_->requests[static_cast<std::size_t>(id)];
  return trace_->prefix_ids[static_cast<std::size_t>(r.prefix_first) + static_cast<std::size_t>(i)];
}

std::int64_t KvCacheManager::covered(RequestId id, std::int32_t ids) const {
  const Request& r = trace_->requests[static_cast<std::size_t>(id)];
  std::int64_t tokens = r.prompt_tokens;
  if (ids < r.prefix_count) {
    tokens = std::min(tokens, std::int64_t{ids} * trace_->prefix_block);
  }
  return tokens / block_;
}

void KvCacheManager::follow(Holding& h, SequenceFootprint* footprint) {
  if (h.footprint != nullptr) --h.footprint->users;
  h.footprint = footprint;
  if (footprint != nullptr) ++footprint->users;
}

std::int32_t KvCacheManager::cached_tokens(RequestId id, const Sequence& s) const {
  if (!caches_) return 0;
  if (footprints_ != nullptr) {
    // Kept entries are written in addition to blocks that stay for others. If the pool cannot hold
    // both, the cached prefix can never be used.
    const SequenceFootprint& footprint = footprints_->at(s.known, *sizes_);
    const std::int64_t whole = sizes_->prompt_units(s.known, s.known);
    if (footprint.compresses_prompt() && whole + footprint.prompt_units() > pool_) return 0;
  }
  // At least one token is recomputed because its logits are needed.
  const std::int64_t limit = (std::int64_t{s.known} - 1) / block_;
  std::int64_t found = 0;
  const std::int32_t n = id_count(id);
  std::int64_t end = 0;
  for (std::int32_t i = 0; i < n && found < limit; ++i) {
    const std::int64_t start = end;
    end = covered(id, i + 1);
    if (end == start) continue;
    const PrefixCache::Index at = prefixes_.find(prefix_id(id, i));
    if (at < 0) break;
    found += std::min(prefixes_.blocks(at), end - start);
    if (found < end) break;
  }
  if (groups_ != nullptr) {
    const std::int64_t own = found_in_groups(id, found);
    const std::int64_t blocks =
        own > 0 && own <= limit ? own : continuable(id, std::min(found, limit));
    return static_cast<std::int32_t>(blocks * block_);
  }
  const Holding& h = holding(id);
  if (h.left.any() && h.left_from == found) found += prefixes_.find_left(h.left);
  return static_cast<std::int32_t>(std::min(found, limit) * block_);
}

std::int64_t KvCacheManager::wanted(const Holding& h, const Sequence& s, std::int32_t to,
                                    std::int64_t shared) const {
  const std::int64_t shared_units = shared * block_units_;
  if (h.footprint == nullptr) return (to + block_ - 1) / block_ * block_units_ - shared_units;
  if (to > s.target) {
    const SequenceFootprint::Step step = h.footprint->units(to - s.target);
    // Shared blocks are copied before a method writes to them or drops entries of them.
    return step.evicts ? step.during : std::max<std::int64_t>(0, step.during - shared_units);
  }
  const std::int64_t whole = sizes_->prompt_units(to, to - s.computed);
  if (to < s.target) return whole - shared_units;
  const std::int64_t kept = h.footprint->prompt_units();
  if (!h.footprint->compresses_prompt()) return std::max(whole, kept) - shared_units;
  // Blocks that are kept for others are not changed; kept entries are written to new blocks.
  if (h.publishes || shared > 0) return whole + kept - shared_units;
  if (h.footprint->all_layers_at_once()) return std::max(whole, kept);
  // Layer by layer: no more of the last chunk is written than survives.
  return std::max(s.computed > 0 ? sizes_->prompt_units(s.computed, s.computed) : 0, kept);
}

bool KvCacheManager::take(Holding& h, std::int64_t units) {
  if (!take(units)) return false;
  h.units += units;
  return true;
}

bool KvCacheManager::take(std::int64_t units) {
  if (units > available()) return false;
  if (units > free_ && groups_ != nullptr) evict(units - free_);
  if (units > free_) {
    const std::int64_t blocks = (units - free_ + block_units_ - 1) / block_units_;
    prefixes_.evict(blocks);
    free_ += blocks * block_units_;
  }
  free_ -= units;
  private_ += units;
  return true;
}

void KvCacheManager::give(Holding& h, std::int64_t units) {
  h.units -= units;
  private_ -= units;
  free_ += units;
}

bool KvCacheManager::outside_fits(RequestId id, Bytes next) {
  if (outside_ == nullptr) return true;
  const Bytes more = next - holding(id).outside;
  if (more <= Bytes{} || outside_->fits(more)) return true;
  short_of_outside_ = id;
  shortage_ = more;
  return false;
}

void KvCacheManager::set_outside(Holding& h, Bytes next) {
  if (outside_ == nullptr || next == h.outside) return;
  if (next > h.outside) {
    outside_->take(OutsideOwner::kOffloaded, next - h.outside);
  } else {
    outside_->give(OutsideOwner::kOffloaded, h.outside - next);
  }
  h.outside = next;
}

void KvCacheManager::set_room(const Holding& h, Sequence& s) const {
  s.room = h.footprint == nullptr
               ? static_cast<std::int32_t>((h.units / block_units_ + h.shared_blocks) * block_)
               : s.computed;
}

bool KvCacheManager::admit(RequestId id, Sequence& s, std::int32_t found, std::int32_t tokens,
                           std::int64_t keep_free) {
  Holding& h = holding(id);
  KVSIM_CHECK(h.units == 0 && h.shared_blocks == 0, "request {} is admitted twice", id);
  if (short_of_outside_ == id) short_of_outside_ = -1;
  // Its tokens in each stretch.
  const std::int64_t blocks = found / block_;
  const std::int32_t n = caches_ ? id_count(id) : 0;
  std::int32_t ids = 0;
  std::int64_t shared = 0, newly_pinned = 0;
  for (; ids < n && shared < blocks; ++ids) {
    const std::int64_t start = covered(id, ids);
    const std::int64_t cover = covered(id, ids + 1) - start;
    if (cover == 0) continue;
    const PrefixCache::Index at = prefixes_.find(prefix_id(id, ids));
    if (at < 0) break;
    const std::int64_t use = std::min({prefixes_.blocks(at), cover, blocks - shared});
    newly_pinned +=
        std::max<std::int64_t>(0, use - (prefixes_.blocks(at) - prefixes_.unreferenced(at)));
    shared += use;
    if (use < cover) {
      ++ids;
      break;
    }
  }
  const std::int64_t back = blocks - shared;  // of the blocks that it left itself
  KVSIM_CHECK(back == 0 || (h.left_from == shared && back <= prefixes_.find_left(h.left)),
              "{} cached tokens of request {} are not there", found, id);

  Holding next = h;
  Sequence then = s;
  then.target = s.known;
  then.computed = found;
  next.publishes = n > 0;
  next.footprint = footprints_ != nullptr ? &footprints_->at(s.known, *sizes_) : nullptr;
  std::int64_t units = wanted(next, then, found + tokens, shared);
  const std::int64_t other_units = newly_pinned * block_units_ + keep_free;
  if (units + other_units > available() && next.publishes && shared == 0) {
    // As in grow(): publishing nothing is better than waiting for room for a copy.
    next.publishes = false;
    units = wanted(next, then, found + tokens, shared);
  }
  const Bytes outside = outside_ != nullptr ? format_.held(next.footprint->outside(0)) : Bytes{};
  if (units + other_units > available() || !outside_fits(id, outside)) return false;

  for (std::int32_t i = 0; i < ids; ++i) {
    const std::int64_t start = covered(id, i);
    const std::int64_t cover = covered(id, i + 1) - start;
    if (cover == 0) continue;
    const PrefixCache::Index at = prefixes_.find(prefix_id(id, i));
    (void)prefixes_.acquire(at, std::min(cover, shared - start));
  }
  h.shared_ids = ids;
  h.shared_blocks = static_cast<std::int32_t>(shared);
  h.publishes = next.publishes;
  follow(h, next.footprint);
  set_outside(h, outside);
  if (back > 0) {
    prefixes_.take_back(h.left, back);
    h.units += back * block_units_;
    private_ += back * block_units_;
    if (groups_ != nullptr) take_back_in_groups(id);
  }
  h.left = {};
  if (groups_ != nullptr) left_in_groups_.erase(id);
  if (groups_ != nullptr && caches_) {
    // Found blocks stay longest.
    h.seen = static_cast<std::int32_t>(blocks);
    for (std::int64_t b = groups_->first_seen(blocks * block_); b < blocks; ++b) {
      if (const auto name = block_name(id, b); name && windows_.find(*name) >= 0) {
        windows_.touch(windows_.find(*name));
      }
    }
    if (const auto name = blocks > 0 ? block_name(id, blocks - 1) : std::nullopt;
        name && states_.find(*name) >= 0) {
      states_.touch(states_.find(*name));
    }
  }
  KVSIM_CHECK(take(h, units - h.units), "units that were counted are gone");
  s = then;
  set_room(h, s);
  if (h.footprint != nullptr) s.room = found + tokens;
  return true;
}

bool KvCacheManager::grow(RequestId id, Sequence& s, std::int32_t tokens) {
  Holding& h = holding(id);
  const std::int32_t to = s.computed + tokens;
  std::int64_t units = wanted(h, s, to, h.shared_blocks);
  if (h.publishes && h.shared_blocks == 0 && units - h.units > available()) {
    // Publishing nothing is better than waiting for room for a copy.
    Holding alone = h;
    alone.publishes = false;
    const std::int64_t fewer = wanted(alone, s, to, 0);
    if (fewer - h.units <= available()) {
      h.publishes = false;
      units = fewer;
    }
  }
  if (short_of_outside_ == id) short_of_outside_ = -1;
  const bool grows_outside = outside_ != nullptr && to > s.target;
  const Bytes outside =
      grows_outside ? format_.held(h.footprint->outside(to - s.target)) : h.outside;
  if (!outside_fits(id, outside)) return false;
  if (units > h.units && !take(h, units - h.units)) return false;
  set_outside(h, outside);
  set_room(h, s);
  if (h.footprint != nullptr && to > s.target && h.shared_blocks == 0 && !grows_outside) {
    // Until a block is full, or the size law bends, no units change.
    const SequenceFootprint::Step step = h.footprint->units(to - s.target);
    if (step.during == step.after && step.after == h.units) {
      s.room = static_cast<std::int32_t>(s.target + step.until);
    }
  }
  return true;
}

bool KvCacheManager::grow_by_blocks(std::int64_t blocks, std::int64_t keep_free) {
  KVSIM_CHECK(full_law(), "blocks of a method are counted by its footprint");
  if (blocks == 0) return true;
  const std::int64_t units = blocks * block_units_;
  return units + keep_free <= available() && take(units);
}

void KvCacheManager::catch_up(RequestId id, Sequence& s, std::int32_t tokens) {
  Holding& h = holding(id);
  h.units = wanted(h, s, tokens, h.shared_blocks);
  set_room(h, s);
}

void KvCacheManager::publish(RequestId id, const Sequence& s) {
  Holding& h = holding(id);
  if (!h.publishes) return;
  const std::int32_t n = id_count(id);
  const std::int64_t done = std::min(std::int64_t{s.computed} / block_, covered(id, n));
  while (h.shared_blocks < done) {
    // The stretch that it refers to last may continue.
    const bool goes_on = h.shared_ids > 0 && h.shared_blocks < covered(id, h.shared_ids);
    const std::int32_t i = goes_on ? h.shared_ids - 1 : h.shared_ids;
    const std::int64_t start = covered(id, i);
    const std::int64_t end = std::min(covered(id, i + 1), done);
    const std::int64_t blocks = end - h.shared_blocks;
    if (blocks > 0) {
      const PrefixCache::Index at = prefixes_.find(prefix_id(id, i));
      // Another sequence has computed the same blocks: its blocks are kept, and these stay private.
      if (goes_on ? prefixes_.blocks(at) != h.shared_blocks - start : at >= 0) {
        h.publishes = false;
        return;
      }
      if (goes_on) {
        prefixes_.extend(at, blocks);
      } else {
        (void)prefixes_.publish(prefix_id(id, i), blocks);
      }
      h.units -= blocks * block_units_;
      private_ -= blocks * block_units_;
      h.shared_blocks += static_cast<std::int32_t>(blocks);
    }
    h.shared_ids = i + 1;
  }
}

void KvCacheManager::drop_shared(RequestId id) {
  Holding& h = holding(id);
  // In reverse order, so that the head of the prefix stays longest.
  for (std::int32_t i = h.shared_ids; i-- > 0;) {
    const std::int64_t start = covered(id, i);
    const std::int64_t use = std::min(covered(id, i + 1), std::int64_t{h.shared_blocks}) - start;
    if (use > 0) prefixes_.release(prefixes_.find(prefix_id(id, i)), use);
  }
  h.shared_ids = h.shared_blocks = 0;
}

void KvCacheManager::resolve(RequestId id, Sequence& s) {
  if (s.computed > s.target && s.computed <= s.room) return;
  Holding& h = holding(id);
  if (h.footprint == nullptr) {
    if (h.publishes && s.computed <= s.target) publish(id, s);
    return;
  }
  if (s.computed < s.target) {
    publish(id, s);
    // Windows release blocks that they have passed.
    const std::int64_t units =
        sizes_->prompt_units(s.computed, s.planned) - h.shared_blocks * block_units_;
    if (units < h.units) give(h, h.units - units);
    if (groups_ != nullptr && caches_) {
      keep_bounded(id, s, groups_->first_seen(s.computed), true);
    }
  } else if (s.computed == s.target) {
    publish(id, s);
    std::int64_t units = h.footprint->prompt_units() - h.shared_blocks * block_units_;
    if (h.footprint->compresses_prompt()) {
      unshared_ += h.shared_blocks;
      drop_shared(id);
      h.publishes = false;
      units = h.footprint->prompt_units();
    }
    if (units < h.units) give(h, h.units - units);
    if (groups_ != nullptr && caches_) {
      keep_bounded(id, s, groups_->first_seen(s.computed), true);
    }
  } else {
    const SequenceFootprint::Step step = h.footprint->units(s.computed - s.target);
    if (step.evicts && h.shared_blocks > 0) {
      unshared_ += h.shared_blocks;
      drop_shared(id);
    }
    const std::int64_t units = step.after - h.shared_blocks * block_units_;
    if (units < h.units) give(h, h.units - units);
  }
  s.room = s.computed;
}

/// Gives ids to private full blocks. They can then be found, or evicted.
std::int64_t KvCacheManager::name_answer(RequestId id, const Sequence& s) {
  Holding& h = holding(id);
  const RequestId next = next_turns_[static_cast<std::size_t>(id)];
  if (next < 0) return 0;
  const std::int64_t whole = s.computed / block_;
  struct Named {
    PrefixCache::Index at;
    std::int64_t blocks, mine;  // mine: of the prompt, released by drop_shared
  };
  std::vector<Named> named;
  std::int64_t own = 0;
  for (std::int32_t i = s.prompt / trace_->prefix_block; i < id_count(next); ++i) {
    const std::int64_t start = covered(next, i);
    const std::int64_t end = std::min(covered(next, i + 1), whole);
    if (start >= whole || prefixes_.find(prefix_id(next, i)) >= 0) break;
    if (end <= start) continue;
    const std::int64_t mine = std::max<std::int64_t>(0, h.shared_blocks - start);
    const std::int64_t more = end - start - mine;
    PrefixCache::Index at = -1;
    if (mine > 0) {
      // The prompt's last blocks already have an id of the prompt only; they get a second one.
      at = prefixes_.find(prefix_id(id, h.shared_ids - 1));
      if (prefixes_.blocks(at) != mine || !prefixes_.name(at, prefix_id(next, i))) break;
      if (more > 0) prefixes_.extend(at, more);
    } else {
      at = prefixes_.publish(prefix_id(next, i), more);
    }
    h.units -= more * block_units_;
    private_ -= more * block_units_;
    own += more;
    named.push_back({at, mine + more, mine});
  }
  // In reverse order, so that the head of the prefix stays longest.
  for (auto n = named.rbegin(); n != named.rend(); ++n) {
    prefixes_.release(n->at, n->blocks);
    if (n->mine > 0) (void)prefixes_.acquire(n->at, n->mine);
  }
  return own;
}

void KvCacheManager::finish(RequestId id, Sequence& s) {
  if (SequenceFootprint* footprint = holding(id).footprint;
      footprint != nullptr && s.computed >= s.target) {
    const std::int64_t step = s.computed - s.target;
    dropped_ += std::max(Bytes{}, footprint->full_logical(step) - footprint->logical(step));
    reclaimed_ +=
        sizes_->unit() * std::max<std::int64_t>(0, footprint->full_units(step) - held(id));
  }
  const std::int64_t named =
      next_turns_.empty() || holding(id).footprint != nullptr ? 0 : name_answer(id, s);
  // Partial last blocks and duplicated prefixes have no id.
  let_go(id, s, static_cast<std::int32_t>(s.computed - named * block_), false);
}

void KvCacheManager::let_go(RequestId id, Sequence& s, std::int32_t keep, bool comes_back) {
  Holding& h = holding(id);
  const std::int64_t blocks = std::min(s.computed, keep) / block_;
  const std::int64_t whole = blocks - h.shared_blocks;
  if (caches_ && whole > 0 && (h.footprint == nullptr || (groups_ != nullptr && comes_back))) {
    h.left_from = h.shared_blocks;
    h.left = prefixes_.leave(whole);
    h.units -= whole * block_units_;
    private_ -= whole * block_units_;
    if (groups_ != nullptr) leave_in_groups(id, s, blocks);
  }
  give(h, h.units);
  if (groups_ != nullptr && caches_) {
    // The windows' last blocks stay with the rest of the prompt.
    keep_bounded(id, s, named_blocks(id, blocks), false);
    h.seen = 0;
  }
  set_outside(h, Bytes{});
  drop_shared(id);
  follow(h, nullptr);
  h.publishes = false;
  s.room = 0;
}

std::int64_t KvCacheManager::swap_out(RequestId id, Sequence& s) {
  Holding& h = holding(id);
  const std::int64_t units = held(id);
  give(h, h.units);
  drop_shared(id);
  h.publishes = false;
  s.room = 0;
  return units;
}

bool KvCacheManager::swap_in(RequestId id, Sequence& s, std::int64_t units) {
  Holding& h = holding(id);
  if (!take(h, units)) return false;
  set_room(h, s);
  return true;
}

bool KvCacheManager::reserve(RequestId id, const Sequence& s, std::int64_t units) {
  Holding& h = holding(id);
  KVSIM_CHECK(h.units == 0 && h.shared_blocks == 0, "request {} is here already", id);
  SequenceFootprint* footprint =
      footprints_ != nullptr ? &footprints_->at(s.target, *sizes_) : nullptr;
  if (footprint != nullptr) units = std::max(units, footprint->prompt_units());
  if (!take(h, units)) return false;
  h.publishes = false;
  follow(h, footprint);
  return true;
}

void KvCacheManager::receive(RequestId id, Sequence& s) {
  Holding& h = holding(id);
  if (h.footprint != nullptr && h.units > h.footprint->prompt_units())
    give(h, h.units - h.footprint->prompt_units());
  set_room(h, s);
}

std::int64_t KvCacheManager::max_units(std::int32_t prompt, std::int64_t tokens) {
  if (footprints_ == nullptr) return (tokens + block_ - 1) / block_ * block_units_;
  return footprints_->at(prompt, *sizes_).max_units(tokens - prompt);
}

Bytes KvCacheManager::logical(RequestId id, const Sequence& s) {
  const Holding& h = holding(id);
  if (h.footprint == nullptr || s.computed < s.target) return sizes_->prompt_logical(s.computed);
  return h.footprint->logical(s.computed - s.target);
}

Bytes KvCacheManager::own_logical(RequestId id, const Sequence& s) {
  const Bytes shared = sizes_->unit() * (holding(id).shared_blocks * block_units_);
  return std::max(Bytes{}, logical(id, s) - shared);
}

void KvCacheManager::check() const {
  KVSIM_CHECK(free_ >= 0 && private_ >= 0 && free_ + cached() + pinned() + private_ == pool_,
              "{} free + {} cached + {} shared + {} private units of {}", free_, cached(), pinned(),
              private_, pool_);
}

}  // namespace kvsim
