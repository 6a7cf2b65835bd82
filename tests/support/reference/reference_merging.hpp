#pragma once

// References of the merging methods: maps of entries, sums as printed, nothing in the log domain.
// Exponentials are long doubles, which hold e^-11,000 to e^11,000. Each step reports whether it was
// clear: no choice depended on less than 1e-6.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/math/counter_random.hpp"
#include "tests/support/reference/reference_methods.hpp"

namespace kvsim::test {

inline double reference_cosine(const Vec& a, const Vec& b) {
  const double norms = std::sqrt(inner(a, a)) * std::sqrt(inner(b, b));
  return norms > 0 ? inner(a, b) / norms : 0.0;
}
inline Vec as_stored(Vec row) {  // rows of the cache are fp32
  for (double& x : row) x = static_cast<double>(static_cast<float>(x));
  return row;
}

struct ReferenceMember {
  Vec key, value;
  long double score = 0;  // KeepKV: S of eq. (8); D2O: accumulated attention
  std::int32_t age = 0;   // samples in S
  double votes = 1;
  double low = 1, high = 1;
  std::set<std::int32_t> members;
};
using ReferenceCache = std::map<std::int32_t, ReferenceMember>;

inline std::vector<std::vector<std::int32_t>> reference_kept(const ReferenceCache& cache) {
  std::vector<std::vector<std::int32_t>> all;
  for (const auto& [id, entry] : cache)
    all.emplace_back(entry.members.begin(), entry.members.end());
  std::sort(all.begin(), all.end());
  return all;
}

/// Shared by all merging methods: a cache of tokens, their attention, the search for a partner.
class ReferenceMerging {
 public:
  explicit ReferenceMerging(const HeadVectors& head) : head_{head} {}
  ReferenceCache cache;
  bool clear = true;
  std::int32_t merged = 0, dropped = 0;

 protected:
  static constexpr double kClear = 1e-6;

