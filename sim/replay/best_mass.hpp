#pragma once

#include <cstdint>
#include <vector>

#include "sim/replay/head_replay.hpp"

namespace kvsim {

/// Blocks of steps that a head's best mass can be computed in, side by side.
[[nodiscard]] std::size_t best_mass_blocks(const HeadVectors& head);

/// Fills best_mass of the series `all` of one KV head, for the steps of block `block`: the largest
/// share of a step's probability that as many entries as one query head read can have, at the steps
/// of `sample`. best_mass must have its size. `reference`: the full cache's attention.
void add_best_mass(const HeadVectors& head, const CausalAttention& reference, std::size_t block,
                   const StepSample& sample, const std::vector<HeadSeries*>& all);

}  // namespace kvsim
