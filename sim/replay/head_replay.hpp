#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "models/math/causal_attention.hpp"
#include "models/math/rope.hpp"
#include "models/methods/composed.hpp"

namespace kvsim {

/// The recorded vectors of one KV head and the query heads that share it.
struct HeadVectors {
  std::span<const float> q;       // [group, tokens, d]
  std::span<const float> keys;    // [tokens, d]
  std::span<const float> values;  // [tokens, d]
  std::int32_t group = 1;
  std::int32_t head_dim = 0;
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;
  double scale = 0;
};

/// What one stored head did under a method, step by step.
struct HeadSeries {
  std::int32_t first_query = 0;  // of the group's query heads, the first this stored head serves
  std::int32_t queries = 1;
  std::int64_t entries_after_prefill = 0;
  std::vector<std::int32_t> held;               // [steps], after compression
  std::vector<std::int32_t> attended;           // [steps]
  std::vector<std::uint8_t> compressed;         // [steps]
  std::vector<float> rel_error;                 // [steps, queries]
  std::vector<float> cosine;                    // [steps, queries]
  std::vector<float> retained_mass;             // [steps, queries], empty for methods that merge
  std::vector<std::vector<std::int32_t>> kept;  // at the end: members per entry
};

/// Replays one KV head's recorded vectors through `method`; `reference` is causal_attention from
/// row `prompt` on. One series per stored head: one, or one a query head.
///
/// rel_error = |o' - o| / |o| (0 where both vanish, 1 where only o does), cosine of the two
/// likewise 1 or 0. retained_mass: share of the full row's probability that the held entries had.
/// Errors: ContractError if shapes disagree.
[[nodiscard]] std::vector<HeadSeries> replay_head(const ComposedMethod& method, std::int32_t layer,
                                                  const HeadVectors& head,
                                                  const CausalAttention& reference,
                                                  PromptScores& group_scores, const Rope* rope,
                                                  bool want_kept);

/// Prompt scores computed from recorded vectors, each decay once, for the whole group.
class RecordedPromptScores final : public PromptScores {
 public:
  explicit RecordedPromptScores(const HeadVectors& head) : head_{head} {}
  [[nodiscard]] std::int32_t prompt() const override {
    return static_cast<std::int32_t>(head_.prompt);
  }
  [[nodiscard]] std::span<const double> column_sums(double decay) override;

 private:
  HeadVectors head_;
  std::map<double, std::vector<double>> sums_;
};

}  // namespace kvsim
