#pragma once

// References of kvpress' presses of 2025 and 2026, written with whole matrices as kvpress does: an
// inverse by Gauss and Jordan, eigenvectors by Jacobi's rotations.

#include <cmath>
#include <numbers>
#include <vector>

#include "models/math/counter_random.hpp"
#include "tests/support/reference/reference_content.hpp"

namespace kvsim::test {

using Table = std::vector<Vec>;

inline Table transposed(const Table& a) {
  Table t(a.front().size(), Vec(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}
inline Table product(const Table& a, const Table& b) {
  const Table columns = transposed(b);
  Table c;
  for (const Vec& row : a) {
    Vec& out = c.emplace_back();
    for (const Vec& column : columns) out.push_back(inner(row, column));
  }
  return c;
}
inline Table inverse(Table a) {
  const std::size_t n = a.size();
  for (std::size_t i = 0; i < n; ++i) {
    a[i].resize(2 * n, 0.0);
    a[i][n + i] = 1;
  }
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c; r < n; ++r) {
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    }
    std::swap(a[c], a[pivot]);
    const double by = a[c][c];
    for (double& x : a[c]) x /= by;
    for (std::size_t r = 0; r < n; ++r) {
      const double times = a[r][c];
      if (r == c) continue;
      for (std::size_t j = 0; j < 2 * n; ++j) a[r][j] -= times * a[c][j];
    }
  }
  for (Vec& row : a) row.erase(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(n));
  return a;
}
/// The eigenvector of the largest eigenvalue of a symmetric matrix.
inline Vec leading_eigenvector(Table a) {
  const std::size_t n = a.size();
  Table v(n, Vec(n, 0.0));
  for (std::size_t i = 0; i < n; ++i) v[i][i] = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a[k][p];
          a[k][p] = c * x - s * a[k][q];
          a[k][q] = s * x + c * a[k][q];
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a[p][k];
          a[p][k] = c * x - s * a[q][k];
          a[q][k] = s * x + c * a[q][k];
          const double y = v[k][p];
          v[k][p] = c * y - s * v[k][q];
          v[k][q] = s * y + c * v[k][q];
        }
      }
    }
  }
  std::size_t max = 0;
  for (std::size_t i = 0; i < n; ++i) max = a[i][i] > a[max][max] ? i : max;
  Vec out;
  for (const Vec& row : v) out.push_back(row[max]);
  return out;
}

struct PressPlace {
  double theta = 10000;
  bool interleaved = true;
  std::uint64_t seed = 7, layer = 0, kv_head = 0;
};

inline Scores reference_leverage(const HeadVectors& head, const Ids& ids, const PressPlace& place,
                                 std::size_t sketch) {
  Table keys;
  for (const auto id : ids) {
    keys.push_back(
        times(rotation(head.head_dim, place.theta, place.interleaved, -id, 1), key_of(head, id)));
  }
  const std::size_t d = keys.front().size();
  for (std::size_t j = 0; j < d; ++j) {
    double sum = 0;
    for (const Vec& key : keys) sum += key[j];
    for (Vec& key : keys) key[j] -= sum / static_cast<double>(keys.size());
  }
  Table phi(d, Vec(sketch));
  const auto drawn = counter_key({place.seed, place.layer, place.kv_head});
  for (std::size_t j = 0; j < d; ++j) {
    for (std::size_t c = 0; c < sketch; ++c) {
      const std::uint64_t at = 2 * (j * sketch + c);
      phi[j][c] =
          std::sqrt(-2 * std::log(counter_uniform(drawn, at)) / static_cast<double>(sketch)) *
          std::cos(2 * std::numbers::pi * counter_uniform(drawn, at + 1));
    }
  }
  const Table x = product(keys, phi);
  Table gram = product(transposed(x), x);
  for (std::size_t c = 0; c < sketch; ++c) gram[c][c] += 0.01;
  const Table solution = product(x, inverse(gram));
  Scores all;
  for (std::size_t i = 0; i < ids.size(); ++i) all[ids[i]] = inner(solution[i], x[i]);
  return all;
}

inline Scores reference_non_causal(const HeadVectors& head, const Ids& ids, std::size_t chunk,
                                   bool zeros) {
  Scores sums;
  for (const auto id : ids) sums[id] = 0;
  for (std::size_t first = 0; first < ids.size(); first += chunk) {
    const std::size_t last = std::min(first + chunk, ids.size());
    Table keys;
    for (std::size_t i = first; i < last; ++i) keys.push_back(key_of(head, ids[i]));
    if (zeros) keys.resize(chunk, Vec(keys.front().size(), 0.0));
    for (std::int32_t g = 0; g < head.group; ++g) {
      Table queries;
      for (std::size_t i = first; i < last; ++i) {
        queries.push_back(to_vec(query_of(head, g, ids[i])));
      }
      if (zeros) queries.resize(chunk, Vec(keys.front().size(), 0.0));
      for (const Vec& q : queries) {
        Vec logits;
        for (const Vec& key : keys) logits.push_back(inner(q, key));
        const double max = *std::max_element(logits.begin(), logits.end());
        double total = 0;
        for (const double x : logits) total += std::exp(x - max);
        for (std::size_t i = first; i < last; ++i) {
          sums[ids[i]] += std::exp(logits[i - first] - max) / total / head.group;
        }
      }
    }
  }
  for (auto& [id, x] : sums) x *= length(value_of(head, id));
  Scores all;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    all[ids[i]] = sums[ids[i]] / 3;
    if (i > 0) all[ids[i]] += sums[ids[i - 1]] / 3;
    if (i + 1 < ids.size()) all[ids[i]] += sums[ids[i + 1]] / 3;
  }
  return all;
}

