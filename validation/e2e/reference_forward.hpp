#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/math/attention/rope.hpp"
#include "models/methods/session/session.hpp"
#include "models/methods/view/prompt_scores.hpp"
#include "validation/e2e/plan.hpp"

namespace kvsim {

/// The loop's reference on the CPU: plain sums in double precision with the loop's weights, and the
/// method's replay. Queries, keys and values are rounded to fp32, the input of replays.
class ReferenceForward {
 public:
  /// `weights` in the layout of DecodeLoop. The prompt's queries, keys and values are random
  /// numbers.
  ReferenceForward(const E2ePlan& plan, std::vector<float> weights);

  /// Expected contents of the loop's buffers for one layer of the last step.
  struct Layer {
    std::vector<double> q, keys, values;  // [batch, heads, head_dim]
    std::vector<double> attended;         // [batch, n_heads, head_dim]
  };
  /// Runs the next step on `tokens` [batch].
  void step(std::span<const std::int32_t> tokens);
  [[nodiscard]] const Layer& layer(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] const std::vector<double>& logits() const { return logits_; }
  /// Session of row (sequence * n_kv_heads + head).
  [[nodiscard]] const CacheSession& session(std::int64_t layer, std::int64_t row) const {
    return *streams_[index(layer, row)].session;
  }

 private:
  /// Projections of one stored head of one sequence, which the session reads.
  struct HeadStream {
    std::vector<float> q, keys, values;
    std::unique_ptr<CacheSession> session;
  };
  [[nodiscard]] std::size_t index(std::int64_t layer, std::int64_t row) const {
    return static_cast<std::size_t>(layer * plan_.loop.cache_rows() + row);
  }
  void begin(HeadStream& stream, std::int64_t layer, std::int64_t row);
  void attend(std::int64_t layer, const std::vector<double>& projected);

  const E2ePlan& plan_;
  std::vector<float> weights_;
  Rope rope_;
  std::vector<HeadStream> streams_;
  std::vector<Layer> layers_;
  std::vector<double> logits_;
  std::int64_t done_ = 0;
};

}  // namespace kvsim
