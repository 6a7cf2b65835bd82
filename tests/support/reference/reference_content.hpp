#pragma once

// References of the scorers and their wrappers, in fp64 and in another style than the library's:
// ordered maps by position, whole matrices, everything recomputed. For clarity, not speed.

#include <complex>
#include <functional>
#include <map>
#include <numeric>

#include "tests/support/reference/reference_methods.hpp"

namespace kvsim::test {

using Ids = std::vector<std::int32_t>;
/// Scores by position; infinity: always kept.
using Scores = std::map<std::int32_t, double>;
using ReferenceScorer = std::function<Scores(const HeadVectors&, const Ids&, std::int64_t tokens)>;

inline Ids first_ids(std::int64_t n) {
  Ids ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
inline Vec key_of(const HeadVectors& head, std::int32_t id) { return to_vec(head.key(id)); }
inline double length(const Vec& x) { return std::sqrt(inner(x, x)); }

inline void reference_softmax_in_place(Scores& x) {
  double sum = 0;
  for (auto& [id, each] : x) sum += std::exp(each);
  for (auto& [id, each] : x) each = std::exp(each) / sum;
}

/// The `count` highest scores, ties to the older entry. `clear` becomes false if the cut is a near
/// tie: values that differ so little that rounding may decide.
inline Ids reference_top(const Scores& scores, std::int64_t count, bool& clear) {
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (const auto& [id, x] : scores) ranked.emplace_back(-x, id);
  std::sort(ranked.begin(), ranked.end());
  if (count == 0) return {};
  if (count < std::ssize(ranked)) {
    const double gap = ranked[static_cast<std::size_t>(count)].first -
                       ranked[static_cast<std::size_t>(count) - 1].first;
    if (gap > 0 && gap < 1e-9) clear = false;
    ranked.resize(static_cast<std::size_t>(count));
  }
  Ids ids;
  for (const auto& [x, id] : ranked) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

inline Scores reference_knorm(const HeadVectors& head, const Ids& ids, std::int64_t /*tokens*/) {
  Scores all;
  for (const auto id : ids) all[id] = -length(key_of(head, id));
  return all;
}

inline Scores reference_keydiff(const HeadVectors& head, const Ids& ids, std::int64_t /*tokens*/) {
  Vec anchor(static_cast<std::size_t>(head.head_dim), 0.0);
  for (const auto id : ids) {
    const Vec key = key_of(head, id);
    for (std::size_t j = 0; j < key.size(); ++j) anchor[j] += key[j] / length(key);
  }
  Scores all;
  for (const auto id : ids) {
    const Vec key = key_of(head, id);
    all[id] = -inner(key, anchor) / (length(key) * length(anchor));
  }
  return all;
}

inline Vec value_of(const HeadVectors& head, std::int32_t id) { return to_vec(head.value(id)); }

/// As in kvpress: windows padded with zeros, shares of a window, their product.
inline ReferenceScorer reference_cur(std::int32_t sinks, std::int32_t window, char leverage) {
  return [=](const HeadVectors& head, const Ids& ids, std::int64_t /*tokens*/) {
    const auto square = [](const Vec& x) { return inner(x, x); };
    std::map<std::int32_t, double> keys, values;  // sums of windows
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto w = static_cast<std::int32_t>(i) / window;
      keys[w] += square(key_of(head, ids[i]));
      values[w] += square(value_of(head, ids[i]));
    }
    Scores all;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto w = static_cast<std::int32_t>(i) / window;
      const double a = square(key_of(head, ids[i])) / keys[w];
      const double b = square(value_of(head, ids[i])) / values[w];
      all[ids[i]] = leverage == 'k'   ? a
                    : leverage == 'v' ? b
                    : leverage == 'a' ? (a + b) / 2
                                      : a * b;
      if (static_cast<std::int32_t>(i) < sinks) all[ids[i]] = 1e9;
    }
    return all;
  };
}

inline ReferenceScorer reference_lagkv(std::int32_t sinks, std::int32_t lag, bool cross) {
  return [=](const HeadVectors& head, const Ids& ids, std::int64_t /*tokens*/) {
    const auto n = static_cast<std::int32_t>(ids.size());
    Scores all;
    for (const auto id : ids) all[id] = 1.0;
    if (n < sinks + 2 * lag) {
      for (std::int32_t i = sinks; i < n; ++i) {
        all[ids[static_cast<std::size_t>(i)]] = static_cast<double>(i - sinks) / (n - sinks);
      }
      return all;
    }
    const auto id_at = [&](std::int32_t i) { return ids[static_cast<std::size_t>(i)]; };
    for (std::int32_t at = sinks; at + 2 * lag <= n; at += lag) {
      Scores mean;
      for (const bool keys : {true, false}) {
        const auto row = [&](std::int32_t i) {
          return to_vec(keys ? head.key(id_at(i)) : head.value(id_at(i)));
        };
        Scores spread;
        for (std::int32_t i = at; i < at + lag; ++i) {
          Vec x = row(i);
          for (std::size_t c = 0; c < x.size(); ++c) {
            double low = row(at + lag)[c];
            double high = low;
            for (std::int32_t r = at + lag; r < at + 2 * lag; ++r) {
              low = std::min(low, row(r)[c]);
              high = std::max(high, row(r)[c]);
            }
            x[c] = high > low ? (x[c] - low) / (high - low) : 0;
          }
          const double m = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
          double var = 0;
          for (const double each : x) var += (each - m) * (each - m);
          spread[id_at(i)] = std::sqrt(var / static_cast<double>(x.size() - 1));
        }
        reference_softmax_in_place(spread);
        for (const auto& [id, x] : spread) mean[id] += x / 2;
      }
      for (const auto& [id, x] : mean) {
        std::int32_t below = 0;
        for (const auto& [other, y] : mean) below += y < x || (y == x && other > id) ? 1 : 0;
        all[id] = cross ? x : static_cast<double>(below) / lag;
      }
    }
    return all;
  };
}

/// Rotation by position as a whole matrix [d, d], mean over positions first … first + count - 1.
inline std::vector<Vec> rotation(std::int32_t d, double theta, bool interleaved, std::int64_t first,
                                 std::int64_t count) {
  std::vector<Vec> matrix(static_cast<std::size_t>(d), Vec(static_cast<std::size_t>(d), 0.0));
  for (std::int32_t j = 0; j < d / 2; ++j) {
    const auto a = static_cast<std::size_t>(interleaved ? 2 * j : j);
    const auto b = static_cast<std::size_t>(interleaved ? 2 * j + 1 : j + d / 2);
    std::complex<double> sum = 0;
    for (std::int64_t p = first; p < first + count; ++p) {
      sum += std::polar(1.0, static_cast<double>(p) * std::pow(theta, -2.0 * j / d));
    }
    sum /= static_cast<double>(count);
    matrix[a][a] = matrix[b][b] = sum.real();
    matrix[a][b] = -sum.imag();
    matrix[b][a] = sum.imag();
  }
  return matrix;
}
inline Vec times(const std::vector<Vec>& matrix, const Vec& x) {
  Vec y;
  for (const Vec& row : matrix) y.push_back(inner(row, x));
  return y;
}

struct ReferenceExpected {
  double theta = 10000;
  bool interleaved = true;
  std::int64_t sinks = 4, future = 512;
  bool covariance = true, vnorm = true;
  double epsilon = 0;
};
inline ReferenceScorer reference_expected(const ReferenceExpected& set) {
  return [set](const HeadVectors& head, const Ids& ids, std::int64_t tokens) {
    const std::int32_t d = head.head_dim;
    Scores all;
    for (const auto id : ids) all[id] = std::numeric_limits<double>::infinity();
    if (std::ssize(ids) <= set.sinks || tokens <= set.sinks) return all;
    const auto ahead = rotation(d, set.theta, set.interleaved, tokens, set.future);
    Scores mean;
    for (std::int32_t g = 0; g < head.group; ++g) {
      std::vector<Vec> queries;
      for (std::int64_t t = set.sinks; t < tokens; ++t) {
        // Rotated back, then forward by the mean rotation: moments are taken of the result.
        const auto back = rotation(d, set.theta, set.interleaved, -t, 1);
        queries.push_back(times(ahead, times(back, to_vec(query_of(head, g, t)))));
      }
      const auto n = static_cast<double>(queries.size());
      Scores z;
      for (std::size_t i = static_cast<std::size_t>(set.sinks); i < ids.size(); ++i) {
        // Mean and variance of the logits themselves are mu.k and k^T Sigma k.
        Vec logits;
        for (const Vec& q : queries) logits.push_back(inner(q, key_of(head, ids[i])) * head.scale);
        const double mu = std::accumulate(logits.begin(), logits.end(), 0.0) / n;
        double var = 0;
        for (const double x : logits) var += (x - mu) * (x - mu) / n;
        z[ids[i]] = mu + (set.covariance ? var / 2 : 0);
      }
      reference_softmax_in_place(z);
      for (const auto& [id, x] : z) mean[id] += x / head.group;
    }
    for (const auto& [id, x] : mean) {
      all[id] = (x + set.epsilon) * (set.vnorm ? length(to_vec(head.value(id))) : 1.0);
    }
    return all;
  };
}

/// Settings of TriAttention with the names of its code.
struct ReferenceTri {
  double theta = 10000;
  bool interleaved = true, normalize = true, group_mean = false, farthest = false;
};
/// Scores of entries `ids` at `tokens` tokens: pairs of channels before RoPE as complex numbers.
inline Scores reference_triattention(const ReferenceTri& set, const HeadVectors& head,
                                     const Ids& ids, std::int64_t tokens) {
  const std::int32_t d = head.head_dim;
  using Pairs = std::vector<std::complex<double>>;
  const auto before_rope = [&](const Vec& row, std::int64_t position) {
    const Vec x = times(rotation(d, set.theta, set.interleaved, -position, 1), row);
    Pairs pairs;
    for (std::int32_t j = 0; j < d / 2; ++j) {
      pairs.emplace_back(x[static_cast<std::size_t>(set.interleaved ? 2 * j : j)],
                         x[static_cast<std::size_t>(set.interleaved ? 2 * j + 1 : j + d / 2)]);
    }
    return pairs;
  };
  std::map<std::int32_t, Pairs> keys;
  for (const auto id : ids) keys[id] = before_rope(key_of(head, id), id);
  Scores all;
  for (std::int32_t g = 0; g < head.group; ++g) {
    Pairs mean(static_cast<std::size_t>(d / 2));
    Vec size(mean.size(), 0.0);
    for (std::int64_t t = 0; t < head.prompt; ++t) {
      const Pairs q = before_rope(to_vec(query_of(head, g, t)), t);
      for (std::size_t f = 0; f < q.size(); ++f) {
        mean[f] += q[f] / static_cast<double>(head.prompt);
        size[f] += std::abs(q[f]) / static_cast<double>(head.prompt);
      }
    }
    Scores one;
    for (const auto id : ids) {
      Vec over;
      for (std::int64_t offset = 1; offset <= 65536; offset *= 2) {
        double sum = 0;
        for (std::size_t f = 0; f < mean.size(); ++f) {
          const double w = std::pow(set.theta, -2.0 * static_cast<double>(f) / d);
          sum += std::abs(mean[f]) * std::abs(keys[id][f]) *
                 std::cos(static_cast<double>(tokens - id + offset) * w +
                          std::arg(mean[f] * std::conj(keys[id][f])));
        }
        over.push_back(sum);
      }
      double extra = 0;
      for (std::size_t f = 0; f < mean.size(); ++f) {
        extra += (size[f] - std::abs(mean[f])) * std::abs(keys[id][f]);
      }
      one[id] = extra + (set.farthest ? *std::max_element(over.begin(), over.end())
                                      : std::accumulate(over.begin(), over.end(), 0.0) / 17);
    }
    if (set.normalize) {
      const auto n = static_cast<double>(one.size());
      double m = 0;
      double square = 0;
      for (const auto& [id, x] : one) m += x / n, square += x * x / n;
      for (auto& [id, x] : one) x = (x - m) / std::max(std::sqrt(square - m * m), 1e-6);
    }
    for (const auto& [id, x] : one) {
      all[id] = !all.contains(id) ? x : set.group_mean ? all[id] + x : std::max(all[id], x);
    }
  }
  return all;
}

/// Maximum over the neighbours within width / 2 on either side, in order of position.
inline Scores reference_pool(const Scores& x, std::int32_t width) {
  std::vector<std::pair<std::int32_t, double>> row(x.begin(), x.end());
  Scores pooled;
  for (std::int32_t i = 0; i < std::ssize(row); ++i) {
    double max = -1;
    for (std::int32_t j = 0; j < std::ssize(row); ++j) {
      if (std::abs(i - j) <= width / 2)
        max = std::max(max, row[static_cast<std::size_t>(j)].second);
    }
    pooled[row[static_cast<std::size_t>(i)].first] = max;
  }
  return pooled;
}

inline ReferenceScorer reference_last_window(std::int64_t window, std::int32_t kernel) {
  return [=](const HeadVectors& head, const Ids& ids, std::int64_t tokens) {
    Scores all;
    for (const auto id : ids) all[id] = std::numeric_limits<double>::infinity();
    const std::int64_t w = std::min<std::int64_t>(window, std::ssize(ids));
    Scores mean;
    for (std::size_t i = 0; i + static_cast<std::size_t>(w) < ids.size(); ++i) mean[ids[i]] = 0;
    for (std::int64_t t = tokens - w; t < tokens; ++t) {
      Ids seen;
      for (const auto id : ids) {
        if (id <= t) seen.push_back(id);
      }
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = naive_attention(head, g, t, seen);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          if (mean.contains(seen[i])) {
            mean[seen[i]] += p[i] / (static_cast<double>(w) * head.group);
          }
        }
      }
    }
    for (const auto& [id, x] : reference_pool(mean, kernel)) all[id] = x;
    return all;
  };
}

