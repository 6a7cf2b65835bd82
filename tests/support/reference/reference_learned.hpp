#pragma once

// References of the oracles, the delayed judgements and PyramidInfer: maps and loops over recorded
// vectors, fp64, sharing only the views with the library. For clarity, not speed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "models/methods/view/vectors.hpp"
#include "tests/support/reference/reference_methods.hpp"
#include "tests/support/vectors.hpp"
#include "traces/trace.hpp"

namespace kvsim::test {

/// A trace in memory, by layer.
struct WholeTrace {
  explicit WholeTrace(const Trace& trace) : info{trace.info()} {
    for (std::int32_t l = 0; l < info.n_layers; ++l) {
      rows.push_back(trace.read_layer(l));
      hidden.push_back(info.has_hidden ? trace.read_hidden(l) : std::vector<float>{});
      wo.push_back(info.has_output_projection ? trace.read_output_projection(l)
                                              : std::vector<float>{});
    }
  }
  [[nodiscard]] HeadVectors head(std::int32_t layer, std::int32_t h) const {
    const TraceLayer& r = rows[static_cast<std::size_t>(layer)];
    const std::int32_t group = info.n_heads / info.n_kv_heads;
    const auto row = static_cast<std::size_t>(info.tokens * info.head_dim);
    const auto at = static_cast<std::size_t>(h);
    const auto g = static_cast<std::size_t>(group);
    return {.q = std::span{r.q}.subspan(at * g * row, g * row),
            .keys = std::span{r.k}.subspan(at * row, row),
            .values = std::span{r.v}.subspan(at * row, row),
            .group = group,
            .head_dim = info.head_dim,
            .tokens = info.tokens,
            .prompt = info.prompt_tokens,
            .scale = info.softmax_scale};
  }
  TraceInfo info;
  std::vector<TraceLayer> rows;
  std::vector<std::vector<float>> hidden, wo;
  /// |W_O v| by (layer, query head, token), computed once.
  mutable std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, double> lengths;
};

/// Scores of KVzip or KVzip+ by token; tokens without a score are missing.
inline std::map<std::int32_t, double> reference_repeat_scores(const WholeTrace& trace,
                                                              std::int32_t layer,
                                                              std::int32_t kv_head,
                                                              std::int64_t chunk,
                                                              std::int64_t sinks, bool plus) {
  const HeadVectors head = trace.head(layer, kv_head);
  const auto& wo = trace.wo[static_cast<std::size_t>(layer)];
  const auto& hidden = trace.hidden[static_cast<std::size_t>(layer)];
  std::map<std::int32_t, double> best;
  const auto start = static_cast<std::int32_t>(*trace.info.repeat_start);
  const auto s = static_cast<std::int32_t>(head.prompt);
  const auto said_again = static_cast<std::int32_t>(*trace.info.repeat_tokens);
  for (std::int32_t token = 1; token < s && token <= said_again; ++token) {
    const auto m = static_cast<std::int32_t>(chunk);
    const std::int32_t from = 1 + (token - 1) / m * m;
    const std::int32_t to = std::min({from + m, s, said_again + 1});
    const std::int32_t t = start + token - 1;
    std::set<std::int32_t> seen;
    for (std::int32_t i = 0; i < std::min<std::int32_t>(static_cast<std::int32_t>(sinks), s); ++i) {
      if (i < from) seen.insert(i);
    }
    for (std::int32_t i = from; i < to; ++i) seen.insert(i);
    for (std::int32_t i = start + from - 1; i <= t; ++i) seen.insert(i);
    const std::vector<std::int32_t> list(seen.begin(), seen.end());
    double receiving = 0;
    if (plus) {
      for (std::int32_t j = 0; j < trace.info.d_model; ++j) {
        const auto x = static_cast<double>(
            hidden[static_cast<std::size_t>(t) * static_cast<std::size_t>(trace.info.d_model) +
                   static_cast<std::size_t>(j)]);
        receiving += x * x;
      }
      receiving = std::sqrt(receiving);
    }
    for (std::int32_t g = 0; g < head.group; ++g) {
      const auto p = naive_attention(head, g, t, list);
      for (std::size_t at = 0; at < list.size(); ++at) {
        const std::int32_t i = list[at];
        if (i < from || i >= to) continue;
        double value = p[at];
        if (plus) {
          const auto [length, fresh] =
              trace.lengths.try_emplace({layer, kv_head * head.group + g, i});
          if (fresh) {
            const auto columns = static_cast<std::size_t>(trace.info.n_heads * trace.info.head_dim);
            const auto first = static_cast<std::size_t>((kv_head * head.group + g) * head.head_dim);
            double sum = 0;
            for (std::size_t row = 0; row < wo.size() / columns; ++row) {
              double x = 0;
              for (std::size_t c = 0; c < static_cast<std::size_t>(head.head_dim); ++c) {
                x += static_cast<double>(wo[row * columns + first + c]) *
                     static_cast<double>(row_of(head.values, i, head.head_dim)[c]);
              }
              sum += x * x;
            }
            length->second = std::sqrt(sum);
          }
          value *= length->second / receiving;
        }
        if (!best.contains(i) || best[i] < value) best[i] = value;
      }
    }
  }
  return best;
}

/// The (layer, head, token) entries that remain after `pruned` of `scores` are removed; a token
/// that is not in the map is safe. `clear`: the cut was not a near tie.
struct ReferenceCut {
  std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> gone;
  bool clear = true;
};
inline ReferenceCut reference_global_cut(
    const std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, double>& scores,
    std::int64_t pruned) {
  std::vector<std::pair<double, std::tuple<std::int32_t, std::int32_t, std::int32_t>>> order;
  for (const auto& [who, score] : scores) order.emplace_back(score, who);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return std::get<2>(a.second) > std::get<2>(b.second);
  });
  ReferenceCut cut;
  const auto n = static_cast<std::size_t>(pruned);
  for (std::size_t i = 0; i < n; ++i) cut.gone.insert(order[i].second);
  if (n > 0 && n < order.size()) cut.clear = order[n].first - order[n - 1].first > 1e-9;
  return cut;
}

