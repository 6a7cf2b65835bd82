// LayerNorms, biases on all matrices and a block without a gate: StarCoder2.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

Llm read_starcoder2(const Field& config) {
  Llm llm = read_outline(config, true);
  AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  attention.window = count_or(config, "sliding_window", 0, 0, kMaxPositions);
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  const std::int64_t d = llm.d_model;
  const std::int64_t biases = flag(config, "use_bias", true)
                                  ? q_width(attention) + 2 * kv_width(attention) + d + d_ff + d
                                  : 0;
  const std::int32_t n_layers = read_layer_count(config);
  llm.layers.assign(static_cast<std::size_t>(n_layers),
                    {.attention = attention, .mlp = {.d_ff = d_ff, .gated = false}});
  llm.extra_parameters = n_layers * (4 * d + biases) + 2 * d;  // norms have weights and biases
  return llm;
}

}  // namespace

Family starcoder2_family() {
  return {.model_type = "starcoder2",
          .architectures = {"Starcoder2ForCausalLM"},
          .read = read_starcoder2,
          .reads = {"sliding_window", "use_bias"}};
}

}  // namespace kvsim::hf
