#include "models/math/attention/frequency_scores.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kFarthest = 65536;  // TriAttention, offset_max_length

}  // namespace

FrequencyStats frequency_stats(std::span<const float> q, const Rope& rope) {
  const std::size_t pairs = rope.pairs();
  const std::size_t n = q.size() / (2 * pairs);
  KVSIM_CHECK(n >= 1 && q.size() == n * 2 * pairs, "{} numbers are not rows of {}", q.size(),
              2 * pairs);
  FrequencyStats stats{std::vector<double>(pairs, 0.0), std::vector<double>(pairs, 0.0),
                       std::vector<double>(pairs, 0.0)};
  std::vector<double> row(2 * pairs);
  for (std::size_t r = 0; r < n; ++r) {
    std::copy_n(q.data() + r * row.size(), row.size(), row.data());
    rope.rotate(row, -static_cast<std::int64_t>(r));
    for (std::size_t f = 0; f < pairs; ++f) {
      const double x = row[rope.first_of(f)];
      const double y = row[rope.second_of(f)];
      stats.real[f] += x;
      stats.imaginary[f] += y;
      stats.magnitude[f] += std::hypot(x, y);
    }
  }
  for (std::vector<double>* sums : {&stats.real, &stats.imaginary, &stats.magnitude}) {
    for (double& x : *sums) x /= static_cast<double>(n);
  }
  return stats;
}

std::vector<double> frequency_scores(const FrequencyStats& stats, std::span<const float> keys,
                                     std::int64_t tokens, bool maximum, const Rope& rope) {
  using Complex = std::complex<double>;
  const std::size_t pairs = rope.pairs();
  const std::size_t d = 2 * pairs;
  const std::size_t n = keys.size() / d;
  KVSIM_CHECK(keys.size() == n * d && stats.real.size() == pairs, "{} numbers, {} pairs",
              keys.size(), pairs);
  // Mean queries rotated to each future position, and the mean of these.
  std::vector<std::vector<Complex>> ahead;
  for (std::int64_t offset = 1; offset <= kFarthest; offset *= 2) {
    std::vector<Complex>& one = ahead.emplace_back(pairs);
    for (std::size_t f = 0; f < pairs; ++f) {
      one[f] = Complex{stats.real[f], stats.imaginary[f]} *
               std::polar(1.0, static_cast<double>(tokens + offset) * rope.frequency(f));
    }
  }
  if (!maximum) {
    std::vector<Complex> mean(pairs);
    for (const std::vector<Complex>& one : ahead) {
      for (std::size_t f = 0; f < pairs; ++f) mean[f] += one[f] / static_cast<double>(ahead.size());
    }
    ahead.assign(1, mean);
  }
  std::vector<double> spread(pairs);
  for (std::size_t f = 0; f < pairs; ++f) {
    spread[f] = stats.magnitude[f] - std::hypot(stats.real[f], stats.imaginary[f]);
  }
  std::vector<double> scores(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::span<const float> key = keys.subspan(i * d, d);
    const auto at = [key](std::size_t j) { return static_cast<double>(key[j]); };
    double anywhere = 0;
    for (std::size_t f = 0; f < pairs; ++f) {
      anywhere += spread[f] * std::hypot(at(rope.first_of(f)), at(rope.second_of(f)));
    }
    double max = -std::numeric_limits<double>::infinity();
    for (const std::vector<Complex>& query : ahead) {
      double logit = 0;
      for (std::size_t f = 0; f < pairs; ++f) {
        logit += query[f].real() * at(rope.first_of(f)) + query[f].imag() * at(rope.second_of(f));
      }
      max = std::max(max, logit);
    }
    scores[i] = max + anywhere;
  }
  return scores;
}

}  // namespace kvsim
