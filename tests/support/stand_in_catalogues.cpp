// Plain definitions of what models/llm and models/gpu compute from their structs, for a build of
// these tests alone; linked only where those libraries are absent.
#include <algorithm>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"

namespace kvsim {

Bytes weight_bytes(const Llm& llm, Dtype dtype) {
  std::int64_t n = static_cast<std::int64_t>(llm.vocab_size) * llm.d_model *
                       (llm.tied_embeddings ? 1 : 2) +
                   llm.extra_parameters;
  for (const LayerSpec& layer : llm.layers) {
    const AttentionSpec& a = layer.attention;
    const MlpSpec& m = layer.mlp;
    const std::int64_t d = llm.d_model;
    n += d * a.n_heads * a.head_dim + d * a.n_kv_heads * (a.head_dim + a.v_head_dim) +
         d * a.n_heads * a.v_head_dim;
    const std::int64_t matrices = m.gated ? 3 : 2;
    n += matrices * d *
             (static_cast<std::int64_t>(std::max(1, m.n_experts)) * m.d_ff + m.shared_d_ff) +
         d * m.n_experts;
  }
  return bytes_of(n, dtype);
}

FlopsPerSecond peak_flops(const Gpu& gpu, Dtype dtype) {
  if (dtype == Dtype::kFp32) return gpu.peak_fp32;
  const auto found = gpu.peak.find(dtype);
  return found != gpu.peak.end() ? found->second : gpu.peak.at(Dtype::kFp16);
}

}  // namespace kvsim
