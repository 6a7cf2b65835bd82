#pragma once

// References of the readers: every step from the recorded vectors, in lists of positions. For
// clarity, not speed.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/vectors.hpp"

namespace kvsim::test {

/// Positions that one query head read at one step, and the distance of the choice from another one.
struct ReferenceRead {
  std::set<std::int32_t> positions;
  double gap = 1e300;  // between the last one chosen and the first one not chosen
};

inline double logit_of(const HeadVectors& head, std::int32_t g, std::int64_t t, std::int32_t i) {
  double sum = 0;
  for (std::int32_t c = 0; c < head.head_dim; ++c) {
    const auto at = static_cast<std::size_t>(c);
    sum += static_cast<double>(query_of(head, g, t)[at]) *
           static_cast<double>(row_of(head.keys, i, head.head_dim)[at]);
  }
  return sum;
}

/// The `n` elements of `scored` (score, index) with the highest scores, the lower index first among
/// equals.
inline std::pair<std::set<std::int32_t>, double> best(
    std::vector<std::pair<double, std::int32_t>> scored, std::size_t n) {
  std::sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  std::set<std::int32_t> chosen;
  for (std::size_t i = 0; i < std::min(n, scored.size()); ++i) chosen.insert(scored[i].second);
  return {chosen, n < scored.size() ? scored[n - 1].first - scored[n].first : 1e300};
}

inline ReferenceRead reference_oracle(const HeadVectors& head, std::int32_t g, std::int64_t t,
                                      std::int64_t budget) {
  std::vector<std::pair<double, std::int32_t>> scored;
  for (std::int32_t i = 0; i <= t; ++i) scored.emplace_back(logit_of(head, g, t, i), i);
  const auto [chosen, gap] = best(std::move(scored), static_cast<std::size_t>(budget));
  return {chosen, gap};
}

/// Bound of page `page` of `size` entries at step t for query head g.
inline double reference_bound(const HeadVectors& head, std::int32_t g, std::int64_t t,
                              std::int32_t page, std::int32_t size) {
  double sum = 0;
  for (std::int32_t c = 0; c < head.head_dim; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const double q = static_cast<double>(query_of(head, g, t)[at]);
    double max = -1e300;
    for (std::int32_t i = page * size; i < std::min<std::int64_t>((page + 1) * size, t + 1); ++i) {
      // The larger of q min and q max is the largest q k of the page.
      max = std::max(max, q * static_cast<double>(row_of(head.keys, i, head.head_dim)[at]));
    }
    sum += max;
  }
  return sum;
}

inline std::set<std::int32_t> pages_to_positions(const std::set<std::int32_t>& pages,
                                                 std::int32_t size, std::int64_t t) {
  std::set<std::int32_t> positions;
  for (const std::int32_t page : pages) {
    for (std::int32_t i = page * size; i < std::min<std::int64_t>((page + 1) * size, t + 1); ++i) {
      positions.insert(i);
    }
  }
  return positions;
}

/// `choosing`: "query_head", "union" or "sum"; one read per query head of the group.
inline std::vector<ReferenceRead> reference_quest(const HeadVectors& head, std::int64_t t,
                                                  std::int64_t budget, std::int32_t size,
                                                  const std::string& choosing) {
  const auto pages = static_cast<std::int32_t>((t + size) / size);
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(3, budget / size));
  std::vector<ReferenceRead> reads(static_cast<std::size_t>(head.group));
  std::vector<double> total(static_cast<std::size_t>(pages), 0.0);
  std::set<std::int32_t> together;
  double min_gap = 1e300;
  for (std::int32_t g = 0; g < head.group; ++g) {
    std::vector<std::pair<double, std::int32_t>> scored;
    for (std::int32_t p = 0; p < pages; ++p) {
      scored.emplace_back(reference_bound(head, g, t, p, size), p);
      total[static_cast<std::size_t>(p)] += scored.back().first;
    }
    const auto [chosen, gap] = best(std::move(scored), budget > t ? total.size() : wanted);
    reads[static_cast<std::size_t>(g)] = {pages_to_positions(chosen, size, t), gap};
    together.insert(chosen.begin(), chosen.end());
    min_gap = std::min(min_gap, gap);
  }
  if (choosing == "sum") {
    std::vector<std::pair<double, std::int32_t>> scored;
    for (std::int32_t p = 0; p < pages; ++p) {
      scored.emplace_back(total[static_cast<std::size_t>(p)], p);
    }
    std::tie(together, min_gap) = best(std::move(scored), budget > t ? total.size() : wanted);
  }
  if (choosing != "query_head") {
    for (ReferenceRead& read : reads) read = {pages_to_positions(together, size, t), min_gap};
  }
  return reads;
}

