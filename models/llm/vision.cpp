#include "models/llm/vision.hpp"

#include <algorithm>

namespace kvsim {
namespace {
constexpr std::int64_t kValue = 2;  // bytes, 16-bit
constexpr std::int64_t kFloat = 4;
}  // namespace

std::int64_t vision_parameters(const VisionEncoder& vision) {
  const std::int64_t w = vision.width, m = vision.mlp_width;
  const std::int64_t attention = 4 * w * w + 4 * w;  // Q, K, V and output, with biases
  const std::int64_t mlp = 2 * w * m + m + w;
  const std::int64_t layer = attention + mlp + 2 * (2 * w);  // two norms: scale and bias
  const std::int64_t merged = w * vision.patches_per_token;
  const std::int64_t projections = merged * merged + merged + (merged + 1) * vision.output_width;
  const std::int64_t embedding = (vision.patch_values + 1) * w + vision.positions * w;
  // The last merger's norm is over patches, those of the other mergers are over merged patches.
  return embedding + vision.layers * layer + projections + 2 * w +
         vision.extra_mergers * (projections + 2 * merged);
}

Bytes vision_peak(const VisionEncoder& vision, std::int64_t tokens, std::int32_t ranks) {
  const std::int64_t w = vision.width;
  const std::int64_t held = kValue * (vision.patch_values + 2 * w);  // pixels, state, its norm
  // Q, K and V; Q and K together; the same in fp32, before and after the rotation.
  const std::int64_t attention = kValue * (3 * w + 2 * w) + kFloat * (2 * w + 2 * w);
  const std::int64_t mlp = kValue * 2 * vision.mlp_width;
  const std::int64_t patches = tokens * vision.patches_per_token;
  return Bytes{patches * (held + (std::max(attention, mlp) + ranks - 1) / ranks)};
}

Bytes vision_outputs(const VisionEncoder& vision, std::int64_t tokens) {
  return Bytes{kValue * tokens * vision.output_width * (1 + vision.extra_mergers)};
}

}  // namespace kvsim
