#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/cost/step.hpp"

namespace kvsim {

/// Returns the graph of one layer's prefill. Keys and values are alive from the operator that
/// computes them to beyond the graph's end; they are compressed if the method compresses layer by
/// layer.
[[nodiscard]] OpGraph prefill_layer(const CostInput& in, std::int32_t layer,
                                    const PrefillState& moment);
/// The same for several numbers of kept entries; the common part is built once. The layer computes
/// the whole prompt.
[[nodiscard]] std::vector<OpGraph> prefill_layers(const CostInput& in, std::int32_t layer,
                                                  const PrefillState& moment,
                                                  std::span<const std::int64_t> kept);
/// Compression of one layer to fewer entries after all layers have run (PrefillPeak::kAllLayers).
[[nodiscard]] OpGraph compress_layer(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                                     std::int64_t kept);
[[nodiscard]] OpGraph decode_layer(const CostInput& in, std::int32_t layer,
                                   const DecodeState& moment);
/// As decode_layer, with one operator instead of all operators that are equal for every state of
/// the layer: cost differences between two states are the same. Not all tensors are included.
[[nodiscard]] OpGraph decode_layer_middle(const CostInput& in, std::int32_t layer,
                                          const DecodeState& moment);
/// Token embedding, and final norm with output projection, for `tokens` tokens per sequence.
[[nodiscard]] OpGraph embed_tokens(const CostInput& in, std::int64_t tokens);
/// embed_tokens for a GPU's part of a prompt.
[[nodiscard]] OpGraph embed_prompt(const CostInput& in, std::int64_t prompt);
[[nodiscard]] OpGraph output_logits(const CostInput& in, std::int64_t tokens);
/// Row counts at the end of a step.
struct HeadRows {
  std::int64_t normed = 0;   // of the final norm
  std::int64_t logits = 0;   // of the output projection
  std::int64_t sampled = 0;  // sampled tokens; if this and `logits` are 0: only the norm
};
[[nodiscard]] OpGraph output_logits(const CostInput& in, const HeadRows& rows);

/// `score_rows` by layer; the last value applies to all further layers; not empty.
[[nodiscard]] Step prefill_step(const CostInput& in, std::int64_t prompt,
                                const std::vector<std::int64_t>& score_rows);
[[nodiscard]] Step decode_step(const CostInput& in, std::int64_t prompt, std::int64_t tokens);

}  // namespace kvsim
