#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "models/cost/kernels/call.hpp"
#include "models/cost/kernels/forms/tiles.hpp"

// Distribution of rows over a layer's routed experts, for kernels that group rows by expert.
namespace kvsim::moe {

inline constexpr std::size_t kParts = 4;  // quantiles of experts by load

/// Rows of the experts on the busiest GPU, in `kParts` groups of equal size.
struct Loads {
  std::array<double, kParts> rows{};
  std::array<double, kParts> visited{};  // share of the group's experts with at least one row
  double mean = 0;
  double mean_visited = 0;
  bool even = true;
};

/// Loads follow a density x^-skew between 1 and 0.8 tokens, as in serving benchmarks
/// (aiconfigurator, power_law_1.2); skew 0 distributes rows evenly.
inline Loads loads_of(const MoeCall& call, double imbalance) {
  Loads out;
  const double mean = call.tokens * call.top_k / call.experts;
  if (call.skew <= 0) {
    out.rows.fill(mean);
    out.visited.fill(std::min(1.0, mean));
    out.mean = mean;
    out.mean_visited = out.visited[0];
    return out;
  }
  out.even = false;
  const double max = std::max(0.8 * call.tokens, 1.01);
  // x^(1 - skew) has a pole at skew 1.
  const double power = 1 - (std::abs(call.skew - 1) < 1e-3 ? 1.001 : call.skew);
  const double span = 1 - std::pow(max, power);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < kParts; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(kParts);
    out.rows[i] = std::pow(1 - share * span, 1 / power);
    sum += out.rows[i];
    squares += out.rows[i] * out.rows[i];
  }
  double scale = mean * kParts / sum;
  if (call.ep > 1) {
    // Busiest of `ep` sums of independent loads; the maximum of 8 normal variables is 1.4
    // deviations above the mean.
    const double variance = squares * kParts / (sum * sum) - 1 + 1 / mean;
    const double local = call.experts / call.ep;
    const double drawn = 1 + imbalance * std::sqrt(variance * (1 - 1 / call.ep) / local);
    scale *= std::min(call.ep, call.busiest > 0 ? call.busiest : drawn);
  }
  for (std::size_t i = 0; i < kParts; ++i) {
    out.rows[i] *= scale;
    out.visited[i] = 1 - std::exp(-out.rows[i]);  // random assignment to experts
    out.mean += out.rows[i] / kParts;
    out.mean_visited += out.visited[i] / kParts;
  }
  return out;
}

/// Returns the mean number of tiles of height `height` per expert.
inline double tiles_high(const Loads& loads, double height) {
  if (loads.even) {
    return loads.mean < 1 ? loads.mean : tiles::whole(loads.mean / height);
  }
  double sum = 0;
  for (std::size_t i = 0; i < kParts; ++i) {
    // On average half of the last tile is empty.
    sum += loads.visited[i] * (loads.rows[i] < 1 ? 1 : std::max(1.0, 0.5 + loads.rows[i] / height));
  }
  return sum / kParts;
}

}  // namespace kvsim::moe
