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

/// A decoder-only transformer as its memory and arithmetic see it.
struct Llm {
  std::string name;
  std::string model_type;  // Hugging Face's word for the architecture family
  std::string source;      // where the configuration is published

  std::int32_t d_model = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_positions = 0;      // trained or declared context, tokens
  std::int32_t learned_positions = 0;  // rows of a learned position table (GPT-3, OPT); 0: none
  bool tied_embeddings = false;
  double rope_theta = 0;                 // 0: no rotary embedding
  Dtype published_dtype = Dtype::kBf16;  // the dtype its weights are published in
  // What it computes in: the configuration's torch_dtype, bf16 where it names none.
  Dtype compute_dtype = Dtype::kBf16;
  // Where only the routed experts are published in published_dtype (gpt-oss): that of all else.
  std::optional<Dtype> outside_experts_dtype;
  // Of a quantised checkpoint: what is stored in no WeightFormat. Then published_dtype is the
  // narrowest of its formats, and `format` of layers and `head_format` say which parts are packed.
  std::optional<Dtype> unpacked_dtype;
  const WeightFormat* head_format = nullptr;
  std::optional<Dtype> published_kv_dtype;  // the cache's, where the checkpoint names one

  std::vector<LayerSpec> layers;
  // Not among the parameters below: only some engines load it (Stack::loads_vision).
  std::optional<VisionEncoder> vision;

  // Parameters that are no matrices of layers: norms, biases, sinks, routers' biases, projections
  // of single families. Exact per family.
  std::int64_t extra_parameters = 0;
  // Of these, those of matrices that every token is multiplied with.
  std::int64_t extra_active_parameters = 0;
  // Bytes that the released checkpoint takes in addition to what its formats say: parameters that
  // it stores in fp32 or int64.
  std::int64_t extra_bytes = 0;
  // Layers of multi-token prediction that the configuration announces; a checkpoint may hold none.
  std::int32_t mtp_layers = 0;
  // A draft head (draft_head.hpp): embedding and output projection are the target's.
  bool is_draft_head = false;
  // What the configuration does not state and was assumed, or states and was not counted.
  std::vector<std::string> notes;

  [[nodiscard]] std::int32_t n_layers() const { return static_cast<std::int32_t>(layers.size()); }
};

/// Parameters, total: embeddings, output head unless tied, all layers, extra_parameters.
[[nodiscard]] std::int64_t parameters(const Llm& llm);
/// Parameters one token's forward pass multiplies with (top_k of the experts; no embedding
/// look-up).
[[nodiscard]] std::int64_t active_parameters(const Llm& llm);
/// Matrix parameters of one layer's attention and recurrent state.
[[nodiscard]] std::int64_t mixer_parameters(const Llm& llm, const LayerSpec& layer);
/// Those of a feed-forward block: all that are held, and those one token visits.
[[nodiscard]] std::int64_t mlp_parameters(const Llm& llm, const MlpSpec& mlp);
[[nodiscard]] std::int64_t active_mlp_parameters(const Llm& llm, const MlpSpec& mlp);

/// Cached elements of one token in one layer's rows: n_kv_heads * (head_dim + v_head_dim), or the
/// latent; 0 where it caches no rows (caches_rows) or an earlier layer does.
[[nodiscard]] std::int64_t kv_elements_per_token(const AttentionSpec& attention);
/// Keys and values of `tokens` tokens that one rank holds of a layer.
[[nodiscard]] Bytes recorded_bytes(const AttentionSpec& attention, std::int64_t tokens,
                                   Dtype kv_dtype);
/// Bytes of a full (uncompressed) cache of `tokens` tokens of one sequence, recurrent states
/// included; sliding-window layers hold min(tokens, window).
[[nodiscard]] Bytes full_cache_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype);
/// Weight bytes in one dtype for everything.
[[nodiscard]] Bytes weight_bytes(const Llm& llm, Dtype dtype);
/// Matrix parameters of the routed experts of all layers, and the scales that MXFP4 stores for as
/// many values: one byte each.
[[nodiscard]] std::int64_t routed_expert_parameters(const Llm& llm);
[[nodiscard]] std::int64_t mxfp4_scales(std::int64_t values);
/// For a model that runs in `dtype`, as published if that is the published format: the format of
/// matrices outside the routed experts, and the bytes of `values` of theirs, if only they are
/// published in it with their scales.
[[nodiscard]] Dtype dense_weight_dtype(const Llm& llm, Dtype dtype);
[[nodiscard]] Bytes expert_weight_bytes(const Llm& llm, std::int64_t values, Dtype dtype);
/// What all its weights take: weight_bytes, or the sum of both parts.
[[nodiscard]] Bytes loaded_weight_bytes(const Llm& llm, Dtype dtype);
[[nodiscard]] Bytes published_weight_bytes(const Llm& llm);  // loaded in published_dtype
/// The compute format for weights of `weight_dtype`: the same if it has 16 bits or more, else
/// (quantized weights) the model's, at most 16-bit.
[[nodiscard]] Dtype wide_dtype(const Llm& llm, Dtype weight_dtype);
/// Format of a cache that no option sets: what the checkpoint names, where it runs as published,
/// else that of the activations.
[[nodiscard]] Dtype default_kv_dtype(const Llm& llm, Dtype weight_dtype);

}  // namespace kvsim
