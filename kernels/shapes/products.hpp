#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// Linear layers and rows of activations.

namespace kvsim::kernels {

struct SurrogateShape {
  std::int64_t tokens = 1, heads = 1;
  std::int64_t inputs = 8;  // d_model, a multiple of 8
};
/// Each head reads every hidden state, and each token reads every head's weights.
[[nodiscard]] constexpr KernelTraffic linear_score_traffic(const SurrogateShape& s,
                                                           std::int64_t element_bytes) {
  const std::int64_t pairs = s.tokens * s.heads;
  return {Bytes{pairs * (s.inputs * (element_bytes + 4) + 4)}, Bytes{pairs * 8}};
}

/// A linear layer: m rows of k inputs, n outputs.
struct GemmShape {
  std::int64_t m = 1, n = 1;
  std::int64_t k = 8;  // a multiple of 8
};
inline constexpr std::int64_t kGemmTile = 32;  // rows, and outputs, per block
/// Rows are read once per tile of outputs, weights once per tile of rows. Each warp of a block
/// reads the biases of its outputs.
[[nodiscard]] constexpr KernelTraffic gemm_traffic(const GemmShape& s, std::int64_t a_bytes,
                                                   std::int64_t b_bytes, bool with_bias) {
  const std::int64_t tiles_m = ceil_div(s.m, kGemmTile);
  const std::int64_t tiles_n = ceil_div(s.n, kGemmTile);
  constexpr std::int64_t kWarps = 8;
  return {Bytes{tiles_n * s.m * s.k * a_bytes + tiles_m * s.n * s.k * b_bytes +
                (with_bias ? 4 * kWarps * tiles_m * s.n : 0)},
          Bytes{s.m * s.n * b_bytes}};
}
/// Weights are read once, the row once per output.
[[nodiscard]] constexpr KernelTraffic gemv_traffic(const GemmShape& s, std::int64_t a_bytes,
                                                   std::int64_t b_bytes, bool with_bias) {
  return {Bytes{s.n * (s.k * (a_bytes + b_bytes) + (with_bias ? 4 : 0))}, Bytes{s.n * b_bytes}};
}

struct RowsShape {
  std::int64_t rows = 1, width = 1;
};
/// A row's maximum and sum are computed in one pass, its probabilities in a second.
[[nodiscard]] constexpr KernelTraffic softmax_traffic(const RowsShape& s, std::int64_t from_bytes,
                                                      std::int64_t to_bytes) {
  return {Bytes{2 * s.rows * s.width * from_bytes}, Bytes{s.rows * s.width * to_bytes}};
}
/// A row stays in shared memory; each row reads the weights.
[[nodiscard]] constexpr KernelTraffic rms_norm_traffic(const RowsShape& s,
                                                       std::int64_t element_bytes) {
  const std::int64_t row = s.width * element_bytes;
  return {Bytes{2 * s.rows * row}, Bytes{s.rows * row}};
}

}  // namespace kvsim::kernels