/// R-KV with the whole matrix of cosines; the cosine of the last similar key is set to 0.
inline ReferenceScorer reference_r_kv(std::int64_t window, std::int32_t kernel, double lambda) {
  return [=](const HeadVectors& head, const Ids& ids, std::int64_t tokens) {
    Scores all;
    for (const auto id : ids) all[id] = std::numeric_limits<double>::infinity();
    const Ids before(ids.begin(), ids.end() - window);
    Scores importance;
    for (std::int64_t t = tokens - window; t < tokens; ++t) {
      Scores row;
      for (const auto id : before) {
        double max = -std::numeric_limits<double>::infinity();
        for (std::int32_t g = 0; g < head.group; ++g) {
          max = std::max(max, inner(to_vec(query_of(head, g, t)), key_of(head, id)) * head.scale);
        }
        row[id] = max;
      }
      reference_softmax_in_place(row);
      for (const auto& [id, x] : row) importance[id] += x / static_cast<double>(window);
    }
    importance = reference_pool(importance, kernel);
    std::map<std::int32_t, Scores> cosine;
    Scores redundancy;
    for (const auto i : ids) {
      std::int32_t spared = -1;
      for (const auto j : ids) {
        const Vec a = key_of(head, i);
        const Vec b = key_of(head, j);
        cosine[i][j] = i == j ? 0 : inner(a, b) / (length(a) * length(b));
        if (cosine[i][j] > 0.5) spared = j;
      }
      if (spared >= 0) cosine[i][spared] = 0;
      for (const auto j : ids) redundancy[j] += cosine[i][j] / static_cast<double>(ids.size());
    }
    reference_softmax_in_place(redundancy);
    for (const auto id : before) all[id] = lambda * importance[id] - (1 - lambda) * redundancy[id];
    return all;
  };
}

