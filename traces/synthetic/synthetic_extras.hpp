#pragma once

#include <cstdint>
#include <vector>

#include "traces/synthetic/synthetic_layer.hpp"

namespace kvsim::synthetic {

// Scores and decisions that a trace may record in addition to its attention; generate_trace
// describes them.

/// Returns [tokens, kv_heads]: the largest attention of sampled queries.
[[nodiscard]] std::vector<float> kvzip_scores(const GenerateOptions& o, const Layer& layer);

/// Returns each score times |v| over its head's mean |v|.
[[nodiscard]] std::vector<float> weighted_by_values(const GenerateOptions& o, const Layer& layer,
                                                    std::vector<float> scores);

/// Returns ln(score + 1e-6) with noise of 0.3 nats.
[[nodiscard]] std::vector<float> predicted(const GenerateOptions& o, std::int64_t layer,
                                           std::vector<float> scores);

struct Decisions {
  std::vector<float> alpha, omega, evict;  // [tokens, kv_heads]
};

/// Returns decision.* as described at generate_trace; `scores` are kvzip's.
[[nodiscard]] Decisions decide(const GenerateOptions& o, const Layer& layer,
                               const std::vector<float>& scores);

}  // namespace kvsim::synthetic