/// Prompt tokens that PyramidInfer's layer passes on: the `count` strongest of `alive`.
inline std::pair<std::set<std::int32_t>, bool> reference_passed_on(
    const WholeTrace& trace, std::int32_t layer, const std::set<std::int32_t>& alive,
    std::int64_t recent, std::int64_t sinks, std::int64_t count) {
  const auto s = static_cast<std::int32_t>(trace.info.prompt_tokens);
  std::map<std::int32_t, double> score;
  for (std::int32_t h = 0; h < trace.info.n_kv_heads; ++h) {
    const HeadVectors head = trace.head(layer, h);
    for (std::int32_t back = 0; back < recent; ++back) {
      const std::int32_t t = s - static_cast<std::int32_t>(recent) + back;
      std::vector<std::int32_t> seen;
      for (const std::int32_t i : alive) {
        if (i <= t) seen.push_back(i);
      }
      const double weight = recent > 1 ? 1.0 + 0.2 * back / static_cast<double>(recent - 1) : 1.2;
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = naive_attention(head, g, t, seen);
        for (std::size_t at = 0; at < seen.size(); ++at) score[seen[at]] += weight * p[at];
      }
    }
  }
  std::vector<std::pair<double, std::int32_t>> others;
  std::set<std::int32_t> stays;
  for (const std::int32_t i : alive) {
    if (i < sinks || i >= s - recent) {
      stays.insert(i);
    } else {
      others.emplace_back(score[i], i);
    }
  }
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  const auto room = static_cast<std::size_t>(count - std::ssize(stays));
  const bool clear =
      room == 0 || room >= others.size() || others[room - 1].first - others[room].first > 1e-6;
  for (std::size_t i = 0; i < std::min(room, others.size()); ++i) stays.insert(others[i].second);
  return {stays, clear};
}

/// Reference of DMC: members of each entry, weighted means recomputed.
struct ReferenceDmc {
  struct Entry {
    std::vector<std::int32_t> members;
    double weight = 0;
  };
  std::vector<Entry> entries;
  void feed(std::int32_t t, double alpha, double omega) {
    if (alpha >= 0.5 && !entries.empty()) {
      entries.back().members.push_back(t);
      entries.back().weight += omega;
    } else {
      entries.push_back({{t}, omega});
    }
  }
  [[nodiscard]] static Vec mean(const Entry& entry, std::span<const float> rows, std::int32_t d,
                                const std::vector<float>& omega) {
    Vec sum(static_cast<std::size_t>(d), 0.0);
    for (const std::int32_t t : entry.members) {
      const Vec row = to_vec(row_of(rows, t, d));
      for (std::size_t j = 0; j < sum.size(); ++j) {
        sum[j] += row[j] * static_cast<double>(omega[static_cast<std::size_t>(t)]) / entry.weight;
      }
    }
    return sum;
  }
};

}  // namespace kvsim::test
