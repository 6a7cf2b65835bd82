#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/methods/view/vectors.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Positions at which a marked trace requires distant tokens. A head whose query assigns a large
/// probability to one token of the context retrieves it (Wu et al. 2024, arXiv 2404.15574,
/// "Retrieval Head Mechanistically Explains Long-Context Factuality", section 2, where a head's
/// score is how often it copies that token). An error of such a head is an error of the answer; an
/// error of a head with diffuse attention hardly is.
struct RetrievalMarks {
  /// The context: tokens [first, end), without the first tokens (attention sinks).
  std::int64_t first = 0, end = 0;
  std::vector<bool> predicts;  // [tokens]: the next token belongs to an answer after the context
};
/// Answers are the segments of that name, or all tokens from `answer_start`. Returns nullopt if the
/// trace has no `answer_start`, which such a segment implies.
[[nodiscard]] std::optional<RetrievalMarks> retrieval_marks(const TraceInfo& info);

/// For queries [first, first + count) that predict an answer, computes the largest probability that
/// one assigns to a token of the context, out [count, group]; 0 for other queries. `log_sum`
/// [count, group]: log-sum-exp of all logits of a query.
void largest_in_context(const HeadVectors& head, const RetrievalMarks& marks, std::int64_t first,
                        std::int64_t count, std::span<const double> log_sum, std::span<float> out);

}  // namespace kvsim
