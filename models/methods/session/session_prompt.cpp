// What happens to a prompt before and after its cut: attention in part, a way through a tier,
// positions.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "models/methods/session/session.hpp"

namespace kvsim {

void CacheSession::attend_prompt() {
  for (const Head& head : heads_) {
    const HeadVectors& of = head.vectors;
    const auto prompt = static_cast<std::size_t>(of.prompt * of.head_dim);
    const auto whole = static_cast<std::size_t>(of.tokens * of.head_dim);
    for (std::int32_t g = 0; g < of.group; ++g) {
      prefill_outcome_ +=
          run_prefill(*method_.prefill,
                      {.q = of.q.subspan(static_cast<std::size_t>(g) * whole, prompt),
                       .keys = of.keys.first(prompt),
                       .prompt = of.prompt,
                       .head_dim = of.head_dim,
                       .scale = of.scale},
                      of.values.first(prompt));
    }
  }
}

void CacheSession::return_from_tier() {
  const auto heads = std::ssize(heads_);
  const auto d = static_cast<std::int64_t>(place_.head_dim);
  const std::int64_t prompt = heads_.front().entries.size();
  TierRows rows{.layer = place_.layer,
                .prompt = prompt,
                .tokens = std::llround(method_.tier->returned() * static_cast<double>(prompt)),
                .width = heads * d,
                .head_dim = place_.head_dim,
                .stored = method_.store_of(place_.layer).dtype(method_.recorded),
                .rope = place_.rope,
                .keys = {},
                .values = {}};
  if (rows.tokens == 0) return;
  rows.keys.resize(static_cast<std::size_t>(prompt * rows.width));
  rows.values.resize(rows.keys.size());
  const auto at = [&](std::int64_t token, std::int64_t head) {
    return static_cast<std::size_t>(token * rows.width + head * d);
  };
  for (std::int64_t h = 0; h < heads; ++h) {
    const EntryTable& entries = heads_[static_cast<std::size_t>(h)].entries;
    for (std::int32_t id = 0; id < prompt; ++id) {
      const std::int32_t slot = entries.slot_of(id);
      const auto key = entries.key(slot);
      const auto value = entries.value(slot);
      std::copy(key.begin(), key.end(), rows.keys.begin() + std::ptrdiff_t(at(id, h)));
      std::copy(value.begin(), value.end(), rows.values.begin() + std::ptrdiff_t(at(id, h)));
    }
  }
  trip_ += round_trip(*method_.tier, rows);
  const auto length = static_cast<std::size_t>(d);
  for (std::int64_t h = 0; h < heads; ++h) {
    EntryTable& entries = heads_[static_cast<std::size_t>(h)].entries;
    for (std::int32_t id = 0; id < rows.tokens; ++id) {
      const std::int32_t slot = entries.slot_of(id);
      const auto key = std::span{rows.keys}.subspan(at(id, h), length);
      const auto value = std::span{rows.values}.subspan(at(id, h), length);
      std::copy(key.begin(), key.end(), entries.mutable_key(slot).begin());
      std::copy(value.begin(), value.end(), entries.mutable_value(slot).begin());
    }
  }
}

void CacheSession::rerotate_prompt() {
  // Kept tokens were appended in order of position, so that a slot is the rank.
  for (Head& head : heads_) {
    for (std::int32_t rank = 0; rank < head.entries.size(); ++rank) {
      place_.rope->rotate(head.entries.mutable_key(rank),
                          static_cast<std::int64_t>(rank) - head.entries.id(rank));
    }
  }
}

}  // namespace kvsim
