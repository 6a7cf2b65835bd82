#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {

std::vector<LayerMatrix> feed_forward_matrices(const MlpSpec& mlp, std::int64_t d_model) {
  std::vector<LayerMatrix> out;
  const auto add = [&](std::string_view module, std::int64_t in, std::int64_t width,
                       WeightPart part) {
    out.push_back({.module = module, .in = in, .out = width, .part = part});
  };
  if (mlp.n_experts == 0) {
    if (mlp.d_ff == 0) return out;
    if (mlp.gated) add("mlp.gate_proj", d_model, mlp.d_ff, WeightPart::kLinear);
    add("mlp.up_proj", d_model, mlp.d_ff, WeightPart::kLinear);
    add("mlp.down_proj", mlp.d_ff, d_model, WeightPart::kLinear);
    return out;
  }
  add("mlp.gate", d_model, mlp.n_experts, WeightPart::kPlain);
  if (mlp.latent_dim > 0) {
    add("mlp.fc1_latent_proj", d_model, mlp.latent_dim, WeightPart::kLinear);
    add("mlp.fc2_latent_proj", mlp.latent_dim, d_model, WeightPart::kLinear);
  }
  if (mlp.has_shared_gate) add("mlp.shared_expert_gate", d_model, 1, WeightPart::kPlain);
  if (mlp.shared_d_ff > 0) {
    if (mlp.gated) {
      add("mlp.shared_experts.gate_proj", d_model, mlp.shared_d_ff, WeightPart::kLinear);
    }
    add("mlp.shared_experts.up_proj", d_model, mlp.shared_d_ff, WeightPart::kLinear);
    add("mlp.shared_experts.down_proj", mlp.shared_d_ff, d_model, WeightPart::kLinear);
  }
  const std::int64_t width = mlp.latent_dim > 0 ? mlp.latent_dim : d_model;
  const auto add_experts = [&](std::string_view module, std::int64_t in, std::int64_t columns) {
    add(module, in, columns, WeightPart::kExperts);
    out.back().count = mlp.n_experts;
    out.back().visited = mlp.top_k;
  };
  if (mlp.gated) add_experts("mlp.experts.0.gate_proj", width, mlp.d_ff);
  add_experts("mlp.experts.0.up_proj", width, mlp.d_ff);
  add_experts("mlp.experts.0.down_proj", mlp.d_ff, width);
  return out;
}

const WeightFormat* feed_forward_format(const MlpSpec& mlp, const LayerMatrix& matrix) {
  if (matrix.part == WeightPart::kPlain) return nullptr;
  if (matrix.part == WeightPart::kExperts || mlp.n_experts == 0) return mlp.format;
  return matrix.module.find("latent") != std::string_view::npos ? mlp.latent_format
                                                                : mlp.shared_format;
}

}  // namespace kvsim
