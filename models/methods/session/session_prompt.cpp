// Processing of a prompt before and after its compression: reused rows, partial attention, the
// round trip through a tier, positions.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "models/methods/session/session.hpp"
#include "models/units/check.hpp"

namespace kvsim {

namespace {

/// Computes the causal attention of the query at `t`: out [d].
void attend_row(std::span<const float> q, std::span<const float> keys,
                std::span<const float> values, std::int64_t t, double scale,
                std::vector<double>& weights, std::vector<double>& out) {
  const std::size_t d = q.size();
  weights.resize(static_cast<std::size_t>(t) + 1);
  double max = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < d; ++c) {
      sum += static_cast<double>(q[c]) * static_cast<double>(keys[i * d + c]);
    }
    weights[i] = scale * sum;
    max = std::max(max, weights[i]);
  }
  double total = 0;
  for (double& w : weights) total += w = std::exp(w - max);
  out.assign(d, 0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t c = 0; c < d; ++c) {
      out[c] += weights[i] / total * static_cast<double>(values[i * d + c]);
    }
  }
}

}  // namespace

void CacheSession::blend_prompt() {
  if (method_.prefill->part(place_.layer).computed == 1) return;
  for (Head& head : heads_) {
    const auto d = static_cast<std::size_t>(head.vectors.head_dim);
    KVSIM_CHECK(!head.vectors.reused_keys.empty(), "\"{}\" without reused rows", method_.name);
    auto computed = computed_.begin();
    for (std::int32_t id = 0; id < head.vectors.prompt; ++id) {
      if (computed != computed_.end() && *computed == id) {
        ++computed;
        continue;
      }
      const std::int32_t slot = head.entries.slot_of(id);
      const auto at = static_cast<std::size_t>(id) * d;
      const auto place = [&](std::span<const float> rows, std::span<float> to) {
        const std::span<const float> row = rows.subspan(at, d);
        std::copy(row.begin(), row.end(), to.begin());
      };
      place(head.vectors.reused_keys, head.entries.mutable_key(slot));
      place(head.vectors.reused_values, head.entries.mutable_value(slot));
    }
  }
}

/// Computes the outputs of the computed tokens over the rows of all tokens.
void CacheSession::attend_blended(const Head& head) {
  const HeadVectors& of = head.vectors;
  const auto d = static_cast<std::size_t>(of.head_dim);
  const auto rows = static_cast<std::size_t>(of.prompt);
  std::vector<float> keys(rows * d), values(rows * d);
  for (std::int32_t id = 0; id < of.prompt; ++id) {
    const std::int32_t slot = head.entries.slot_of(id);
    const auto at = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(id) * d);
    const auto key = head.entries.key(slot);
    const auto value = head.entries.value(slot);
    std::copy(key.begin(), key.end(), keys.begin() + at);
    std::copy(value.begin(), value.end(), values.begin() + at);
  }
  const bool all = method_.prefill->part(place_.layer).computed == 1;
  std::vector<double> weights, whole, blended;
  for (std::int32_t g = 0; g < of.group; ++g) {
    PrefillOutcome out;
    const auto add = [&](std::int64_t t) {
      attend_row(of.query(g, t), of.keys, of.values, t, of.scale, weights, whole);
      attend_row(of.query(g, t), keys, values, t, of.scale, weights, blended);
      double off = 0, norm = 0;
      for (std::size_t c = 0; c < d; ++c) {
        off += (blended[c] - whole[c]) * (blended[c] - whole[c]);
        norm += whole[c] * whole[c];
      }
      out.error += norm > 0 ? std::sqrt(off / norm) : (off > 0 ? 1.0 : 0.0);
      out.pairs += static_cast<double>(t + 1);
      out.mass += 1;  // every key is attended to
      ++out.rows;
    };
    if (all) {
      for (std::int64_t t = 0; t < of.prompt; ++t) add(t);
    } else {
      for (const std::int32_t t : computed_) add(t);
    }
    out.causal_pairs = static_cast<double>(of.prompt) * static_cast<double>(of.prompt + 1) / 2;
    out.flops = 4 * out.pairs * of.head_dim;
    out.full_flops = 4 * out.causal_pairs * of.head_dim;
    prefill_outcome_ += out;
  }
}

void CacheSession::attend_prompt() {
  if (method_.prefill->check_layer()) {
    for (const Head& head : heads_) attend_blended(head);
    return;
  }
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
  // Kept tokens were appended in order of position, so the slot is the rank.
  for (Head& head : heads_) {
    for (std::int32_t rank = 0; rank < head.entries.size(); ++rank) {
      place_.rope->rotate(head.entries.mutable_key(rank),
                          static_cast<std::int64_t>(rank) - head.entries.id(rank));
    }
  }
}

}  // namespace kvsim
