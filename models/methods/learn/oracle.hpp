#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/view/prompt_scores.hpp"

namespace kvsim {

/// Which score a repeat of the prompt gives its tokens (repeat_scores of models/math).
struct OracleSettings {
  bool plus = false;           // weighted by the token's effect on the residual stream (KVzip+)
  bool residual_norm = false;  // KVzip+: over |h| of the residual stream, not of the normed input
  bool subsample = true;       // softmax over sinks, chunk and repeat, not over the whole sequence
  std::int64_t chunk = 2048;
  std::int64_t sinks = 4;
  std::int64_t carry_over = 8;  // tokens fed before each chunk: only for the cost
};

/// The name under which a trace may hold the norms of the residual stream: a trace's hidden states
/// are the normed input of attention, from which they cannot be had.
inline constexpr const char* kResidualNorm = "score.residual_norm";

/// What a trace must hold for them.
[[nodiscard]] TraceInputs oracle_inputs(const OracleSettings& settings);

/// Scores of the prompt's tokens in the first head of `scores`: [prompt], NaN where the repeat
/// scores none. Errors: ContractError if the layer does not have an input of oracle_inputs.
[[nodiscard]] std::vector<double> oracle_scores(const PromptScores& scores,
                                                const OracleSettings& settings);

/// Recorded numbers `name` ("score.kvzip") of head `head` of `scores`: [tokens].
[[nodiscard]] std::vector<double> recorded_scores(const PromptScores& scores,
                                                  const std::string& name, std::size_t head = 0);

/// What the repeat costs a layer: a further pass of the model over the prompt and what is carried
/// over, the score product chunk by chunk (f = m + carried tokens fed: 2 Hq f (m + f) d FLOPs each,
/// logits of one chunk in fp32) and the scores; KVzip+ projects every value.
[[nodiscard]] PrefillExtra oracle_cost(const OracleSettings& settings, const LayerShape& shape,
                                       std::int32_t d_model, std::int64_t prompt);

}  // namespace kvsim
