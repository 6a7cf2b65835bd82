#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/methods/view/vectors.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Where a marked trace asks for what is far back. A head whose query gives much to one token of
/// the context retrieves it (Wu et al. 2024, arXiv 2404.15574, "Retrieval Head Mechanistically
/// Explains Long-Context Factuality", section 2, where a head's score is how often that token is
/// copied); an error there is an error of the answer, and one of a head that spreads its attention
/// hardly is.
struct RetrievalMarks {
  /// The context: tokens [first, end), without the first ones, which take attention that nothing
  /// else needs.
  std::int64_t first = 0, end = 0;
  std::vector<bool> predicts;  // [tokens]: the next token is one of an answer after the context
};
/// Answers are the segments of that name, else all from `answer_start` on. nullopt: the trace has
/// no `answer_start`, which such a segment implies.
[[nodiscard]] std::optional<RetrievalMarks> retrieval_marks(const TraceInfo& info);

/// Of queries [first, first + count) those that predict an answer: the largest probability that one
/// gives to a token of the context, out [count, group]; 0 for other queries. `log_sum`
/// [count, group]: log-sum-exp of all logits of a query.
void largest_in_context(const HeadVectors& head, const RetrievalMarks& marks, std::int64_t first,
                        std::int64_t count, std::span<const double> log_sum, std::span<float> out);

}  // namespace kvsim
