#pragma once

// References of the methods that select by attention rows: sets of positions, every row recomputed
// from the recorded vectors, and only the state that the method defines. For clarity, not speed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "models/math/counter_random.hpp"
#include "tests/support/vectors.hpp"

namespace kvsim::test {

using Positions = std::set<std::int32_t>;
using Row = std::map<std::int32_t, double>;

/// Raw logits of one query over `seen`.
inline Row reference_logits(const HeadVectors& head, std::int32_t g, std::int32_t t,
                            const Positions& seen) {
  Row row;
  for (const std::int32_t i : seen) {
    double sum = 0;
    for (std::int32_t j = 0; j < head.head_dim; ++j) {
      sum += static_cast<double>(head.query(g, t)[static_cast<std::size_t>(j)]) *
             static_cast<double>(head.key(i)[static_cast<std::size_t>(j)]);
    }
    row[i] = sum * head.scale;
  }
  return row;
}

inline Row reference_softmax(Row row) {
  double top = -std::numeric_limits<double>::infinity();
  for (const auto& [i, x] : row) top = std::max(top, x);
  double sum = 0;
  for (auto& [i, x] : row) sum += x = std::exp(x - top);
  for (auto& [i, x] : row) x /= sum;
  return row;
}

/// Probabilities of row t summed over the group and over `heads`.
inline Row reference_row(const std::vector<HeadVectors>& heads, std::int32_t t,
                         const Positions& seen) {
  Row sum;
  for (const HeadVectors& head : heads) {
    for (std::int32_t g = 0; g < head.group; ++g) {
      for (const auto& [i, p] : reference_softmax(reference_logits(head, g, t, seen))) sum[i] += p;
    }
  }
  return sum;
}

inline Positions up_to(std::int32_t t) {
  Positions all;
  for (std::int32_t i = 0; i <= t; ++i) all.insert(all.end(), i);
  return all;
}

/// Scores are sums of some hundred fp64 terms below 1: rounding is far below this.
inline constexpr double kTooClose = 1e-11;

/// Shared by all references: the kept set, and whether all choices so far are independent of
/// rounding (exact ties, which go to the older entry, are).
struct ReferenceKept {
  Positions kept;
  bool clear = true;

