// LLaMA's layers, with biases of attention if the file enables them: InternLM and InternLM2.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {
namespace {

Llm read_internlm(const Field& config) {
  Llm llm = read_llama(config);
  if (!flag(config, "bias", false)) return llm;
  for (const LayerSpec& layer : llm.layers) {
    llm.extra_parameters += q_width(layer.attention) + 2 * kv_width(layer.attention) + llm.d_model;
  }
  return llm;
}

}  // namespace

Family internlm_family() {
  return {.model_type = "internlm",
          .architectures = {"InternLMForCausalLM", "InternLM2ForCausalLM"},
          .aliases = {"internlm2"},
          .read = read_internlm,
          .reads = {"bias"}};
}

}  // namespace kvsim::hf
