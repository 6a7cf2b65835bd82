#pragma once

#include <cstdint>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

/// The convention for experts that the configuration follows.
enum class Experts : std::uint8_t { kNone, kMixtral, kGptOss, kQwen2, kQwen3, kDeepSeek };

struct Block {
  MlpSpec mlp;
  std::int64_t extra = 0;  // biases and gates of one such layer
};

/// The feed-forward block of each layer: dense, or routed to experts.
class Blocks {
 public:
  /// Throws InputError.
  Blocks(const Field& config, Experts experts, std::int32_t d_model);

  /// Adds one load-balancing bias per routed expert (DeepSeek-V3, GLM-4.5).
  void add_router_bias() { sparse_.extra += sparse_.mlp.n_experts; }

  [[nodiscard]] const Block& of(std::int32_t layer) const;

 private:
  Experts experts_;
  Block dense_;
  Block sparse_;
  std::int32_t step_ = 1;
  std::int32_t first_sparse_ = 0;
  std::vector<std::int32_t> dense_layers_;
};

}  // namespace kvsim::hf
