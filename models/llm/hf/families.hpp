#pragma once

// One reader a family of Hugging Face configurations. Each fills all but name, model_type, source
// and published_dtype. Errors: InputError. Private to models/llm.

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

[[nodiscard]] Llm read_bloom(const Field& config);
[[nodiscard]] Llm read_chatglm(const Field& config);
[[nodiscard]] Llm read_deepseek_v2(const Field& config);
[[nodiscard]] Llm read_deepseek_v3(const Field& config);
[[nodiscard]] Llm read_falcon(const Field& config);
[[nodiscard]] Llm read_gemma(const Field& config);
[[nodiscard]] Llm read_gemma2(const Field& config);
[[nodiscard]] Llm read_gemma3(const Field& config);
[[nodiscard]] Llm read_glm(const Field& config);
[[nodiscard]] Llm read_glm4(const Field& config);
[[nodiscard]] Llm read_glm4_moe(const Field& config);
[[nodiscard]] Llm read_gpt2(const Field& config);
[[nodiscard]] Llm read_gpt_neox(const Field& config);
[[nodiscard]] Llm read_gpt_oss(const Field& config);
[[nodiscard]] Llm read_gptj(const Field& config);
[[nodiscard]] Llm read_llama(const Field& config);
[[nodiscard]] Llm read_mistral(const Field& config);
[[nodiscard]] Llm read_mixtral(const Field& config);
[[nodiscard]] Llm read_opt(const Field& config);
[[nodiscard]] Llm read_phi(const Field& config);
[[nodiscard]] Llm read_phi3(const Field& config);
[[nodiscard]] Llm read_qwen(const Field& config);
[[nodiscard]] Llm read_qwen2(const Field& config);
[[nodiscard]] Llm read_qwen2_moe(const Field& config);
[[nodiscard]] Llm read_qwen3(const Field& config);
[[nodiscard]] Llm read_qwen3_moe(const Field& config);

}  // namespace kvsim::hf