  void add(std::int32_t t) {
    ReferenceMember token;
    token.key = to_vec(head_.key(t));
    token.value = to_vec(head_.value(t));
    token.members = {t};
    cache[t] = token;
  }
  Vec query(std::int32_t g, std::int32_t t) const { return to_vec(head_.query(g, t)); }
  /// e^(scale q.k) of every entry, without votes.
  std::map<std::int32_t, long double> exponentials(std::int32_t g, std::int32_t t) const {
    std::map<std::int32_t, long double> all;
    const Vec q = query(g, t);
    for (const auto& [id, entry] : cache) {
      all[id] = std::exp(static_cast<long double>(inner(q, entry.key) * head_.scale));
    }
    return all;
  }
  /// Members of `ids` to remove so that `room` entries of the cache remain; an entry with infinite
  /// `score` stays.
  std::vector<std::int32_t> lowest(std::int64_t room,
                                   const std::function<long double(std::int32_t)>& score) {
    std::vector<std::pair<long double, std::int32_t>> ranked;
    for (const auto& [id, entry] : cache) {
      if (std::isfinite(score(id))) ranked.emplace_back(score(id), -id);
    }
    std::sort(ranked.begin(), ranked.end());
    const std::int64_t excess = std::ssize(cache) - room;
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < excess; ++i) {
      out.push_back(-ranked[static_cast<std::size_t>(i)].second);
    }
    if (excess > 0 && excess < std::ssize(ranked)) {
      const long double last = ranked[static_cast<std::size_t>(excess) - 1].first;
      const long double next = ranked[static_cast<std::size_t>(excess)].first;
      if (next - last < kClear * std::abs(next)) clear = false;
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  /// The remaining entry whose key is most similar to that of `id`.
  std::pair<std::int32_t, double> partner(std::int32_t id, const std::set<std::int32_t>& leaving) {
    std::int32_t best = -1;
    double highest = -2;
    double second = -2;
    for (const auto& [other, entry] : cache) {
      if (leaving.contains(other)) continue;
      const double cosine = reference_cosine(cache[id].key, entry.key);
      if (cosine > highest) {
        second = highest;
        highest = cosine;
        best = other;
      } else {
        second = std::max(second, cosine);
      }
    }
    if (highest - second < kClear) clear = false;
    return {best, highest};
  }

  HeadVectors head_;
};

struct ReferenceKeepKvSettings {
  std::int64_t budget = 0, recent = 0, sinks = 4;
  std::int32_t window = 8;
  double alpha = 0.9, threshold = 0.8;
  std::string rule = "zip_guarded";
  bool cumulative = false;
};

class ReferenceKeepKv : public ReferenceMerging {
 public:
  ReferenceKeepKv(const HeadVectors& head, const ReferenceKeepKvSettings& settings)
      : ReferenceMerging{head}, set_{settings} {
    const auto s = static_cast<std::int32_t>(head.prompt);
    const std::int32_t first = std::max(0, s - set_.window - 1);
    std::map<std::int32_t, double> prompt_score;
    for (std::int32_t t = 0; t < s; ++t) {
      add(t);
      if (t < first) continue;
      sample(t);
      const double lin = s - 1 > first ? 1.0 + 0.2 * (t - first) / (s - 1.0 - first) : 1.0;
      for (std::int32_t g = 0; g < head_.group; ++g) {
        const auto e = exponentials(g, t);
        long double sum = 0;
        for (const auto& [id, x] : e) sum += x;
        for (const auto& [id, x] : e) prompt_score[id] += lin * static_cast<double>(x / sum);
      }
    }
    newest_ = s - 1;
    let_go(lowest(std::max<std::int64_t>(set_.budget, 0),
                  [&](std::int32_t id) { return is_protected(id) ? INFINITY : prompt_score[id]; }));
  }
  /// Returns every query head's output over the cache with the new token, then merges.
  std::vector<Vec> step(std::int32_t t) {
    add(t);
    newest_ = t;
    std::vector<Vec> outs;
    for (std::int32_t g = 0; g < head_.group; ++g) {
      Vec out(cache.begin()->second.value.size(), 0.0);
      const auto all = exponentials(g, t);
      long double sum = 0;
      for (const auto& [id, x] : all) sum += cache[id].votes * x;
      for (const auto& [id, x] : all) {
        const auto w = static_cast<double>(cache[id].votes * x / sum);
        for (std::size_t j = 0; j < out.size(); ++j) out[j] += w * cache[id].value[j];
      }
      outs.push_back(out);
    }
    sample(t);
    let_go(lowest(set_.budget,
                  [&](std::int32_t id) { return is_protected(id) ? INFINITY : estimate(id); }));
    return outs;
  }
  long double estimate(std::int32_t id) {
    return cache[id].score / (1.0L - std::pow(set_.alpha, cache[id].age));
  }
  std::int32_t fallbacks = 0;

