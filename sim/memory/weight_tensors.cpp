#include "models/llm/layer/layer_kind.hpp"
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
  void add(const MatrixPlace& place, std::int64_t in, std::int64_t out) {
    const WeightStore store{.base = dtype_, .format = nullptr};
    if (in * out > 0) out_.push_back({in * out, matrix_bytes(llm_, store, place, in, out)});
  }
  void mixers(const LayerSpec& layer) {
    std::size_t i = 0;
    for (const LayerMatrix& m : mixer_matrices(layer, llm_.d_model)) {
      add({m.part, layer.formats[i++]}, m.in, m.out);
    }
  }
  /// The router and single projections, the dense block or each expert, then the shared experts.
  void feed_forward(const MlpSpec& mlp) {
    const std::vector<LayerMatrix> matrices = feed_forward_matrices(mlp, llm_.d_model);
    const auto is_shared = [](const LayerMatrix& m) {
      return m.module.find("shared_experts") != std::string_view::npos;
    };
    const auto add_if = [&](auto&& is_wanted) {
      for (const LayerMatrix& m : matrices) {
        if (is_wanted(m)) add({m.part, feed_forward_format(mlp, m)}, m.in, m.out);
      }
    };
    const auto is_expert = [](const LayerMatrix& m) { return m.part == WeightPart::kExperts; };
    add_if([&](const LayerMatrix& m) { return !is_expert(m) && !is_shared(m); });
    for (std::int32_t e = 0; e < mlp.n_experts; ++e) add_if(is_expert);
    add_if(is_shared);
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
  // Two norms per layer and the last one share all parameters outside matrices, including biases.
  const std::int64_t norms = 2LL * llm.n_layers() + 1;
  const std::int64_t norm = llm.extra_parameters / norms;
  for (const LayerSpec& layer : llm.layers) {
    tensors.mixers(layer);
    tensors.feed_forward(layer.mlp);
    tensors.add(norm);
    tensors.add(norm);
  }
  tensors.add(llm.extra_parameters - norm * (norms - 1));
  if (!llm.tied_embeddings) {
    tensors.add({WeightPart::kHead, llm.head_format}, llm.d_model, llm.vocab_size);
  }
  KVSIM_CHECK(tensors.total() == parameters(llm), "weights of {} elements, the model has {}",
              tensors.total(), parameters(llm));
  return std::move(tensors).finish();
}

}  // namespace kvsim