/// Entries kept by periodic compression after all tokens; `prompt_too`: the prompt is fed at once.
inline Ids reference_periodic(const HeadVectors& head, const ReferenceScorer& scorer,
                              std::int64_t interval, std::int64_t target, bool prompt_too,
                              bool& clear,
                              const std::function<void(std::int64_t, const Ids&)>& after = {}) {
  Ids ids = first_ids(head.prompt);
  const auto compress = [&](std::int64_t tokens) {
    if (std::ssize(ids) > target) ids = reference_top(scorer(head, ids, tokens), target, clear);
  };
  if (prompt_too) compress(head.prompt);
  for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
    ids.push_back(static_cast<std::int32_t>(t));
    if ((t + 1 - head.prompt) % interval == 0) compress(t + 1);
    if (after) after(t, ids);
  }
  return ids;
}

/// Entries kept by the oracle: at every step the sums over all later queries, computed from the
/// last one backwards.
inline Ids reference_oracle(const HeadVectors& head, std::int64_t budget, bool& clear,
                            const std::function<void(std::int64_t, const Ids&)>& after = {}) {
  Ids ids = first_ids(head.prompt);
  const auto future = [&](std::int64_t newest) {
    Scores sums;
    for (const auto id : ids) sums[id] = 0;
    for (std::int64_t t = head.tokens - 1; t > newest; --t) {
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto p = naive_attention(head, g, t, first_ids(t + 1));
        for (const auto id : ids) sums[id] += p[static_cast<std::size_t>(id)];
      }
    }
    return sums;
  };
  const auto shrink = [&](std::int64_t newest) {
    if (std::ssize(ids) > budget) ids = reference_top(future(newest), budget, clear);
  };
  shrink(head.prompt - 1);
  for (std::int64_t t = head.prompt; t < head.tokens; ++t) {
    ids.push_back(static_cast<std::int32_t>(t));
    shrink(t);
    if (after) after(t, ids);
  }
  return ids;
}

}  // namespace kvsim::test
