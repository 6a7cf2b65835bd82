#include "models/methods/session/kept_entry.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "models/methods/session/session.hpp"

namespace kvsim {

namespace {

/// Returns true if every token after the prompt is kept according to the rule's size law.
bool appends(const SelectRule& rule) {
  constexpr std::int64_t kBudget = 64, kPrompt = 128, kSteps = 4096;
  if (!rule.bounded()) return false;
  const auto held = rule.held(kBudget, kPrompt, kPrompt + kSteps);
  return held && *held >= kSteps;
}

}  // namespace

std::vector<KeptEntry> CacheSession::why_kept(std::size_t h) const {
  const EntryTable& entries = heads_[h].entries;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(entries.size()));
  std::iota(slots.begin(), slots.end(), 0);
  std::sort(slots.begin(), slots.end(),
            [&](std::int32_t a, std::int32_t b) { return entries.id(a) < entries.id(b); });
  const SelectRule& rule = *method_.select;
  const Selector& judge = selector(h);
  const auto prompt = static_cast<std::int32_t>(heads_[h].vectors.prompt);
  const bool whole = entries.size() == newest_ + 1;
  // A rule that does not evict at decode steps decided once, at the prompt's end.
  const bool once = !rule.leaves_in_decode() || appends(rule);
  const std::int32_t last = once ? prompt - 1 : newest_;
  std::vector<KeptEntry> all;
  bool any_score = false;
  for (const std::int32_t slot : slots) {
    KeptEntry& entry = all.emplace_back();
    entry.position = entries.id(slot);
    entry.members = entries.count(slot);
    if (whole) continue;
    if (entry.members > 1) {
      entry.role = KeptRole::kMerged;
    } else if (once && entry.position >= prompt) {
      entry.role = KeptRole::kDecoded;
    } else {
      const double importance = judge.importance(entry.position, last, once);
      entry.role = importance == std::numeric_limits<double>::infinity() ? KeptRole::kProtected
                                                                         : KeptRole::kScore;
      if (entry.role == KeptRole::kScore) {
        any_score = true;
        if (std::isfinite(importance)) entry.score = importance;
      }
    }
  }
  if (!any_score) return all;  // a rule that protects all entries does not distinguish the ends
  for (KeptEntry& entry : all) {
    if (entry.role == KeptRole::kScore && rule.ranks_by_position()) {
      entry = {entry.position, entry.members, KeptRole::kRecent};
    }
  }
  std::int32_t next = 0;
  for (KeptEntry& entry : all) {
    if (entry.role != KeptRole::kProtected || entry.position != next) break;
    entry.role = KeptRole::kSink;
    ++next;
  }
  next = last;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    if (entry->position > last) continue;
    if (entry->role != KeptRole::kProtected || entry->position != next) break;
    entry->role = KeptRole::kRecent;
    --next;
  }
  return all;
}

}  // namespace kvsim
