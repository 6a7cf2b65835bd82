#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/view/prompt_scores.hpp"

namespace kvsim {

/// The score that a repeat of the prompt assigns to its tokens (repeat_scores of models/math).
struct OracleSettings {
  bool plus = false;           // weighted by the token's effect on the residual stream (KVzip+)
  bool residual_norm = false;  // KVzip+: divide by |h| of the residual stream, not normed input
  bool subsample = true;       // softmax over sinks, chunk and repeat, not over the whole sequence
  std::int64_t chunk = 2048;
  std::int64_t sinks = 4;
  std::int64_t carry_over = 8;  // tokens fed before each chunk; used only by the cost
};

/// Name of the norms of the residual stream in a trace. They cannot be derived from a trace's
/// hidden states, which are the normed input of attention.
inline constexpr const char* kResidualNorm = "score.residual_norm";

/// Returns the trace inputs that these scores require.
[[nodiscard]] TraceInputs oracle_inputs(const OracleSettings& settings);

/// Returns scores of the prompt's tokens in the first head of `scores`: [prompt], NaN for tokens
/// that the repeat does not score. Errors: ContractError if the layer has no data for an input of
/// oracle_inputs.
[[nodiscard]] std::vector<double> oracle_scores(const PromptScores& scores,
                                                const OracleSettings& settings);

/// Returns the recorded values `name` ("score.kvzip") of head `head` of `scores`: [tokens].
[[nodiscard]] std::vector<double> recorded_scores(const PromptScores& scores,
                                                  const std::string& name, std::size_t head = 0);

/// Returns the cost of the repeat per layer. It includes another pass of the model over the prompt
/// and the carried-over tokens, and the score product of each chunk (f = m + carried-over tokens: 2
/// Hq f (m + f) d FLOPs each, logits of one chunk in fp32). It also includes the scores; KVzip+
/// projects all values.
[[nodiscard]] PrefillExtra oracle_cost(const OracleSettings& settings, const LayerShape& shape,
                                       std::int32_t d_model, std::int64_t prompt);

}  // namespace kvsim