/// Output and log of the sum of exponentials of query head g over `positions`.
inline std::pair<std::vector<double>, double> reference_output(
    const HeadVectors& head, std::int32_t g, std::int64_t t,
    const std::set<std::int32_t>& positions) {
  double max = -1e300;
  for (const std::int32_t i : positions) {
    max = std::max(max, head.scale * logit_of(head, g, t, i));
  }
  std::vector<double> out(static_cast<std::size_t>(head.head_dim), 0.0);
  double sum = 0;
  for (const std::int32_t i : positions) {
    const double weight = std::exp(head.scale * logit_of(head, g, t, i) - max);
    sum += weight;
    for (std::size_t c = 0; c < out.size(); ++c) {
      out[c] += weight * static_cast<double>(row_of(head.values, i, head.head_dim)[c]);
    }
  }
  for (double& x : out) x /= sum;
  return {out, max + std::log(sum)};
}

/// ShadowKV's parts of a head's prompt, and its reads of them. `keys`: the reconstructed keys of
/// the prompt.
struct ReferenceShadow {
  std::int32_t chunk = 8, local = 4;
  std::set<std::int32_t> outliers;   // chunks
  std::set<std::int32_t> landmarks;  // chunks with a landmark
  std::set<std::int32_t> chosen;     // at the last step

  ReferenceShadow(const HeadVectors& head, std::size_t n_outliers) {
    const auto chunks = static_cast<std::int32_t>(head.prompt) / chunk - local;
    std::vector<std::pair<double, std::int32_t>> worst;
    for (std::int32_t c = 0; c < chunks; ++c) {
      const auto mean = mean_of(head, c);
      double min = 2;
      for (std::int32_t i = c * chunk; i < (c + 1) * chunk; ++i) {
        double ab = 0, aa = 0, bb = 0;
        for (std::size_t j = 0; j < mean.size(); ++j) {
          const auto x = static_cast<double>(row_of(head.keys, i, head.head_dim)[j]);
          ab += x * mean[j], aa += x * x, bb += mean[j] * mean[j];
        }
        min = std::min(min, ab / std::sqrt(aa * bb));
      }
      worst.emplace_back(-min, c);
      landmarks.insert(c);
    }
    outliers = best(std::move(worst), n_outliers).first;
    for (const std::int32_t c : outliers) landmarks.erase(c);
  }
  [[nodiscard]] std::vector<double> mean_of(const HeadVectors& head, std::int32_t c) const {
    std::vector<double> mean(static_cast<std::size_t>(head.head_dim), 0.0);
    for (std::int32_t i = c * chunk; i < (c + 1) * chunk; ++i) {
      for (std::size_t j = 0; j < mean.size(); ++j) {
        mean[j] += static_cast<double>(row_of(head.keys, i, head.head_dim)[j]) / chunk;
      }
    }
    return mean;
  }
  /// Chooses at step t; returns the gap of the choice and the number of new chunks.
  std::pair<double, std::size_t> choose(const HeadVectors& head, std::int64_t t, std::size_t n) {
    std::map<std::int32_t, double> max;
    for (std::int32_t g = 0; g < head.group; ++g) {
      std::map<std::int32_t, double> weight;
      double sum = 0;
      for (const std::int32_t c : landmarks) {
        double logit = 0;
        const auto mean = mean_of(head, c);
        for (std::size_t j = 0; j < mean.size(); ++j) {
          logit += mean[j] * static_cast<double>(query_of(head, g, t)[j]);
        }
        sum += weight[c] = std::exp(logit * head.scale);
      }
      for (const auto& [c, w] : weight) max[c] = std::max(max[c], w / sum);
    }
    std::vector<std::pair<double, std::int32_t>> scored;
    for (const auto& [c, w] : max) scored.emplace_back(w, c);
    auto [now, gap] = best(std::move(scored), n);
    std::size_t fresh = 0;
    for (const std::int32_t c : now) {
      if (!chosen.contains(c)) ++fresh;
    }
    chosen = std::move(now);
    return {gap, fresh};
  }
  [[nodiscard]] std::set<std::int32_t> positions(const HeadVectors& head, std::int64_t t) const {
    std::set<std::int32_t> all;
    for (const auto* chunks : {&outliers, &chosen}) {
      for (const std::int32_t c : *chunks) {
        for (std::int32_t i = c * chunk; i < (c + 1) * chunk; ++i) all.insert(i);
      }
    }
    const auto covered =
        std::max(0, static_cast<std::int32_t>(head.prompt) / chunk - local) * chunk;
    for (std::int32_t i = covered; i <= t; ++i) all.insert(i);
    return all;
  }
};

}  // namespace kvsim::test
