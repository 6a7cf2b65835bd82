#include "models/llm/hf/blocks.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {

Blocks::Blocks(const Field& config, Experts experts, std::int32_t d_model) : experts_{experts} {
  if (experts != Experts::kMixtral && experts != Experts::kGptOss)
    dense_.mlp.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  if (experts == Experts::kNone) return;
  MlpSpec& mlp = sparse_.mlp;
  const bool whole = experts == Experts::kMixtral || experts == Experts::kGptOss;
  const Field n = whole ? config.at("num_local_experts")
                  : experts == Experts::kDeepSeek
                      ? any_of(config, {"n_routed_experts", "num_local_experts"})
                      : any_of(config, {"num_experts", "num_local_experts"});
  mlp.n_experts = count(n, 1, kMaxExperts);
  const Field top = any_of(config, {"num_experts_per_tok", "experts_per_token"});
  mlp.top_k = count(top, 1, kMaxExperts);
  if (mlp.top_k > mlp.n_experts)
    top.fail(fmt::format("a token visits {} of {} experts", mlp.top_k, mlp.n_experts));
  mlp.d_ff =
      count(config.at(whole ? "intermediate_size" : "moe_intermediate_size"), 1, kLargestFfn);
  if (experts == Experts::kGptOss) {
    // Biases of the router, of gate and up, and of down.
    sparse_.extra = mlp.n_experts * (1 + 2 * std::int64_t{mlp.d_ff} + d_model);
  } else if (experts == Experts::kQwen2) {
    mlp.shared_d_ff = count(config.at("shared_expert_intermediate_size"), 0, kLargestFfn);
    sparse_.extra = d_model;  // the gate of the shared expert
  } else if (experts == Experts::kDeepSeek) {
    const std::int64_t shared = count_or(config, "n_shared_experts", 0, 0, kMaxExperts);
    if (shared * mlp.d_ff > kLargestFfn)
      config.at("n_shared_experts")
          .fail(fmt::format("{} shared experts of width {}", shared, mlp.d_ff));
    mlp.shared_d_ff = static_cast<std::int32_t>(shared * mlp.d_ff);
  }
  if (experts == Experts::kQwen2 || experts == Experts::kQwen3) {
    step_ = count_or(config, "decoder_sparse_step", 1, 1, kMaxLayers);
    if (const auto only = config.find("mlp_only_layers")) {
      for (const Field& layer : only->items()) dense_layers_.push_back(count(layer, 0, kMaxLayers));
    }
  } else if (experts == Experts::kDeepSeek) {
    first_sparse_ = count_or(config, "first_k_dense_replace", 0, 0, kMaxLayers);
    step_ = count_or(config, "moe_layer_freq", 1, 1, kMaxLayers);
  }
}

const Block& Blocks::of(std::int32_t layer) const {
  switch (experts_) {
    case Experts::kNone:
      return dense_;
    case Experts::kMixtral:
    case Experts::kGptOss:
      return sparse_;
    case Experts::kQwen2:
    case Experts::kQwen3:
      return (layer + 1) % step_ == 0 && std::find(dense_layers_.begin(), dense_layers_.end(),
                                                   layer) == dense_layers_.end()
                 ? sparse_
                 : dense_;
    case Experts::kDeepSeek:
      return layer >= first_sparse_ && layer % step_ == 0 ? sparse_ : dense_;
  }
  return dense_;
}

}  // namespace kvsim::hf
