#include "models/methods/session.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "models/units/check.hpp"

namespace kvsim {

HeadSession::HeadSession(const ComposedMethod& method, const SessionPlace& place)
    : method_{method.parts()},
      place_{place},
      selector_{method_.select->start(place.tokens)},
      merger_{method_.merge->start()},
      attention_{place.group, place.head_dim, place.scale},
      entries_{place.head_dim},
      budget_{static_cast<std::int32_t>(std::min<std::int64_t>(
          method_.budget->entries(place.layer), std::numeric_limits<std::int32_t>::max()))} {
  KVSIM_CHECK(!method_.rerotate || place.rope != nullptr, "\"{}\" needs the rotary embedding",
              method_.name);
  entries_.reserve(std::min(place.tokens, budget_) + 1);
}

void HeadSession::prefill(std::span<const float> keys, std::span<const float> values,
                          PromptScores& scores) {
  const auto d = static_cast<std::size_t>(place_.head_dim);
  const auto prompt = static_cast<std::int32_t>(keys.size() / d);
  KVSIM_CHECK(newest_ < 0 && prompt >= 1, "prefill of {} tokens after token {}", prompt, newest_);
  selector_->learn_prompt(scores);
  const auto row = [d](std::span<const float> rows, std::int32_t id) {
    return rows.subspan(static_cast<std::size_t>(id) * d, d);
  };
  if (method_.merge->prompt_one_by_one()) {
    for (std::int32_t id = 0; id < prompt; ++id) {
      append(id, row(keys, id), row(values, id));
      compress();
    }
    return;
  }
  if (prompt <= budget_) {
    for (std::int32_t id = 0; id < prompt; ++id) append(id, row(keys, id), row(values, id));
    merger_->prompt_fits(entries_);
    return;
  }
  const auto tokens = budget_ - static_cast<std::int32_t>(method_.merge->slots());
  const std::vector<std::int32_t> kept = selector_->plan(prompt, tokens);
  std::vector<std::int32_t> losers;
  losers.reserve(static_cast<std::size_t>(prompt - tokens));
  auto next = kept.begin();
  for (std::int32_t id = 0; id < prompt; ++id) {
    if (next != kept.end() && *next == id) {
      append(id, row(keys, id), row(values, id));
      ++next;
    } else {
      losers.push_back(id);
    }
  }
  newest_ = prompt - 1;
  merger_->absorb_prompt(entries_, *selector_, losers, keys, values);
  round_merged();
}

const GroupAttention& HeadSession::step(std::span<const float> q, std::span<const float> key,
                                        std::span<const float> value) {
  append(newest_ + 1, key, value);
  attend(q);
  if (method_.select->needs().decode_rows) {
    selector_->observe({.ids = entries_.ids(), .group_sum = attention_.group_sum()});
  }
  compress();
  return attention_;
}

void HeadSession::append(std::int32_t id, std::span<const float> key,
                         std::span<const float> value) {
  const std::int32_t slot = entries_.append(id, key, value);
  if (method_.store->rounds()) {
    method_.store->write(entries_.mutable_key(slot));
    method_.store->write(entries_.mutable_value(slot));
  }
  newest_ = id;
}

void HeadSession::compress() {
  compressed_ = false;
  const auto tokens = budget_ - static_cast<std::int32_t>(method_.merge->slots());
  while (entries_.token_size() > tokens) {
    merger_->absorb(entries_, *selector_, selector_->victim(entries_, newest_));
    compressed_ = true;
  }
  if (compressed_) round_merged();
}

void HeadSession::round_merged() {
  if (!method_.store->rounds()) return;
  for (const std::int32_t slot : entries_.merged_slots()) {
    method_.store->write(entries_.mutable_key(slot));
    method_.store->write(entries_.mutable_value(slot));
  }
}

void HeadSession::attend(std::span<const float> q) {
  bias_.clear();
  if (entries_.merged_size() > 0) {
    for (std::int32_t slot = 0; slot < entries_.size(); ++slot) {
      bias_.push_back(method_.merge->bias(entries_.count(slot)));
    }
  }
  if (!method_.rerotate) {
    attention_.run(q, entries_.keys(), entries_.values(), bias_);
    return;
  }
  // Every key takes the position of its rank in the cache, the query that of the last.
  const auto d = static_cast<std::size_t>(place_.head_dim);
  const auto n = static_cast<std::size_t>(entries_.size());
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [this](std::int32_t a, std::int32_t b) { return entries_.id(a) < entries_.id(b); });
  rotated_keys_.assign(entries_.keys().begin(), entries_.keys().end());
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::int32_t slot = order[rank];
    place_.rope->rotate(std::span{rotated_keys_}.subspan(static_cast<std::size_t>(slot) * d, d),
                        static_cast<std::int64_t>(rank) - entries_.id(slot));
  }
  rotated_q_.assign(q.begin(), q.end());
  for (std::int32_t g = 0; g < place_.group; ++g) {
    place_.rope->rotate(std::span{rotated_q_}.subspan(static_cast<std::size_t>(g) * d, d),
                        static_cast<std::int64_t>(n) - 1 - newest_);
  }
  attention_.run(rotated_q_, rotated_keys_, entries_.values(), bias_);
}

std::vector<std::vector<std::int32_t>> HeadSession::kept() const {
  std::vector<std::vector<std::int32_t>> all;
  for (std::int32_t slot = 0; slot < entries_.size(); ++slot) all.push_back(entries_.members(slot));
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace kvsim