 private:
  bool is_protected(std::int32_t id) const { return id < set_.sinks || id > newest_ - set_.recent; }
  void sample(std::int32_t t) {
    std::map<std::int32_t, long double> mean;
    for (std::int32_t g = 0; g < head_.group; ++g) {
      for (const auto& [id, x] : exponentials(g, t)) mean[id] += x / head_.group;
    }
    for (const auto& [id, x] : mean) {
      cache[id].score = set_.alpha * cache[id].score + (1.0 - set_.alpha) * x;
      ++cache[id].age;
    }
  }
  void let_go(const std::vector<std::int32_t>& leaving) {
    std::map<std::int32_t, std::vector<std::int32_t>> joins;
    const std::set<std::int32_t> all(leaving.begin(), leaving.end());
    std::vector<std::int32_t> lost;
    for (const std::int32_t id : leaving) {
      const auto [into, cosine] = partner(id, all);
      if (std::abs(cosine - set_.threshold) < kClear) clear = false;
      if (cosine >= set_.threshold) {
        joins[into].push_back(id);
      } else {
        lost.push_back(id);
      }
    }
    for (const auto& [into, from] : joins) merge(into, from);
    for (const std::int32_t id : lost) {
      dropped += static_cast<std::int32_t>(cache[id].members.size());
      cache.erase(id);
    }
  }
  void merge(std::int32_t into, const std::vector<std::int32_t>& from) {
    std::vector<std::int32_t> ids{into};
    ids.insert(ids.end(), from.begin(), from.end());
    const std::size_t d = cache[into].key.size();
    Vec key(d, 0.0);
    Vec value(d, 0.0);
    long double w_sum = 0;
    double p_sum = 0;
    long double wl_sum = 0;
    double low = INFINITY;
    double high = 0;
    for (const std::int32_t id : ids) {
      const ReferenceMember& m = cache[id];
      const long double w = m.votes * estimate(id);
      w_sum += w;
      p_sum += m.votes;
      wl_sum += w * std::log(estimate(id));
      low = std::min(low, m.low);
      high = std::max(high, m.high);
    }
    for (const std::int32_t id : ids) {
      const auto share = static_cast<double>(cache[id].votes * estimate(id) / w_sum);
      for (std::size_t j = 0; j < d; ++j) {
        key[j] += share * cache[id].key[j];
        value[j] += share * cache[id].value[j];
      }
    }
    const auto l_mean = static_cast<double>(wl_sum / w_sum);
    const auto l_r = static_cast<double>(std::log(w_sum / p_sum));
    const double c = l_r / l_mean;
    double votes = p_sum;
    long double estimated = w_sum / p_sum;
    double used = 1;
    bool real = set_.rule == "real_votes";
    if (set_.rule == "zip") used = c;
    if (set_.rule == "zip_guarded") {
      for (const double edge : {0.5, 2.0}) {
        if (std::abs(c - edge) < kClear) clear = false;
      }
      bool tame = std::abs(l_mean) >= 1e-3 && c >= 0.5 && c <= 2;
      if (set_.cumulative) tame = tame && low * c >= 0.5 && high * c <= 2;
      if (tame) {
        used = c;
      } else {
        real = true;
        ++fallbacks;
      }
    }
    if (real) {
      votes = p_sum * std::exp(l_r - l_mean);
      estimated = std::exp(static_cast<long double>(l_mean));
    }
    for (double& x : key) x *= used;
    if (set_.rule == "additive_q") {
      Vec q(d, 0.0);
      for (std::int32_t g = 0; g < head_.group; ++g) {
        const Vec one = query(g, newest_);
        for (std::size_t j = 0; j < d; ++j) q[j] += one[j] / head_.group;
      }
      for (std::size_t j = 0; j < d; ++j) {
        key[j] += (l_r - l_mean) * q[j] / (head_.scale * inner(q, q));
      }
    }
    ReferenceMember& target = cache[into];
    target.key = as_stored(key);
    target.value = as_stored(value);
    target.votes = votes;
    target.score = estimated * (1.0L - std::pow(set_.alpha, target.age));
    target.low = std::min(low * used, high * used);
    target.high = std::max(low * used, high * used);
    for (const std::int32_t id : from) {
      target.members.insert(cache[id].members.begin(), cache[id].members.end());
      cache.erase(id);
      ++merged;
    }
  }

  ReferenceKeepKvSettings set_;
  std::int32_t newest_ = 0;
};

/// D2O's merge under H2O's scores; `late`: the prompt is not compressed before the end of the first
/// step.
class ReferenceD2o : public ReferenceMerging {
 public:
  ReferenceD2o(const HeadVectors& head, std::int64_t budget, std::int64_t sinks, bool late,
               bool code)
      : ReferenceMerging{head}, budget_{budget}, sinks_{sinks}, code_{code} {
    const auto s = static_cast<std::int32_t>(head.prompt);
    for (std::int32_t t = 0; t < s; ++t) take_in(t);
    if (!late) shrink(s - 1);
  }
  void step(std::int32_t t) {
    take_in(t);
    shrink(t);
  }
  std::optional<double> threshold;

