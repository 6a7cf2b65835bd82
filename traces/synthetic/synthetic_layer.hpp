#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "models/math/lanes.hpp"
#include "traces/synthetic/synthetic_rotation.hpp"
#include "traces/synthetic/synthetic_text.hpp"

namespace kvsim::synthetic {

/// One layer, token-major as in the file.
struct Layer {
  std::vector<float> q, k, v;     // [tokens, heads or kv_heads, head_dim]
  std::vector<float> key_cosine;  // [tokens, kv_heads]: cosine of k before RoPE with that of the
                                  // previous token
  std::vector<float> key_square;  // [tokens, kv_heads]: |k|^2
};

/// Fills v, k after RoPE, and the recorded properties of k before it.
void fill_keys(const GenerateOptions& o, const std::vector<float>& latents,
               const Attractors& attractors, std::int64_t layer, Rotation& rope, Layer& out);

/// Fills q after RoPE; k must be filled.
void fill_queries(const GenerateOptions& o, const Text& text, const Attractors& attractors,
                  std::int64_t layer, Rotation& rope, Layer& out);

/// Adds four sums in a fixed order, then the rest: bit-identical for any vector width.
inline float dot(const float* a, const float* b, std::int64_t n) {
  lanes::F4 sum{};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    lanes::F4 x, y;
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    sum += x * y;
  }
  float total = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace kvsim::synthetic