/// Scores of every head of a layer.
inline std::vector<Scores> reference_compactor(const std::vector<HeadVectors>& heads,
                                               PressPlace place, double blending,
                                               std::size_t sketch, std::size_t chunk, bool zeros) {
  const std::int64_t prompt = heads.front().prompt;
  Ids inner_ids;
  for (std::int64_t i = 8; i < prompt - 4; ++i) inner_ids.push_back(static_cast<std::int32_t>(i));
  std::vector<Scores> parts[2];
  for (std::size_t h = 0; h < heads.size(); ++h) {
    place.kv_head = h;
    parts[0].push_back(reference_leverage(heads[h], inner_ids, place, sketch));
    parts[1].push_back(reference_non_causal(heads[h], inner_ids, chunk, zeros));
  }
  std::vector<Scores> all(heads.size());
  for (const int p : {0, 1}) {
    Vec flat;
    for (const Scores& one : parts[p]) {
      for (const auto& [id, x] : one) flat.push_back(x);
    }
    const auto n = static_cast<double>(flat.size());
    const double mean = std::accumulate(flat.begin(), flat.end(), 0.0) / n;
    double var = 0;
    for (const double x : flat) var += (x - mean) * (x - mean) / (n - 1);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (const auto& [id, x] : parts[p][h]) {
        all[h][id] += (p == 0 ? blending : 1) * (x - mean) / std::max(std::sqrt(var), 1e-6);
      }
    }
  }
  for (Scores& one : all) {
    for (std::int32_t id = 0; id < prompt; ++id) {
      if (!one.contains(id)) one[id] = std::numeric_limits<double>::infinity();
    }
  }
  return all;
}

inline Scores reference_qfilter(const HeadVectors& head, const Ids& ids, std::int64_t tokens) {
  Vec filter(static_cast<std::size_t>(head.head_dim), 0.0);
  for (std::int32_t g = 0; g < head.group; ++g) {
    Table queries;
    for (std::int64_t t = 0; t < tokens; ++t) queries.push_back(to_vec(query_of(head, g, t)));
    const Vec v = leading_eigenvector(product(transposed(queries), queries));
    double above = 0;
    double sum = 0;
    for (const Vec& q : queries) {
      above += inner(q, v) > 0 ? 1 : 0;
      sum += inner(q, v);
    }
    // With half of the queries on each side the sum decides; the released code uses -v in this
    // case, and the sign of v depends on its solver.
    const double excess = above - static_cast<double>(tokens) / 2;
    const double sign = (excess != 0 ? excess : sum) > 0 ? 1 : -1;
    for (std::size_t j = 0; j < v.size(); ++j)
      filter[j] -= sign * v[j] / head.group;  // as released
  }
  Scores all;
  for (const auto id : ids) all[id] = -inner(filter, key_of(head, id));
  return all;
}

inline Scores reference_capkv(const HeadVectors& head, const Ids& ids, std::int64_t tokens,
                              const PressPlace& place, std::int32_t sinks, std::int64_t future,
                              double tau) {
  const auto d = static_cast<std::size_t>(head.head_dim);
  Scores all;
  const auto ahead = rotation(head.head_dim, place.theta, place.interleaved, tokens, future);
  for (std::int32_t g = 0; g < head.group; ++g) {
    Vec anchor(d, 0.0);
    for (std::int64_t t = sinks; t < tokens; ++t) {
      const Vec q =
          times(ahead, times(rotation(head.head_dim, place.theta, place.interleaved, -t, 1),
                             to_vec(query_of(head, g, t))));
      for (std::size_t j = 0; j < d; ++j) anchor[j] += q[j];
    }
    Scores fit;
    double max = -2;
    for (const auto id : ids) {
      if (id < sinks) continue;
      const Vec key = key_of(head, id);
      fit[id] = inner(anchor, key) / (length(anchor) * length(key));
      max = std::max(max, fit[id]);
    }
    Table matrix(d, Vec(d, 0.0));
    for (std::size_t j = 0; j < d; ++j) matrix[j][j] = 1;
    for (auto& [id, x] : fit) {
      x = std::exp(tau * (x - max));
      const Vec v = value_of(head, id);
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < d; ++j) matrix[i][j] += (x + 1e-6) * v[i] * v[j];
      }
    }
    const Table solved = inverse(matrix);
    for (const auto& [id, w] : fit) {
      all[id] += w * inner(value_of(head, id), times(solved, value_of(head, id))) / head.group;
    }
  }
  for (const auto id : ids) {
    if (id < sinks) all[id] = std::numeric_limits<double>::infinity();
  }
  return all;
}

}  // namespace kvsim::test
