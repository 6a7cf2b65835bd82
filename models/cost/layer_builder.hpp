#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/step.hpp"

namespace kvsim {

/// Sizes of one layer's cache, whole batch, by entries per stored head. A method knows heads of one
/// width; a latent cache is shown to it as one head whose key and value are half the latent row.
class CacheRows {
 public:
  CacheRows(const CostInput& in, const AttentionSpec& attention);

  [[nodiscard]] LayerCache cache(std::int64_t entries) const;
  [[nodiscard]] const LayerShape& shape() const { return shape_; }
  [[nodiscard]] std::int32_t stored_heads() const { return stored_heads_; }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] Bytes keys(std::int64_t entries) const;    // payload, not rounded
  [[nodiscard]] Bytes values(std::int64_t entries) const;  // payload, not rounded
  [[nodiscard]] Bytes side(std::int64_t entries) const;

 private:
  const CostInput& in_;
  LayerShape shape_;
  std::int32_t stored_heads_ = 0;
  Dtype dtype_ = Dtype::kFp16;
  std::int64_t key_elements_ = 0;  // of one entry of every stored head, one sequence
  std::int64_t value_elements_ = 0;
};

/// Writes down the operators and tensors of one layer. Tensors follow Hugging Face's decoder layer
/// where the stack keeps its inputs; other stacks free each tensor after its last use.
///
/// Left out: weights' layout, attention sinks, the loop over experts (the tokens of all experts are
/// held at once, as a grouped GEMM does), prefill of a latent cache under weight absorption.
class LayerBuilder {
 public:
  LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens);

  [[nodiscard]] OpGraph prefill(const PrefillMoment& moment);
  [[nodiscard]] OpGraph decode(const DecodeMoment& moment);
  [[nodiscard]] OpGraph compress(std::int64_t prompt, std::int64_t kept);

 private:
  struct Projected {  // Q, K, V of the step, as attention takes them
    std::optional<std::size_t> q, k, v;
    OpIndex op = 0;
  };
  struct CacheTensors {
    std::optional<std::size_t> keys, values, side;
  };

  [[nodiscard]] std::size_t activation(std::string_view name, std::int64_t elements, OpIndex first);
  void drop(const std::optional<std::size_t>& tensor, OpIndex last);
  OpIndex gemm(std::string_view name, std::int64_t rows, std::int64_t in, std::int64_t out,
               OpIndex after, double weight_share = 1);
  OpIndex stream(std::string_view name, OpFamily family, std::int64_t read, std::int64_t written,
                 OpIndex after, std::int32_t launches = 1);
  OpIndex norm(std::string_view name, OpIndex after);

  Projected project(OpIndex after);
  OpIndex attend_prompt(const Projected& qkv, std::int64_t prompt);
  OpIndex attend_cache(const Projected& qkv, const DecodeMoment& moment,
                       const StepTraffic& traffic);
  OpIndex score_prompt(OpIndex after, const PrefillMoment& moment);
  OpIndex feed_forward(OpIndex after);
  struct BlockSpec {
    std::int64_t rows = 0;
    std::int64_t width = 0;
    double weight_share = 1;  // distinct experts whose weights are read
  };
  OpIndex dense_block(const BlockSpec& block, OpIndex after);
  OpIndex compact(CacheTensors& cache, std::int64_t from, std::int64_t to, OpIndex after);
  [[nodiscard]] std::int64_t kv_elements() const;  // made per token, before the method stores them
  OpIndex close(OpIndex attention);
  OpIndex replace(std::optional<std::size_t>& tensor, std::string_view name, std::string_view copy,
                  Owner while_copied, Bytes fresh, OpIndex at);
  std::size_t hold_cache(std::string_view name, Bytes payload, OpIndex first);

  const CostInput& in_;
  const Llm& llm_;
  const AttentionSpec& attention_;
  const MlpSpec& mlp_;
  CacheRows rows_;
  std::int64_t tokens_;  // of a sequence in this step
  std::int64_t m_;       // tokens of the batch
  Dtype dtype_;          // of activations
  OpGraph graph_;
  std::optional<std::size_t> input_;      // the layer's hidden states
  std::optional<std::size_t> normed_;     // input of the attention block
  std::optional<std::size_t> attended_;   // output of attention, then of its projection
  std::optional<std::size_t> block_out_;  // output of the feed-forward block
};

}  // namespace kvsim
