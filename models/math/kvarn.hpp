#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

// KVarN's quantisation of a tile of one head. Source: vLLM
// vllm/model_executor/layers/quantization/kvarn/sinkhorn.py and
// vllm/v1/attention/ops/kvarn_store.py.

/// A tile whose rows and columns have nearly equal standard deviations.
struct KvarnBalance {
  std::vector<float> rows, columns;  // scales: the balanced tile is the tile divided by both
  /// Largest over smallest standard deviation of the columns, plus the same ratio of the rows.
  float imbalance = 0, imbalance_before = 0;
};
/// tile: [rows, columns] in row-major order, at least 2 of each. Returns the state with the least
/// imbalance among those after 0 … `iterations` alternating passes; ties go to the last.
[[nodiscard]] KvarnBalance kvarn_balance(std::span<const float> tile, std::int32_t rows,
                                         std::int32_t columns, std::int32_t iterations);

/// The codes of a tile, with fp16 scales as stored.
struct KvarnTile {
  std::int32_t n_columns = 0;
  std::vector<std::uint8_t> codes;  // [rows, columns]
  std::vector<float> steps, zeros;  // by row: multiplied by the row's scale of the balance
  std::vector<float> columns;       // scales of the balance
  [[nodiscard]] float value(std::int32_t row, std::int32_t column) const;
};
/// levels: 2^bits - 1. Each row of the balanced tile is rounded between its minimum and maximum.
[[nodiscard]] KvarnTile kvarn_tile(std::span<const float> tile, std::int32_t rows,
                                   std::int32_t columns, std::int32_t levels,
                                   std::int32_t iterations);

}  // namespace kvsim
