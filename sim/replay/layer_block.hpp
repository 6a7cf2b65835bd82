#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/math/attention/causal_attention.hpp"
#include "models/math/attention/rope.hpp"
#include "models/methods/composed.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/step_sample.hpp"
#include "sim/replay/surrogates.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// Stored heads for which a method decides jointly.
struct DecisionUnit {
  std::int32_t layer = 0;  // for a pair of layers, the shallower one
  struct StoredHead {
    std::int32_t layer = 0;
    std::int32_t kv_head = 0;
    std::int32_t query = -1;  // index in the group; -1: shared by the whole group
    auto operator<=>(const StoredHead&) const = default;
  };
  std::vector<StoredHead> heads;
};

/// Rows of a layer that were not read from a trace. `hidden` [tokens, d_model] may be empty.
struct LayerRows {
  TraceLayer rows;
  std::vector<float> hidden;
  std::span<const float> output_projection{};  // [d_model, n_heads * head_dim]; not owned
};

/// KV heads first … first + count - 1 of a layer.
struct HeadRange {
  std::int32_t first = 0, count = 0;
};

/// Consecutive layers of a trace in memory, with the data that all methods share.
class LayerBlock {
 public:
  /// Reads layers first … first + count - 1 and the optional tensors that `inputs` lists. Predicts
  /// scores with `surrogates`, by name. Reads only the KV heads of `heads`; the vectors of other
  /// heads are empty.
  LayerBlock(const Trace& trace, std::int32_t first, std::int32_t count, const TraceInputs& inputs,
             const Rope* rope, const std::map<std::string, SurrogateFile>& surrogates = {},
             std::optional<HeadRange> heads = {});
  /// Takes all layers of a model that are already in memory.
  LayerBlock(const TraceInfo& info, std::vector<LayerRows> layers, const Rope* rope);

  [[nodiscard]] const LayerVectors& layer(std::int32_t layer) const { return at(layer).view; }
  /// The rows to which the views of `layer` point: their sizes must not change.
  [[nodiscard]] TraceLayer& rows(std::int32_t layer) {
    return layers_[static_cast<std::size_t>(layer - first_)].rows;
  }
  /// Computes the reference attention of every head of the block in parallel, at the steps of
  /// `sample`. Rows of other steps are 0.
  void compute_references(std::int32_t threads, const StepSample& sample);

  [[nodiscard]] const CausalAttention& reference(std::int32_t layer, std::size_t kv_head) const {
    return at(layer).references[kv_head];
  }

  [[nodiscard]] std::int32_t first() const { return first_; }
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(layers_.size()); }
  /// Returns the units of `method` that begin in the layers of this block, by layer, then by head.
  [[nodiscard]] std::vector<DecisionUnit> units(const ComposedMethod& method) const;
  [[nodiscard]] std::vector<HeadVectors> vectors(const DecisionUnit& unit) const;
  [[nodiscard]] std::vector<HeadReference> references(const DecisionUnit& unit) const;
  /// Scores shared by all methods with that unit. Not thread-safe.
  [[nodiscard]] PromptScores& scores(const DecisionUnit& unit);
  /// The same, not shared with earlier callers.
  [[nodiscard]] PromptScores fresh_scores(const DecisionUnit& unit) const;
  [[nodiscard]] SessionPlace place(const DecisionUnit& unit, std::uint64_t seed) const;

 private:
  struct Layer {
    TraceLayer rows;
    TraceRows reused;
    std::vector<float> hidden, output_projection;
    std::map<std::string, std::vector<float>> per_head;
    LayerVectors view;
    std::vector<CausalAttention> references;    // by KV head
    std::vector<std::vector<float>> retrieved;  // by KV head: [steps, group]; empty without answers
  };
  [[nodiscard]] const Layer& at(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer - first_)];
  }
  [[nodiscard]] HeadVectors head(std::int32_t layer, std::int32_t kv_head) const;

  const TraceInfo& info_;
  std::int32_t first_;
  HeadRange range_;
  const Rope* rope_;
  std::vector<std::int32_t> token_ids_;
  std::vector<Layer> layers_;
  std::map<std::vector<DecisionUnit::StoredHead>, std::unique_ptr<PromptScores>> scores_;
};

}  // namespace kvsim
