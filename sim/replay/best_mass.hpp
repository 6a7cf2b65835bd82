#pragma once

#include <cstdint>
#include <vector>

#include "sim/replay/head_replay.hpp"

namespace kvsim {

/// Number of blocks of steps of a head; blocks are computed in parallel.
[[nodiscard]] std::size_t best_mass_blocks(const HeadVectors& head);

/// Fills best_mass of the series `all` of one KV head at the steps of `sample` in block `block`:
/// the largest share of a step's probability that the number of entries read by one query head can
/// hold. best_mass must have its final size. `reference`: the full cache's attention.
void add_best_mass(const HeadVectors& head, const CausalAttention& reference, std::size_t block,
                   const StepSample& sample, const std::vector<HeadSeries*>& all);

}  // namespace kvsim
