#pragma once

// References of the methods, in fp64 and in another style than the library's: ordered maps of
// tokens, everything recomputed from the recorded vectors at each step. For clarity, not speed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tests/support/vectors.hpp"

namespace kvsim::test {

using Vec = std::vector<double>;

inline Vec to_vec(std::span<const float> row) { return {row.begin(), row.end()}; }
inline double inner(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A kept entry: a token, or a slot of several tokens.
struct ReferenceEntry {
  Vec key, value;
  double score = 0;
  std::set<std::int32_t> members;
  bool slot = false;
};

struct ReferenceSettings {
  std::int64_t budget = 0;
  double decay = 1.0;
  std::int64_t tail_prompt = 0;  // last tokens kept when the prompt is compressed at once
  std::int64_t tail_decode = 0;  // protected at a decode step
  std::int64_t slots = 0;
  double alpha = 0.6;
  bool online = false;
};

/// Reference of H2O and ZeroMerge. Entries are keyed by their first token.
class ReferenceAccumulated {
 public:
  ReferenceAccumulated(const HeadVectors& head, const ReferenceSettings& settings)
      : head_{head}, set_{settings} {
    prefill();
  }

  /// Decode step at position t. Returns false if the choice at the cut was closer than 1e-6.
  bool step(std::int32_t t) {
    add(t, 0.0);
    std::map<std::int32_t, double> seen;
    for (std::int32_t g = 0; g < head_.group; ++g) {
      const Vec q = to_vec(query_of(head_, g, t));
      std::map<std::int32_t, double> weight;
      double sum = 0;
      for (const auto& [id, entry] : cache) {
        const double w = std::pow(static_cast<double>(entry.members.size()), set_.alpha) *
                         std::exp(inner(q, entry.key) * head_.scale);
        weight[id] = w;
        sum += w;
      }
      for (const auto& [id, w] : weight) seen[id] += w / sum;
    }
    for (auto& [id, entry] : cache) entry.score = set_.decay * entry.score + seen[id];
    return shrink(t);
  }

  std::vector<std::vector<std::int32_t>> kept() const {
    std::vector<std::vector<std::int32_t>> all;
    for (const auto& [id, entry] : cache)
      all.emplace_back(entry.members.begin(), entry.members.end());
    std::sort(all.begin(), all.end());
    return all;
  }

  std::map<std::int32_t, ReferenceEntry> cache;
  bool clear_prompt = true;  // the prompt's cut was not a near tie

 private:
  void add(std::int32_t t, double score) {
    cache[t] = {to_vec(row_of(head_.keys, t, head_.head_dim)),
                to_vec(row_of(head_.values, t, head_.head_dim)),
                score,
                {t},
                false};
  }

  void prefill() {
    const auto s = static_cast<std::int32_t>(head_.prompt);
    Vec score(static_cast<std::size_t>(s), 0.0);
    std::vector<std::int32_t> past;
    for (std::int32_t t = 0; t < s; ++t) {
      past.push_back(t);
      for (double& x : score) x *= set_.decay;
      for (std::int32_t g = 0; g < head_.group; ++g) {
        const auto p = naive_attention(head_, g, t, past);
        for (std::size_t i = 0; i < p.size(); ++i) score[i] += p[i];
      }
    }
    if (set_.online) {
      for (std::int32_t t = 0; t < s; ++t) {
        add(t, score[static_cast<std::size_t>(t)]);
        clear_prompt = shrink(t) && clear_prompt;
      }
      return;
    }
    for (std::int32_t t = 0; t < s; ++t) add(t, score[static_cast<std::size_t>(t)]);
    if (s <= set_.budget) {
      for (std::int32_t t = 0; t < std::min<std::int64_t>(set_.slots, s); ++t) cache[t].slot = true;
      return;
    }
    // Ranks entries older than the tail; ties go to the older entry.
    std::vector<std::int32_t> ranked;
    for (std::int32_t t = 0; t < s - set_.tail_prompt; ++t) ranked.push_back(t);
    std::stable_sort(ranked.begin(), ranked.end(), [&](auto a, auto b) {
      return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
    });
    const auto heavy = static_cast<std::size_t>(set_.budget - set_.slots - set_.tail_prompt);
    if (heavy > 0 && heavy < ranked.size()) {
      clear_prompt = score[static_cast<std::size_t>(ranked[heavy - 1])] -
                         score[static_cast<std::size_t>(ranked[heavy])] >
                     1e-6;
    }
    std::vector<std::int32_t> lost(ranked.begin() + static_cast<std::ptrdiff_t>(heavy),
                                   ranked.end());
    std::sort(lost.begin(), lost.end());
    const std::size_t runs = std::min(lost.size(), static_cast<std::size_t>(set_.slots));
    std::size_t at = 0;
    for (std::size_t run = 0; run < runs; ++run) {
      const std::size_t length = lost.size() / runs + (run < lost.size() % runs ? 1 : 0);
      ReferenceEntry slot = cache[lost[at]];
      slot.slot = true;
      for (std::size_t i = 1; i < length; ++i) take_in(slot, cache[lost[at + i]]);
      for (std::size_t i = 0; i < length; ++i) cache.erase(lost[at + i]);
      cache[lost[at]] = slot;
      at += length;
    }
    if (set_.slots == 0) {
      for (const auto id : lost) cache.erase(id);
    }
  }

  static void take_in(ReferenceEntry& slot, const ReferenceEntry& token) {
    const auto w = static_cast<double>(slot.members.size());
    for (std::size_t j = 0; j < slot.key.size(); ++j) {
      slot.key[j] = (w * slot.key[j] + token.key[j]) / (w + 1);
      slot.value[j] = (w * slot.value[j] + token.value[j]) / (w + 1);
    }
    slot.members.insert(token.members.begin(), token.members.end());
    slot.score = std::max(slot.score, token.score);
  }

  bool shrink(std::int32_t newest) {
    bool clear = true;
    while (true) {
      std::int64_t tokens = 0;
      for (const auto& [id, entry] : cache) tokens += entry.slot ? 0 : 1;
      if (tokens <= set_.budget - set_.slots) return clear;
      std::int32_t worst = -1;
      double lowest = std::numeric_limits<double>::infinity();
      double second = lowest;
      for (const auto& [id, entry] : cache) {
        if (entry.slot || id > newest - set_.tail_decode) continue;
        if (entry.score <= lowest) {
          second = lowest;
          lowest = entry.score;
          worst = id;
        } else {
          second = std::min(second, entry.score);
        }
      }
      clear = clear && second - lowest > 1e-6;
      ReferenceEntry leaving = cache.at(worst);
      cache.erase(worst);
      if (set_.slots == 0) continue;
      std::vector<std::int32_t> slots;
      for (const auto& [id, entry] : cache) {
        if (entry.slot) slots.push_back(id);
      }
      if (std::ssize(slots) < set_.slots) {
        leaving.slot = true;
        cache[worst] = leaving;
        continue;
      }
      std::int32_t best = slots.front();
      for (const auto id : slots) {
        if (inner(cache[id].key, leaving.key) > inner(cache[best].key, leaving.key)) best = id;
      }
      ReferenceEntry slot = cache[best];
      take_in(slot, leaving);
      cache.erase(best);
      cache[*slot.members.begin()] = slot;
    }
  }

  HeadVectors head_;
  ReferenceSettings set_;
};

}  // namespace kvsim::test
