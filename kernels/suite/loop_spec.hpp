#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/shapes.hpp"

namespace kvsim::kernels {

/// A decoder's sizes: dense, gated feed-forward blocks, RMSNorm, rotary positions (Llama).
struct LoopModel {
  std::int64_t n_layers = 1, d_model = 256, n_heads = 4, n_kv_heads = 2;
  std::int64_t head_dim = 64;  // 64 or 128
  std::int64_t d_ff = 512, vocab = 256;
  double rope_theta = 500'000, epsilon = 1e-5;
};

/// Cache policy of the loop.
enum class LoopMethod : std::uint8_t {
  kFull,       // appends
  kStreaming,  // sinks and a ring of the last entries
  kHeavy,      // accumulated scores: H2O
  kResidual    // the same with decay; evicted entries are merged into residual slots: ZeroMerge
};

/// A loop over `steps` decode steps after a prompt of `prompt` tokens per sequence. Under a method
/// with a budget the prompt is longer than the budget: the cache has `budget` entries per stored
/// head before every step, attends to one more, and drops one.
struct LoopSpec {
  LoopModel model;
  LoopMethod method = LoopMethod::kFull;
  std::int64_t batch = 1, prompt = 1, steps = 1;
  std::int64_t budget = 0;     // entries; ignored by kFull
  std::int64_t sinks = 0;      // kStreaming: first entries, never evicted
  std::int64_t recent = 0;     // kHeavy, kResidual: last entries that stay
  std::int64_t slots = 0;      // kResidual: entries of the budget that hold merged entries
  float decay = 1, alpha = 0;  // of scores; of the logarithm of counts
  std::uint64_t seed = 0;      // of weights, tokens and the prompt's cache
  std::int64_t entries_per_split = 64;

  [[nodiscard]] constexpr std::int64_t cache_rows() const { return batch * model.n_kv_heads; }
  [[nodiscard]] constexpr bool scores() const {
    return method == LoopMethod::kHeavy || method == LoopMethod::kResidual;
  }
  /// Entries before step `step` (from 0), and the capacity of a row, whose scores are a multiple of
  /// 16 bytes.
  [[nodiscard]] constexpr std::int64_t held(std::int64_t step) const {
    return method == LoopMethod::kFull ? prompt + step : budget;
  }
  [[nodiscard]] constexpr std::int64_t capacity() const {
    return ceil_div(held(steps - 1) + 1, 4) * 4;
  }
  [[nodiscard]] constexpr std::int64_t qkv_width() const {
    return (model.n_heads + 2 * model.n_kv_heads) * model.head_dim;
  }
};

/// Elements of the weights of one layer, in memory order.
struct LayerWeights {
  std::int64_t input_norm = 0, qkv = 0, out = 0, feed_forward_norm = 0, gate_up = 0, down = 0;
  std::int64_t size = 0;
};
/// Offset of each weight within its layer.
[[nodiscard]] constexpr LayerWeights layer_weights(const LoopSpec& s) {
  const LoopModel& m = s.model;
  LayerWeights w;
  w.qkv = w.input_norm + m.d_model;
  w.out = w.qkv + s.qkv_width() * m.d_model;
  w.feed_forward_norm = w.out + m.d_model * m.n_heads * m.head_dim;
  w.gate_up = w.feed_forward_norm + m.d_model;
  w.down = w.gate_up + 2 * m.d_ff * m.d_model;
  w.size = w.down + m.d_model * m.d_ff;
  return w;
}
/// The embedding, the layers, the final norm and the output projection.
[[nodiscard]] constexpr std::int64_t weight_elements(const LoopSpec& s) {
  return 2 * s.model.vocab * s.model.d_model + s.model.d_model +
         s.model.n_layers * layer_weights(s).size;
}
/// Keys, or values, of all layers.
[[nodiscard]] constexpr std::int64_t cache_elements(const LoopSpec& s) {
  return s.model.n_layers * s.cache_rows() * s.capacity() * s.model.head_dim;
}

/// An operator of the loop under its name in the operator graph, summed since the last reset: the
/// bytes of its launches by formula, and as counted by the simulator.
struct LoopOp {
  std::string name;
  std::int64_t runs = 0;
  KernelTraffic model, counted;
};

}  // namespace kvsim::kernels
