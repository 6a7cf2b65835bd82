#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/math/tiles/panels.hpp"

namespace kvsim {

/// Attention of the known queries of a block of steps over entries that are passed in parts:
///
///   out[t, g, :] = sum over e visible at t of softmax_e(scale q[t, g, :] . k[e, :]) v[e, :]
///
/// Tile by tile with a running softmax: scores, weights and products within a tile are fp32, sums
/// over tiles fp64. Source: Milakov and Gimelshein 2018, algorithm 3 (online softmax).
class RunningAttention {
 public:
  RunningAttention(std::int32_t group, std::int32_t head_dim, double scale);

  /// Starts a block: `steps` queries per head, starting at position `first`; q [group, tokens, d],
  /// unscaled.
  void start(std::span<const float> q, std::int64_t tokens, std::int64_t first, std::size_t steps);
  /// Adds entries: keys, values [entries, d]. Entry e is visible at steps born[e] to gone[e] - 1;
  /// an empty `born` means from the first step, an empty `gone` to the last.
  /// Throws ContractError if lengths disagree.
  void add(std::span<const float> keys, std::span<const float> values,
           std::span<const std::int32_t> born = {}, std::span<const std::int32_t> gone = {});
  /// Writes out [steps, group, d] and the log-sum-exp of each query's logits [steps, group]. At
  /// least one entry must have been visible to every query.
  template <class T>
  void finish(std::span<T> out, std::span<double> log_sum) const;

 private:
  std::size_t d_;
  double scale_;
  PanelLayout layout_;
  std::vector<float> queries_;                // [panels, d, width]
  std::vector<std::int32_t> lane_steps_;      // [panels, width]
  std::vector<float> highest_;                // [panels, width], unscaled
  std::vector<double> sum_, total_, factor_;  // [panels, width], [panels, d, width], [width]
  std::vector<float> scores_, part_;          // [kTileEntries, width], [d, width]
  std::vector<std::uint8_t> visited_;         // [steps]; 1: an entry was visible
};

}  // namespace kvsim
