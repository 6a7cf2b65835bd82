#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/llm/layer/spec.hpp"
#include "models/llm/vision.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The sizes of a decoder-only transformer that determine its memory and arithmetic.
struct Llm {
  std::string name;
  std::string model_type;  // Hugging Face's name of the architecture family
  std::string source;      // publication of the configuration

  std::int32_t d_model = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_positions = 0;      // trained or declared context, tokens
  std::int32_t learned_positions = 0;  // rows of a learned position table (GPT-3, OPT); 0: none
  bool tied_embeddings = false;
  double rope_theta = 0;                 // 0: no rotary embedding
  Dtype published_dtype = Dtype::kBf16;  // dtype of the published weights
  // Dtype of the computation: the configuration's torch_dtype, bf16 if it states none.
  Dtype compute_dtype = Dtype::kBf16;
  // If only the routed experts are published in published_dtype (gpt-oss): the dtype of all others.
  std::optional<Dtype> outside_experts_dtype;
  // For a quantised checkpoint: the dtype of parts without a WeightFormat. published_dtype is then
  // the narrowest format, and `format` of layers and `head_format` define the packed parts.
  std::optional<Dtype> unpacked_dtype;
  const WeightFormat* head_format = nullptr;
  std::optional<Dtype> published_kv_dtype;  // the cache's, if the checkpoint states one

  std::vector<LayerSpec> layers;
  // Not included in the parameters below: only some engines load it (Stack::loads_vision).
  std::optional<VisionEncoder> vision;

  // Parameters outside the matrices of layers: norms, biases, sinks, routers' biases, projections
  // of single families. Exact per family.
  std::int64_t extra_parameters = 0;
  // Of these, parameters of matrices that every token is multiplied with.
  std::int64_t extra_active_parameters = 0;
  // Bytes of the released checkpoint in addition to those of its formats: parameters stored in fp32
  // or int64.
  std::int64_t extra_bytes = 0;
  // Layers of multi-token prediction in the configuration; a checkpoint may not contain them.
  std::int32_t mtp_layers = 0;
  // A draft head (draft_head.hpp): embedding and output projection are the target's.
  bool is_draft_head = false;
  // Assumptions about values that the configuration does not state, and stated values not modelled.
  std::vector<std::string> notes;

  [[nodiscard]] std::int32_t n_layers() const { return static_cast<std::int32_t>(layers.size()); }
};

/// Returns all parameters: embeddings, output head unless tied, all layers, extra_parameters.
[[nodiscard]] std::int64_t parameters(const Llm& llm);
/// Returns the parameters that one token's forward pass multiplies with (top_k of the experts; no
/// embedding look-up).
[[nodiscard]] std::int64_t active_parameters(const Llm& llm);
/// Returns the matrix parameters of one layer's attention and recurrent state.
[[nodiscard]] std::int64_t mixer_parameters(const Llm& llm, const LayerSpec& layer);
/// Returns the parameters of a feed-forward block: all of them, and those that one token visits.
[[nodiscard]] std::int64_t mlp_parameters(const Llm& llm, const MlpSpec& mlp);
[[nodiscard]] std::int64_t active_mlp_parameters(const Llm& llm, const MlpSpec& mlp);

/// Returns the cached elements per token of one layer's rows: n_kv_heads * (head_dim + v_head_dim),
/// or the latent; 0 if it caches no rows (caches_rows) or shares an earlier layer's cache.
[[nodiscard]] std::int64_t kv_elements_per_token(const AttentionSpec& attention);
/// Returns the bytes of keys and values of `tokens` tokens of a layer on one rank.
[[nodiscard]] Bytes recorded_bytes(const AttentionSpec& attention, std::int64_t tokens,
                                   Dtype kv_dtype);
/// Returns the bytes of a full (uncompressed) cache of `tokens` tokens of one sequence, including
/// recurrent states; sliding-window layers hold min(tokens, window).
[[nodiscard]] Bytes full_cache_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);
/// Returns the weight bytes with all weights in `dtype`.
[[nodiscard]] Bytes weight_bytes(const Llm& llm, Dtype dtype);
/// Matrix parameters of the routed experts of all layers, and MXFP4's scales for `values` values,
/// one byte each.
[[nodiscard]] std::int64_t routed_expert_parameters(const Llm& llm);
[[nodiscard]] std::int64_t mxfp4_scales(std::int64_t values);
/// For a model that runs in `dtype` (as published, if that is the published format): the format of
/// matrices outside the routed experts, and the bytes of `values` of the experts' values, including
/// scales if only the experts are published in that format.
[[nodiscard]] Dtype dense_weight_dtype(const Llm& llm, Dtype dtype);
[[nodiscard]] Bytes expert_weight_bytes(const Llm& llm, std::int64_t values, Dtype dtype);
/// Returns the bytes of all weights: weight_bytes, or the sum of both parts.
[[nodiscard]] Bytes loaded_weight_bytes(const Llm& llm, Dtype dtype);
[[nodiscard]] Bytes published_weight_bytes(const Llm& llm);  // loaded in published_dtype
/// Returns the compute format for weights of `weight_dtype`: the same with 16 bits or more,
/// otherwise (quantized weights) the model's, at most 16-bit.
[[nodiscard]] Dtype wide_dtype(const Llm& llm, Dtype weight_dtype);
/// Returns the format of a cache without an option for it: the checkpoint's, if it runs as
/// published, otherwise that of the activations.
[[nodiscard]] Dtype default_kv_dtype(const Llm& llm, Dtype weight_dtype);

}  // namespace kvsim
