#pragma once

#include <cstdint>

#include "models/units/units.hpp"

namespace kvsim {

/// The vision encoder of a Qwen3-VL or Qwen3.5 model: a transformer over patches of an image.
/// Groups of `patches_per_token` patches are merged into a token of the language model. Values have
/// 16 bits.
/// Source: vllm model_executor/models/qwen3_vl.py.
struct VisionEncoder {
  std::int32_t width = 0;      // of a patch's hidden state
  std::int32_t mlp_width = 0;  // of its feed-forward block
  std::int32_t layers = 0;
  std::int32_t patch_values = 0;  // of a patch's pixels: channels x frames x side x side
  std::int32_t positions = 0;     // rows of the position table
  std::int32_t patches_per_token = 4;
  std::int32_t output_width = 0;   // d_model of the language model
  std::int32_t extra_mergers = 0;  // more layers whose states the language model reads (deepstack)
  std::int64_t image_tokens = 0;   // tokens of the largest image that the model's processor accepts
};

/// Returns the exact number of parameters.
[[nodiscard]] std::int64_t vision_parameters(const VisionEncoder& vision);
/// Returns the peak memory beyond the weights while encoding `tokens` tokens, on one of `ranks`
/// GPUs that share its heads and feed-forward blocks. The peak is in attention, which rotates fp32
/// copies of queries and keys, or in the feed-forward block.
[[nodiscard]] Bytes vision_peak(const VisionEncoder& vision, std::int64_t tokens,
                                std::int32_t ranks);
/// Returns the bytes of `tokens` encoded tokens until the language model has read them.
[[nodiscard]] Bytes vision_outputs(const VisionEncoder& vision, std::int64_t tokens);

}  // namespace kvsim
