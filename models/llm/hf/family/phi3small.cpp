// Block-sparse attention, whose skipped tokens are cached all the same: Phi-3-small.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

Llm read_phi3small(const Field& config) {
  Llm llm = read_outline(config, true);
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  const std::int32_t d_ff = count(config.at("ff_intermediate_size"), 1, kLargestFfn);
  const std::int64_t d = llm.d_model;
  // Biases of all matrices; the first matrix of the block has both halves of its gate (gegelu).
  const std::int64_t biases =
      q_width(attention) + 2 * kv_width(attention) + d + 2 * std::int64_t{d_ff} + d;
  const std::int32_t n_layers = read_layer_count(config);
  llm.layers.assign(static_cast<std::size_t>(n_layers),
                    {.attention = attention, .mlp = {.d_ff = d_ff}});
  llm.extra_parameters = n_layers * (4 * d + biases) + 2 * d;  // norms have weights and biases
  if (config.has("dense_attention_every_n_layers")) {
    llm.notes.emplace_back(
        "layers with block-sparse attention keep all tokens; they are counted as if they read all "
        "of them");
  }
  return llm;
}

}  // namespace

Family phi3small_family() {
  return {
      .model_type = "phi3small",
      .architectures = {"Phi3SmallForCausalLM"},
      .read = read_phi3small,
      .reads = {"ff_intermediate_size", "dense_attention_every_n_layers", "blocksparse_block_size",
                "blocksparse_num_local_blocks", "blocksparse_vert_stride",
                "blocksparse_homo_head_pattern", "blocksparse_triton_kernel_block_size"}};
}

}  // namespace kvsim::hf
