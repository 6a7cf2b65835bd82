#pragma once

#include <vector>

#include "models/methods/view/vectors.hpp"
#include "sim/replay/head_replay.hpp"

namespace kvsim {

/// Fills `best_mass` of the series, all of one KV head: for each step and query head the largest
/// share of the full row's probability that any as many entries as it read could have. So a series'
/// retained_mass never exceeds it, except by the rounding of fp32 logits. Rows are recomputed in
/// fp64, one at a time. `head`: the recorded vectors, decode steps from head.prompt on.
void add_best_mass(const HeadVectors& head, const std::vector<HeadSeries*>& all);

}  // namespace kvsim
