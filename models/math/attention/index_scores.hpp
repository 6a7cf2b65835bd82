#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Scores of DeepSeek's sparse attention: sum over the indexer's heads of weight times the positive
/// part of query times key.
///
/// q [heads, d], weights [heads], keys [n, d]; out [n]. Throws ContractError if lengths disagree.
/// Source: DeepSeek-V3.2-Exp, inference/model.py (Indexer) and kernel.py (fp8_index), 3b99a53.
void index_scores(std::span<const float> q, std::span<const float> weights,
                  std::span<const float> keys, std::span<double> out);

/// Rotates a row by the normalised Hadamard matrix and rounds it to E4M3 with a power-of-two scale
/// of at least 1e-4 / 448, as the indexer stores its queries and keys.
/// Throws ContractError if the length is not a power of two.
void round_index_row(std::span<float> row);

}  // namespace kvsim
