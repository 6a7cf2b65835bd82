#pragma once

// The two scores that Compactor sums.

#include "models/methods/select/scored.hpp"

namespace kvsim {

/// Approximate leverage scores of keys before RoPE (kvpress, LeverageScorePress, without its
/// normalisation): keys minus their mean times a Gaussian [d, sketch], scaled by sketch^-1/2.
/// Returns [n], each in [0, 1).
[[nodiscard]] std::vector<double> leverage_scores(const ScoredTokens& tokens,
                                                  const SessionPlace& place, std::int64_t sketch);
/// Returns the work for `entries` keys of one stored head. `width`: width of a hidden state; the
/// released code projects keys and queries from it again.
[[nodiscard]] ScoreCost leverage_cost(double entries, std::int64_t sketch, double width,
                                      const HeadShape& shape);

/// Attention that keys receive from queries of the same chunk, before and after them (kvpress,
/// NonCausalAttnPress, without its normalisation): column sums of the softmax of the unscaled q .
/// k, averaged over the group, times the norm of the value, averaged over three neighbours. padded:
/// the last chunk is filled with zero keys and queries, which are included in the sums (kvpress
/// 0.5.4). Returns [n].
[[nodiscard]] std::vector<double> non_causal_scores(const ScoredTokens& tokens, std::int64_t chunk,
                                                    bool padded);
[[nodiscard]] ScoreCost non_causal_cost(double entries, std::int64_t chunk, double width,
                                        const HeadShape& shape);

/// Returns the width of a hidden state: the model's, or the total width of all query heads if
/// unknown.
[[nodiscard]] double hidden_width(const MethodResolver& resolver);

[[nodiscard]] ParamInfo sketch_param();
[[nodiscard]] ParamInfo chunk_param();
[[nodiscard]] ParamInfo padding_param();

}  // namespace kvsim
