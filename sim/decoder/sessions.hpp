#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/methods/composed.hpp"
#include "models/methods/session/session.hpp"
#include "sim/replay/layer_block.hpp"

namespace kvsim {

/// The caches of one method in every layer of a model, compressed after the prompt of `block`, then
/// advanced step by step. The rows of a step may be written into the block layer by layer during
/// the step.
class MethodSessions {
 public:
  /// `block` holds all layers and outlives the sessions.
  MethodSessions(const ComposedMethod& method, LayerBlock& block, std::uint64_t seed);

  [[nodiscard]] CacheBytes bytes() const;
  void begin_step();
  /// Appends the step's rows of `layer` and attends: [n_heads * head_dim] into `out`. Call it for
  /// the layers in order.
  void attend(std::int32_t layer, std::span<float> out);
  void end_step();

 private:
  struct Unit {
    DecisionUnit heads;
    std::unique_ptr<CacheSession> session;
    std::size_t attended = 0;  // heads of this step that have attended so far
  };
  void compress(LayerBlock& block);

  const ComposedMethod& method_;
  std::int32_t n_layers_, group_, head_dim_;
  std::vector<Unit> units_;
};

}  // namespace kvsim
