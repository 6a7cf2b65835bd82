#pragma once

#include <cstdint>

#include "models/units/units.hpp"

namespace kvsim {

/// The vision encoder of a Qwen3-VL or Qwen3.5 model: a transformer over patches of an image. Each
/// `patches_per_token` patches are merged into a token of the language model. 16-bit values.
/// Source: vllm model_executor/models/qwen3_vl.py.
struct VisionEncoder {
  std::int32_t width = 0;      // of a patch's hidden state
  std::int32_t mlp_width = 0;  // of its feed-forward block
  std::int32_t layers = 0;
  std::int32_t patch_values = 0;  // of a patch's pixels: channels x frames x side x side
  std::int32_t positions = 0;     // rows of the position table
  std::int32_t patches_per_token = 4;
  std::int32_t output_width = 0;   // d_model of the language model
  std::int32_t extra_mergers = 0;  // layers whose states the language model reads, too (deepstack)
  std::int64_t image_tokens = 0;   // of the largest image that the model's processor passes on
};

/// All parameters, exact.
[[nodiscard]] std::int64_t vision_parameters(const VisionEncoder& vision);
/// Memory beyond the weights while it encodes `tokens` tokens, on one of `ranks` GPUs that share
/// its heads and feed-forward blocks. The peak is in attention, which rotates fp32 copies of
/// queries and keys, or in the feed-forward block.
[[nodiscard]] Bytes vision_peak(const VisionEncoder& vision, std::int64_t tokens,
                                std::int32_t ranks);
/// What `tokens` encoded tokens take until the language model has read them.
[[nodiscard]] Bytes vision_outputs(const VisionEncoder& vision, std::int64_t tokens);

}  // namespace kvsim