  /// Drops the lowest of `candidates` until `room` kept entries remain; among equals the newer is
  /// dropped first.
  void drop_lowest(const Row& score, const Positions& candidates, std::int64_t room) {
    const std::int64_t excess = std::ssize(kept) - room;
    if (excess <= 0) return;
    std::vector<std::int32_t> worst(candidates.begin(), candidates.end());
    const auto of = [&score](std::int32_t i) {
      const auto found = score.find(i);
      return found == score.end() ? 0.0 : found->second;
    };
    std::sort(worst.begin(), worst.end(), [&](std::int32_t a, std::int32_t b) {
      return of(a) < of(b) || (of(a) == of(b) && a > b);
    });
    const auto n = static_cast<std::size_t>(excess);
    if (n < worst.size()) {
      const double gap = of(worst[n]) - of(worst[n - 1]);
      if (gap != 0 && gap < kTooClose) clear = false;
    }
    for (std::size_t i = 0; i < n; ++i) kept.erase(worst.at(i));
  }
  [[nodiscard]] Positions older_than(std::int32_t position) const {
    return {kept.begin(), kept.lower_bound(position)};
  }
};

/// SnapKV, section 3.4 of the method catalogue.
struct ReferenceSnap : ReferenceKept {
  ReferenceSnap(const HeadVectors& head, std::int64_t cap, std::int32_t w, std::int32_t k,
                bool max) {
    const auto s = static_cast<std::int32_t>(head.prompt);
    kept = up_to(s - 1);
    if (s <= cap) return;
    if (cap <= w) {
      while (std::ssize(kept) > cap) kept.erase(kept.begin());
      return;
    }
    Row vote;
    for (std::int32_t t = s - w; t < s; ++t) {
      for (const auto& [i, p] : reference_row({head}, t, up_to(t))) vote[i] += p;
    }
    Row pooled;
    for (std::int32_t i = 0; i < s - w; ++i) {
      double largest = 0;
      double sum = 0;
      for (std::int32_t j = std::max(0, i - k / 2); j <= std::min(s - w - 1, i + k / 2); ++j) {
        largest = std::max(largest, vote[j]);
        sum += vote[j];
      }
      pooled[i] = max ? largest : sum / k;
    }
    drop_lowest(pooled, older_than(s - w), cap);
  }
  void step(std::int32_t t) { kept.insert(t); }
};

struct ReferenceMorphSettings {
  std::int64_t total = 0;
  std::int32_t window = 32;
  bool max = false;
  std::int64_t period = 1;
  double evict_after = 1;
  bool before = false;
  bool logits = false;
};

/// MorphKV with an aligned profile, section 2.5.
struct ReferenceMorph : ReferenceKept {
  ReferenceMorph(const HeadVectors& of, const ReferenceMorphSettings& settings)
      : head{of}, set{settings} {
    const auto s = static_cast<std::int32_t>(head.prompt);
    kept = up_to(s - 1);
    for (std::int32_t t = std::max(0, s - set.window); t < s; ++t) look(t, up_to(t));
    if (!set.before) cut(s - 1, set.total, 0);
  }
  void step(std::int32_t t) {
    kept.insert(t);
    const std::int64_t n = t - head.prompt + 1;
    const bool due =
        n % set.period == 0 &&
        static_cast<double>(kept.size()) >= set.evict_after * static_cast<double>(set.total + 1);
    if (set.before && due) cut(t, set.total + 1, 1);
    look(t, kept);
    if (!set.before && due) cut(t, set.total, 0);
  }
  void look(std::int32_t t, const Positions& seen) {
    if (set.logits) {
      Row sum;
      for (std::int32_t g = 0; g < head.group; ++g) {
        for (const auto& [i, x] : reference_logits(head, g, t, seen)) sum[i] += x;
      }
      rows.push_back(sum);
    } else {
      rows.push_back(reference_row({head}, t, seen));
    }
    if (std::ssize(rows) > set.window) rows.pop_front();
  }
  void cut(std::int32_t newest, std::int64_t room, std::int32_t more) {
    const auto window = static_cast<std::int32_t>(std::min<std::int64_t>(set.window, set.total));
    const Positions distant = older_than(newest - window - more + 1);
    Row fused;
    for (const Row& row : rows) {
      Row here;
      for (const std::int32_t i : distant) {
        if (row.contains(i)) here[i] = row.at(i);
      }
      if (set.logits) here = reference_softmax(here);
      for (const auto& [i, x] : here) fused[i] = set.max ? std::max(fused[i], x) : fused[i] + x;
    }
    drop_lowest(fused, distant, room);
  }
  HeadVectors head;
  ReferenceMorphSettings set;
  std::deque<Row> rows;
};

/// MorphKV with the released code's profile: a table per query head. Its columns are those of the
/// cache by rank until each head has pruned its own.
struct ReferenceDrift : ReferenceKept {
  using Column = std::deque<double>;  // the last R rows, oldest first
  ReferenceDrift(const HeadVectors& of, const ReferenceMorphSettings& settings)
      : head{of}, set{settings}, table(static_cast<std::size_t>(of.group)), hidden(table.size()) {
    const auto s = static_cast<std::int32_t>(head.prompt);
    for (std::int32_t t = 0; t < s; ++t) add(t);
    for (std::int32_t t = std::max(0, s - set.window); t < s; ++t) look(t, up_to(t));
    if (!set.before) cut(s - 1, set.total, 0);
  }
  void step(std::int32_t t) {
    for (Positions& each : hidden) each.clear();
    if (set.before) {
      // The new token has no column yet; it counts as an entry.
      if (std::ssize(kept) + 1 > set.total + 1) cut(t, set.total, 1);
      add(t);
      look(t, kept);
    } else {
      add(t);
      look(t, kept);
      cut(t, set.total, 0);
    }
  }
  void add(std::int32_t t) {
    kept.insert(t);
    const double nothing = set.logits ? -std::numeric_limits<double>::infinity() : 0.0;
    for (auto& columns : table) {
      columns.emplace_back(static_cast<std::size_t>(set.window), nothing);
    }
  }
  void look(std::int32_t t, const Positions& seen) {
    const double nothing = set.logits ? -std::numeric_limits<double>::infinity() : 0.0;
    for (std::size_t m = 0; m < table.size(); ++m) {
      Positions own = seen;
      for (const std::int32_t id : hidden[m]) own.erase(id);
      Row row = reference_logits(head, static_cast<std::int32_t>(m), t, own);
      if (!set.logits) row = reference_softmax(row);
      std::size_t rank = 0;
      for (const std::int32_t id : kept) {
        Column& column = table[m][rank++];
        column.push_back(row.contains(id) ? row.at(id) : nothing);
        column.pop_front();
      }
    }
  }
  /// Fused scores of the first columns, named by rank.
  [[nodiscard]] Row fuse(const std::vector<Column>& columns, std::size_t distant) const {
    Row fused;
    for (std::size_t r = 0; r < static_cast<std::size_t>(set.window); ++r) {
      Row here;
      for (std::size_t c = 0; c < distant; ++c) here[static_cast<std::int32_t>(c)] = columns[c][r];
      if (set.logits && std::all_of(here.begin(), here.end(),
                                    [](const auto& x) { return std::isinf(x.second); })) {
        continue;
      }
      if (set.logits) here = reference_softmax(here);
      for (const auto& [c, x] : here) fused[c] = set.max ? std::max(fused[c], x) : fused[c] + x;
    }
    return fused;
  }
  void cut(std::int32_t newest, std::int64_t room, std::int32_t more) {
    if (std::ssize(kept) <= room) return;
    const Positions distant = older_than(newest - set.window - more + 1);
    std::vector<Column> sum = table[0];
    for (std::size_t m = 1; m < table.size(); ++m) {
      for (std::size_t c = 0; c < sum.size(); ++c) {
        for (std::size_t r = 0; r < sum[c].size(); ++r) sum[c][r] += table[m][c][r];
      }
    }
    for (std::size_t m = 0; m < table.size(); ++m) {
      auto& columns = table[m];
      // Each head's own choice; ranks represent entries.
      ReferenceKept own;
      own.kept = up_to(static_cast<std::int32_t>(columns.size()) - 1);
      own.drop_lowest(fuse(columns, distant.size()),
                      up_to(static_cast<std::int32_t>(distant.size()) - 1), room);
      clear = clear && own.clear;
      std::int32_t at = 0;
      for (const std::int32_t id : kept) {  // before the step's attention: hidden from it
        if (!own.kept.contains(at++) && set.before) hidden[m].insert(id);
      }
      std::vector<Column> left;
      for (const std::int32_t c : own.kept) left.push_back(columns[static_cast<std::size_t>(c)]);
      columns = left;
    }
    const Row by_rank = fuse(sum, distant.size());
    Row score;
    std::int32_t rank = 0;
    for (const std::int32_t id : distant) score[id] = by_rank.at(rank++);
    drop_lowest(score, distant, room);
  }
  HeadVectors head;
  ReferenceMorphSettings set;
  std::vector<std::vector<Column>> table;  // [query head][column]
  std::vector<Positions> hidden;           // in this step, by query head
};

/// TOVA, section 4.2; all heads of a layer or one.
struct ReferenceTova : ReferenceKept {
  ReferenceTova(std::vector<HeadVectors> all, std::int64_t budget, bool protect_last)
      : heads{std::move(all)}, room{budget}, protect{protect_last} {
    const auto s = static_cast<std::int32_t>(heads.front().prompt);
    kept = up_to(s - 1);
    cut(s - 1);
  }
  void step(std::int32_t t) {
    kept.insert(t);
    cut(t);
  }
  void cut(std::int32_t t) {
    drop_lowest(reference_row(heads, t, kept), protect ? older_than(t) : kept, room);
  }
  std::vector<HeadVectors> heads;
  std::int64_t room;
  bool protect;
};

/// kvpress' observed attention, section 4.2.
struct ReferenceObserved : ReferenceKept {
  ReferenceObserved(const HeadVectors& head, std::int64_t budget) {
    const auto s = static_cast<std::int32_t>(head.prompt);
    Row sum;
    for (std::int32_t t = 0; t < s; ++t) {
      for (const auto& [i, p] : reference_row({head}, t, up_to(t))) sum[i] += p;
    }
    for (auto& [i, x] : sum) x /= s - i;
    kept = up_to(s - 1);
    drop_lowest(sum, kept, budget);
  }
  void step(std::int32_t t) { kept.insert(t); }
};

/// Scissorhands by counts, section 3.2. Counts tie often: all ties are exact.
struct ReferenceScissors : ReferenceKept {
  ReferenceScissors(const HeadVectors& of, std::int64_t B, std::int32_t r, std::int32_t w,
                    bool all_rows)
      : head{of}, budget{B}, recent{r}, history{w}, cumulative{all_rows} {
    const auto s = static_cast<std::int32_t>(head.prompt);
    for (std::int32_t t = 0; t < s; ++t) look(t, up_to(t));
    kept = up_to(s - 1);
    drop_lowest(minus_lows(), older_than(s - recent), budget);
  }
  void step(std::int32_t t) {
    if (std::ssize(kept) == budget) {
      drop_lowest(minus_lows(), older_than(t - recent), budget - budget / 2);
    }
    kept.insert(t);
    look(t, kept);
  }
  void look(std::int32_t t, const Positions& seen) {
    Positions lows;
    for (const auto& [i, p] : reference_row({head}, t, seen)) {
      const double mean = static_cast<double>(head.group) / static_cast<double>(seen.size());
      if (p < mean) lows.insert(i);
      if (std::abs(p - mean) < kTooClose && seen.size() > 1) clear = false;
    }
    rows.push_back(lows);
    if (!cumulative && std::ssize(rows) > history) rows.pop_front();
  }
  [[nodiscard]] Row minus_lows() const {
    Row score;
    for (const Positions& row : rows) {
      for (const std::int32_t i : row) score[i] -= 1;
    }
    return score;
  }
  HeadVectors head;
  std::int64_t budget;
  std::int32_t recent, history;
  bool cumulative;
  std::deque<Positions> rows;
};

/// Scissorhands' released simulation: pivotal rows instead of counts.
struct ReferencePivotal : ReferenceKept {
  ReferencePivotal(const HeadVectors& of, double q, std::int32_t w, std::int32_t r,
                   std::int32_t from)
      : head{of}, percentile{q}, history{w}, recent{r}, start{from} {
    const auto s = static_cast<std::int32_t>(head.prompt);
    for (std::int32_t t = 0; t < s; ++t) look(t, up_to(t));
    kept = up_to(s - 1);
    drop(s - 1);
  }
  void step(std::int32_t t) {
    kept.insert(t);
    look(t, kept);
    drop(t);
  }
  void look(std::int32_t t, const Positions& seen) {
    Positions pivotal;
    if (t >= start) {
      const Row row = reference_row({head}, t, seen);
      std::vector<double> sorted;
      for (const auto& [i, p] : row) sorted.push_back(p);
      std::sort(sorted.begin(), sorted.end());
      const double rank = percentile * static_cast<double>(sorted.size() - 1);
      const auto low = static_cast<std::size_t>(std::floor(rank));
      const auto high = static_cast<std::size_t>(std::ceil(rank));
      const double cut = sorted[low] + (rank - std::floor(rank)) * (sorted[high] - sorted[low]);
      for (const auto& [i, p] : row) {
        if (p > cut) pivotal.insert(i);
        if (p != cut && std::abs(p - cut) < kTooClose) clear = false;
      }
    }
    rows.push_back(pivotal);
    if (std::ssize(rows) > history) rows.pop_front();
  }
  void drop(std::int32_t t) {
    if (t < start) return;
    Positions stay;
    for (const std::int32_t i : kept) {
      const bool seen = std::any_of(rows.begin(), rows.end(),
                                    [i](const Positions& row) { return row.contains(i); });
      if (seen || i > t - recent) stay.insert(i);
    }
    kept = stay;
  }
  HeadVectors head;
  double percentile;
  std::int32_t history, recent, start;
  std::deque<Positions> rows;
};

struct ReferenceKeyformerSettings {
  std::int64_t budget = 0, recent = 0;
  double tau_init = 1, tau_end = 2;
  bool harness = false, noise = true;
  std::uint64_t seed = 0;
  std::int32_t layer = 0, first_query_head = 0;
};

/// Keyformer, section 3.5; all heads of a layer or one.
struct ReferenceKeyformer : ReferenceKept {
  ReferenceKeyformer(std::vector<HeadVectors> all, const ReferenceKeyformerSettings& settings)
      : heads{std::move(all)}, set{settings} {
    const auto s = static_cast<std::int32_t>(heads.front().prompt);
    for (std::int32_t t = 0; t < s; ++t) look(t, up_to(t), set.tau_init);
    kept = up_to(s - 1);
    cut(s - 1);
  }
  void step(std::int32_t t) {
    const HeadVectors& first = heads.front();
    kept.insert(t);
    const double steps = set.harness ? 1.0 : static_cast<double>(first.tokens - first.prompt);
    const double n = static_cast<double>(t - first.prompt + 1);
    look(t, kept, set.tau_init + n * ((set.tau_end - set.tau_init) / steps));
    cut(t);
  }
  void look(std::int32_t t, const Positions& seen, double tau) {
    std::int32_t query_head = set.first_query_head;
    for (const HeadVectors& head : heads) {
      for (std::int32_t g = 0; g < head.group; ++g, ++query_head) {
        Row row = reference_logits(head, g, t, seen);
        const std::uint64_t key =
            counter_key({set.seed, static_cast<std::uint64_t>(set.layer),
                         static_cast<std::uint64_t>(query_head), static_cast<std::uint64_t>(t)});
        for (auto& [i, x] : row) {
          const double u = counter_uniform(key, static_cast<std::uint64_t>(i));
          x = (x + (set.noise ? -std::log(-std::log(u)) : 0.0)) / tau;
        }
        for (const auto& [i, p] : reference_softmax(row)) score[i] += p;
      }
    }
  }
  void cut(std::int32_t t) {
    drop_lowest(score, older_than(t - static_cast<std::int32_t>(set.recent) + 1), set.budget);
  }
  std::vector<HeadVectors> heads;
  ReferenceKeyformerSettings set;
  Row score;
};

}  // namespace kvsim::test
