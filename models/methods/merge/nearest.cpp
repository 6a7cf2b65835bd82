#include "models/methods/merge/nearest.hpp"

#include <algorithm>

#include "models/math/merging/cosine_search.hpp"

namespace kvsim {

const std::vector<NearestKept>& NearestSearch::of_prompt(const EntryTable& entries,
                                                         std::span<const std::int32_t> losers,
                                                         std::span<const float> keys) {
  rows_.clear();
  const std::size_t d = entries.size() > 0 ? entries.key(0).size() : 0;
  for (const std::int32_t id : losers) {
    const auto row = keys.subspan(static_cast<std::size_t>(id) * d, d);
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  leaves_.assign(static_cast<std::size_t>(entries.size()), false);
  search(entries, losers, rows_);
  return found_;
}

const std::vector<NearestKept>& NearestSearch::of_leaving(const EntryTable& entries,
                                                          std::span<const std::int32_t> leaving) {
  if (leaving.size() == 1) {  // the common case: one pass over the keys in memory order
    const std::int32_t slot = entries.slot_of(leaving.front());
    cosine_.resize(static_cast<std::size_t>(entries.size()));
    cosines(entries.key(slot), entries.keys(), cosine_);
    NearestKept best{.id = leaving.front(), .into = -1, .cosine = 0};
    for (std::int32_t other = 0; other < entries.size(); ++other) {
      if (other == slot) continue;
      const double cosine = cosine_[static_cast<std::size_t>(other)];
      if (best.into < 0 || cosine > best.cosine ||
          (cosine == best.cosine && entries.id(other) < best.into)) {
        best.into = entries.id(other);
        best.cosine = cosine;
      }
    }
    found_.assign(1, best);
    return found_;
  }
  rows_.clear();
  leaves_.assign(static_cast<std::size_t>(entries.size()), false);
  for (const std::int32_t id : leaving) {
    const std::int32_t slot = entries.slot_of(id);
    leaves_[static_cast<std::size_t>(slot)] = true;
    const auto row = entries.key(slot);
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  search(entries, leaving, rows_);
  return found_;
}

void NearestSearch::search(const EntryTable& entries, std::span<const std::int32_t> leaving,
                           std::span<const float> rows) {
  found_.clear();
  stay_.clear();
  for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
    if (!leaves_[static_cast<std::size_t>(slot)]) stay_.push_back(entries.id(slot));
  }
  std::sort(stay_.begin(), stay_.end());  // ties go to the lower index and therefore to the older
                                          // entry
  if (stay_.empty()) {
    for (const std::int32_t id : leaving) found_.push_back({.id = id});
    return;
  }
  stayed_.clear();
  for (const std::int32_t id : stay_) {
    const auto row = entries.key(entries.slot_of(id));
    stayed_.insert(stayed_.end(), row.begin(), row.end());
  }
  const auto d = static_cast<std::int32_t>(entries.key(0).size());
  const auto best = best_cosines(rows, stayed_, d);
  for (std::size_t i = 0; i < leaving.size(); ++i) {
    found_.push_back({.id = leaving[i],
                      .into = stay_[static_cast<std::size_t>(best[i].index)],
                      .cosine = best[i].cosine});
  }
}

}  // namespace kvsim
