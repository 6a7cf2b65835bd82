#include "models/units/check.hpp"
#include "sim/memory/step_allocations.hpp"

namespace kvsim {
namespace {

class Tensors {
 public:
  Tensors(const Llm& llm, Dtype dtype)
      : llm_{llm}, dtype_{dtype}, dense_{dense_weight_dtype(llm, dtype)} {}

  void add(std::int64_t elements) {
    if (elements > 0) out_.push_back({elements, bytes_of(elements, dense_)});
  }
  void add_expert(std::int64_t elements) {
    if (elements > 0) {
      out_.push_back({elements, expert_weight_bytes(llm_, elements, dtype_)});
    }
  }
  void attention(const AttentionSpec& a) {
    const std::int64_t before = total();
    const std::int64_t d = llm_.d_model;
    const std::int64_t heads = a.n_heads;
    if (a.q_lora_rank > 0) {
      add(d * a.q_lora_rank);
      add(a.q_lora_rank * heads * a.head_dim);
    } else {
      add(d * heads * a.head_dim);
    }
    if (a.is_latent()) {
      add(d * (a.kv_lora_rank + a.rope_head_dim));
      add(a.kv_lora_rank * heads * (a.head_dim - a.rope_head_dim + a.v_head_dim));
    } else {
      add(d * a.n_kv_heads * a.head_dim);
      add(d * a.n_kv_heads * a.v_head_dim);
    }
    add(heads * a.v_head_dim * d);
    KVSIM_CHECK(total() - before == attention_parameters(llm_, a),
                "attention matrices of {} elements, the layer has {}", total() - before,
                attention_parameters(llm_, a));
  }
  void block(const MlpSpec& mlp, std::int64_t width, bool expert) {
    for (int i = 0; i < (mlp.gated ? 3 : 2); ++i) {
      if (expert) {
        add_expert(width * llm_.d_model);
      } else {
        add(width * llm_.d_model);
      }
    }
  }
  void feed_forward(const MlpSpec& mlp) {
    if (mlp.n_experts == 0) {
      block(mlp, mlp.d_ff, false);
      return;
    }
    add(std::int64_t{llm_.d_model} * mlp.n_experts);
    for (std::int32_t e = 0; e < mlp.n_experts; ++e) block(mlp, mlp.d_ff, true);
    block(mlp, mlp.shared_d_ff, false);
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const WeightTensor& t : out_) sum += t.elements;
    return sum;
  }
  [[nodiscard]] std::vector<WeightTensor> finish() && { return std::move(out_); }

 private:
  const Llm& llm_;
  Dtype dtype_;
  Dtype dense_;
  std::vector<WeightTensor> out_;
};

}  // namespace

std::vector<WeightTensor> weight_tensors(const Llm& llm, Dtype dtype) {
  Tensors tensors{llm, dtype};
  const std::int64_t table = std::int64_t{llm.d_model} * llm.vocab_size;
  tensors.add(table);
  tensors.add(std::int64_t{llm.d_model} * llm.learned_positions);
  // Two norms a layer and the last one share what is not a matrix, biases and all.
  const std::int64_t norms = 2LL * llm.n_layers() + 1;
  const std::int64_t norm = llm.extra_parameters / norms;
  for (const LayerSpec& layer : llm.layers) {
    tensors.attention(layer.attention);
    tensors.feed_forward(layer.mlp);
    tensors.add(norm);
    tensors.add(norm);
  }
  tensors.add(llm.extra_parameters - norm * (norms - 1));
  if (!llm.tied_embeddings) tensors.add(table);
  KVSIM_CHECK(tensors.total() == parameters(llm), "weights of {} elements, the model has {}",
              tensors.total(), parameters(llm));
  return std::move(tensors).finish();
}

}  // namespace kvsim
