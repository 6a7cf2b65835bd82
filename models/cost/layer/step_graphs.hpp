#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/cost/step.hpp"

namespace kvsim {

/// Graph of one layer's prefill. Keys and values stay in the graph from the operator that computes
/// them to past its end, compressed on the way where the method compresses layer by layer.
[[nodiscard]] OpGraph prefill_layer(const CostInput& in, std::int32_t layer,
                                    const PrefillState& moment);
/// The same at several numbers of entries kept: what does not depend on them is written once. The
/// layer computes the whole prompt.
[[nodiscard]] std::vector<OpGraph> prefill_layers(const CostInput& in, std::int32_t layer,
                                                  const PrefillState& moment,
                                                  std::span<const std::int64_t> kept);
/// Compression of one layer to fewer entries after all layers have run (PrefillPeak::kAllLayers).
[[nodiscard]] OpGraph compress_layer(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                                     std::int64_t kept);
[[nodiscard]] OpGraph decode_layer(const CostInput& in, std::int32_t layer,
                                   const DecodeState& moment);
/// The same with one operator in place of all that is the same at every moment of a layer, so that
/// two moments of these differ in cost as much as those of decode_layer. Of tensors not all.
[[nodiscard]] OpGraph decode_layer_middle(const CostInput& in, std::int32_t layer,
                                          const DecodeState& moment);
/// Token embedding, and final norm with output projection, of `tokens` tokens a sequence.
[[nodiscard]] OpGraph embed_tokens(const CostInput& in, std::int64_t tokens);
/// embed_tokens of a GPU's part of a prompt.
[[nodiscard]] OpGraph embed_prompt(const CostInput& in, std::int64_t prompt);
[[nodiscard]] OpGraph output_logits(const CostInput& in, std::int64_t tokens);
/// The rows that the end of a step works on.
struct HeadRows {
  std::int64_t normed = 0;   // of the final norm
  std::int64_t logits = 0;   // that meet the output projection
  std::int64_t sampled = 0;  // sampled tokens; 0 of both: only the norm
};
[[nodiscard]] OpGraph output_logits(const CostInput& in, const HeadRows& rows);

/// `score_rows` of the first layers, the last of them of all further layers; not empty.
[[nodiscard]] Step prefill_step(const CostInput& in, std::int64_t prompt,
                                const std::vector<std::int64_t>& score_rows);
[[nodiscard]] Step decode_step(const CostInput& in, std::int64_t prompt, std::int64_t tokens);

}  // namespace kvsim