  // The parts of a step, for a gate that compares several heads.
  struct Loser {
    std::int32_t id, into;
    double cosine;
  };
  void take_in(std::int32_t t) {
    add(t);
    for (std::int32_t g = 0; g < head_.group; ++g) {
      const auto e = exponentials(g, t);
      long double sum = 0;
      for (const auto& [id, x] : e) sum += x;
      for (const auto& [id, x] : e) cache[id].score += x / sum;
    }
  }
  /// Entries that must leave, by position, each with the remaining entry that has the most similar
  /// key.
  std::vector<Loser> losers(std::int32_t newest) {
    const std::int64_t recent = budget_ - budget_ / 2;
    const auto leaving = lowest(budget_, [&](std::int32_t id) {
      return id < sinks_ || id > newest - recent ? INFINITY : cache[id].score;
    });
    const std::set<std::int32_t> all(leaving.begin(), leaving.end());
    std::vector<Loser> out;
    for (const std::int32_t id : leaving) {
      const auto [into, cosine] = partner(id, all);
      out.push_back({id, into, cosine});
    }
    return out;
  }
  /// The leaving entries: those with an open gate merge into their partners, the others are
  /// dropped.
  void let_go(const std::vector<Loser>& losers, const std::vector<bool>& open) {
    std::map<std::int32_t, std::vector<Loser>> joins;
    for (std::size_t i = 0; i < losers.size(); ++i) {
      if (open[i]) joins[losers[i].into].push_back(losers[i]);
    }
    for (const auto& [into, from] : joins) {
      ReferenceMember& target = cache[into];
      const double e = std::exp(1.0);
      double total = code_ ? 1.0 + static_cast<double>(from.size()) : e;
      if (!code_) {
        for (const Loser& each : from) total += std::exp(each.cosine);
      }
      for (std::size_t j = 0; j < target.key.size(); ++j) {
        double k = (code_ ? 1.0 : e) * target.key[j];
        double v = (code_ ? 1.0 : e) * target.value[j];
        for (const Loser& each : from) {
          const double w = code_ ? each.cosine : std::exp(each.cosine);
          k += w * cache[each.id].key[j];
          v += w * cache[each.id].value[j];
        }
        target.key[j] = k / total;
        target.value[j] = v / total;
      }
      target.key = as_stored(target.key);
      target.value = as_stored(target.value);
      for (const Loser& each : from) {
        target.members.insert(cache[each.id].members.begin(), cache[each.id].members.end());
        ++merged;
      }
    }
    for (const Loser& each : losers) cache.erase(each.id);
  }

 private:
  void shrink(std::int32_t newest) {
    const auto leaving = losers(newest);
    if (leaving.empty()) return;
    double mean = 0;
    for (const Loser& each : leaving) mean += each.cosine / static_cast<double>(leaving.size());
    threshold = threshold ? 0.5 * *threshold + 0.5 * mean : mean;
    std::vector<bool> open;
    for (const Loser& each : leaving) {
      // A single entry is compared with a threshold that it defines: at first both are equal in
      // exact arithmetic.
      if (std::abs(each.cosine - *threshold) < kClear) clear = false;
      open.push_back(each.cosine >= *threshold);
    }
    let_go(leaving, open);
  }
  std::int64_t budget_, sinks_;
  bool code_;
};

/// D2O's gate=rank_mean over a layer: whether the n-th leaving entry of a head may merge depends on
/// the mean, over heads, of the similarities of their n-th leaving entries. One threshold tracks
/// these means.
class ReferenceD2oRanks {
 public:
  ReferenceD2oRanks(const std::vector<HeadVectors>& of_layer, std::int64_t budget,
                    std::int64_t sinks, bool late, bool code) {
    // Each head first holds its whole prompt, then the layer shrinks.
    for (const HeadVectors& head : of_layer) heads.emplace_back(head, budget, sinks, true, code);
    if (!late) shrink(static_cast<std::int32_t>(of_layer.front().prompt) - 1);
  }
  void step(std::int32_t t) {
    for (ReferenceD2o& head : heads) head.take_in(t);
    shrink(t);
  }
  bool clear() const {
    return own_clear_ && std::all_of(heads.begin(), heads.end(),
                                     [](const ReferenceD2o& head) { return head.clear; });
  }
  std::vector<ReferenceD2o> heads;
  std::int32_t against = 0;  // entries whose own similarity would have decided differently

