#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/decoder/checkpoint.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// The parts of a decoder around its attention, in fp32. The caller computes the attention and
/// decides which cache it reads. Rows are [n, d_model], one per token. Thread-safe.
class Decoder {
 public:
  /// `checkpoint` outlives the decoder.
  explicit Decoder(const Checkpoint& checkpoint) : weights_{checkpoint} {}

  [[nodiscard]] const DecoderShape& shape() const { return weights_.shape; }
  /// Returns embeddings of tokens [n, d_model]. Errors: ContractError for an id outside the
  /// vocabulary.
  [[nodiscard]] std::vector<float> embed(std::span<const std::int32_t> tokens) const;
  /// Returns the input of a layer's attention module: rows after the layer's first norm.
  [[nodiscard]] std::vector<float> normed(std::int32_t layer, std::span<const float> rows) const;
  /// Writes rotated queries and keys, and values, of tokens first, first + 1, … into `out`, which
  /// is laid out by head for `tokens` tokens.
  void project(std::int32_t layer, const std::vector<float>& normed, std::int64_t first,
               std::int64_t tokens, TraceLayer& out) const;
  /// Replaces `rows` with the layer's output, given the attention outputs [n, n_heads * head_dim].
  void finish(std::int32_t layer, std::span<const float> attention, std::span<float> rows) const;
  /// The weight [d_model, n_heads * head_dim] that multiplies attention outputs.
  [[nodiscard]] std::span<const float> output_projection(std::int32_t layer) const {
    return weights_.layers[static_cast<std::size_t>(layer)].o.data;
  }
  /// Returns logits [n, vocab] of the token after each row.
  [[nodiscard]] std::vector<float> logits(std::span<const float> rows) const;

  /// Computes causal attention of tokens first … first + n - 1 over tokens from `oldest`, for a
  /// layer laid out by head for `tokens` tokens: [n, n_heads * head_dim].
  [[nodiscard]] std::vector<float> attend(const TraceLayer& layer, std::int64_t first,
                                          std::int64_t n, std::int64_t tokens,
                                          std::int64_t oldest = 0) const;

 private:
  const Checkpoint& weights_;
};

}  // namespace kvsim