 private:
  void shrink(std::int32_t newest) {
    std::vector<std::vector<ReferenceD2o::Loser>> losers;
    for (ReferenceD2o& head : heads) losers.push_back(head.losers(newest));
    const std::size_t ranks = losers.front().size();
    if (ranks == 0) return;
    Vec by_rank(ranks, 0.0);
    double all = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const auto& of_head : losers) by_rank[rank] += of_head.at(rank).cosine;
      by_rank[rank] /= static_cast<double>(heads.size());
      all += by_rank[rank];
    }
    const double now = all / static_cast<double>(ranks);
    threshold_ = threshold_ ? (*threshold_ + now) / 2 : now;
    std::vector<bool> open;
    for (const double mean : by_rank) {
      if (std::abs(mean - *threshold_) < 1e-6) own_clear_ = false;
      open.push_back(mean >= *threshold_);
    }
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        against += (losers[h][rank].cosine >= *threshold_) != open[rank] ? 1 : 0;
      }
      heads[h].let_go(losers[h], open);
    }
  }
  std::optional<double> threshold_;
  bool own_clear_ = true;
};

/// CaM over first and recent tokens, with the prompt fed token by token.
class ReferenceCam : public ReferenceMerging {
 public:
  ReferenceCam(const HeadVectors& head, std::int64_t budget, bool cumulative, bool expectation)
      : ReferenceMerging{head},
        budget_{budget},
        cumulative_{cumulative},
        expectation_{expectation} {
    for (std::int32_t t = 0; t < head.prompt; ++t) step(t);
  }
  void step(std::int32_t t) {
    add(t);
    if (!cumulative_) seen_.clear();
    for (std::int32_t g = 0; g < head_.group; ++g) {
      const auto e = exponentials(g, t);
      long double sum = 0;
      for (const auto& [id, x] : e) sum += x;
      for (const auto& [id, x] : e) seen_[id] += static_cast<double>(x / sum) / head_.group;
    }
    if (std::ssize(cache) <= budget_) return;
    const std::int64_t start = budget_ / 2;
    const std::int64_t recent = budget_ - start;
    const auto victim = static_cast<std::int32_t>(t - recent);
    const auto m = static_cast<std::int32_t>(std::min<std::int64_t>(32, recent));
    double mean = 0;
    for (std::int32_t k = victim + 1; k <= victim + m; ++k) mean += seen_[k] / m;
    const double p = std::clamp(seen_[victim] / mean, 0.0, 1.0);
    double share = p;
    if (!expectation_) {
      const double u = counter_uniform(counter_key({0, 0, 0, static_cast<std::uint64_t>(t)}),
                                       static_cast<std::uint64_t>(victim));
      if (std::abs(u - p) < kClear) clear = false;
      share = u < p ? 1.0 : 0.0;
    }
    if (share > 0) ++merged;
    for (std::int32_t k = victim + 1; k <= victim + m; ++k) {
      for (std::size_t j = 0; j < cache[k].value.size(); ++j) {
        cache[k].value[j] += share * cache[victim].value[j] / m;
      }
      cache[k].value = as_stored(cache[k].value);
    }
    cache.erase(victim);
  }

 private:
  std::int64_t budget_;
  bool cumulative_, expectation_;
  std::map<std::int32_t, double> seen_;
};

}  // namespace kvsim::test
