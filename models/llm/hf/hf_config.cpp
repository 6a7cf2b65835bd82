// Reads Hugging Face `config.json` files. Keys that determine the size of a cache or of the weights
// are read per family (models/llm/hf), as the family's modelling code does it; every other key of
// these files is ignored. docs/models.md lists the families.

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/llm/catalogue.hpp"
#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/quantization.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

/// Keys that change what a layer caches in ways this program does not model.
void refuse_what_is_not_modelled(const Field& config) {
  struct Refused {
    std::string_view key;
    std::string_view why;
  };
  constexpr std::array kRefused{
      Refused{"attention_chunk_size", "chunked attention"},
      Refused{"cross_attention_layers", "cross-attention to cached image states"},
      Refused{"num_kv_shared_layers", "layers that share one cache"},
      Refused{"cla_share_factor", "layers that share one cache"},
      Refused{"index_topk", "a sparse-attention indexer with a separate cache"},
      Refused{"full_attention_interval", "linear-attention layers"},
      Refused{"linear_num_value_heads", "linear-attention layers"},
      Refused{"linear_attn_config", "linear-attention layers"},
      Refused{"attn_type_list", "linear-attention layers"},
      Refused{"layers_block_type", "state-space or recurrent layers"},
      Refused{"block_types", "state-space or recurrent layers"},
      Refused{"attn_layer_period", "state-space or recurrent layers"},
      Refused{"hybrid_override_pattern", "state-space or recurrent layers"},
      Refused{"mamba_d_state", "state-space or recurrent layers"},
      Refused{"state_size", "state-space or recurrent layers"},
      Refused{"ssm_state_size", "state-space or recurrent layers"},
      Refused{"ssm_cfg", "state-space or recurrent layers"},
      Refused{"is_encoder_decoder", "an encoder and cross-attention"},
  };
  for (const auto& [key, why] : kRefused) {
    const auto found = config.find(key);
    if (!found) continue;
    const nlohmann::json& value = found->raw();
    if (value == false || value == 0 || ((value.is_array() || value.is_object()) && value.empty()))
      continue;
    found->fail(fmt::format("{} is not modelled", why));
  }
}

/// What `torch_dtype` (or its new name `dtype`) says; bf16 where nothing does.
Dtype plain_dtype(const Field& config) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const auto word = config.find(key);
    if (!word) continue;
    std::string name = word->string();
    if (name.starts_with("torch.")) name.erase(0, 6);
    if (const auto dtype = parse_dtype(name)) return *dtype;
    word->expected("a dtype such as \"bfloat16\"");
  }
  if (hf::flag(config, "fp16", false)) return Dtype::kFp16;
  if (hf::flag(config, "fp32", false)) return Dtype::kFp32;
  return Dtype::kBf16;
}

/// Sets the formats the weights are published in.
void read_dtypes(const Field& config, const std::optional<Field>& quant_config, Llm& llm) {
  llm.compute_dtype = llm.published_dtype = plain_dtype(config);
  hf::read_quantization(config, quant_config, {}, llm);
}

/// Tokens of the longest sequence that engines accept: the declared positions times the factor of
/// RoPE scaling, as vLLM derives max_model_len (vllm/config/model.py, _get_and_verify_max_len).
/// With llama3, longrope and Gemma 3 the declared positions include the factor; with yarn the
/// factor applies to original_max_position_embeddings.
std::int32_t positions_with_rope_scaling(const Field& config, const Llm& llm) {
  constexpr double kLargestFactor = 1e6;
  constexpr std::array<std::string_view, 5> kIncluded{"default", "mrope", "su", "longrope",
                                                      "llama3"};
  auto rope = config.find("rope_scaling");
  if (!rope) rope = config.find("rope_parameters");
  if (rope) {
    if (const auto full = rope->find("full_attention")) rope = full;
  }
  if (!rope || llm.model_type == "gemma3_text") return llm.max_positions;
  auto type = rope->find("rope_type");
  if (!type) type = rope->find("type");
  const auto factor = rope->find("factor");
  if (!type || !factor) return llm.max_positions;
  const std::string word = type->string();
  if (std::find(kIncluded.begin(), kIncluded.end(), word) != kIncluded.end()) {
    return llm.max_positions;
  }
  const std::int32_t base = word == "yarn" ? hf::count_or(*rope, "original_max_position_embeddings",
                                                          llm.max_positions, 1, hf::kMostPositions)
                                           : llm.max_positions;
  const double scaled = factor->number(0, kLargestFactor) * base;
  if (scaled < 1 || scaled > static_cast<double>(hf::kMostPositions)) {
    factor->fail(fmt::format("scales {} positions to {:g}; expected 1 to {}", base, scaled,
                             hf::kMostPositions));
  }
  return static_cast<std::int32_t>(scaled);
}

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // what names the family where model_type is absent
  Llm (*read)(const Field& config);
};

constexpr std::array kFamilies{
    Family{"bloom", "BloomForCausalLM", hf::read_bloom},
    Family{"chatglm", "ChatGLMModel", hf::read_chatglm},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", hf::read_deepseek_v2},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", hf::read_deepseek_v3},
    Family{"falcon", "FalconForCausalLM", hf::read_falcon},
    Family{"gemma", "GemmaForCausalLM", hf::read_gemma},
    Family{"gemma2", "Gemma2ForCausalLM", hf::read_gemma2},
    Family{"gemma3_text", "Gemma3ForCausalLM", hf::read_gemma3},
    Family{"glm", "GlmForCausalLM", hf::read_glm},
    Family{"glm4", "Glm4ForCausalLM", hf::read_glm4},
    Family{"glm4_moe", "Glm4MoeForCausalLM", hf::read_glm4_moe},
    Family{"gpt2", "GPT2LMHeadModel", hf::read_gpt2},
    Family{"gpt_neox", "GPTNeoXForCausalLM", hf::read_gpt_neox},
    Family{"gpt_oss", "GptOssForCausalLM", hf::read_gpt_oss},
    Family{"gptj", "GPTJForCausalLM", hf::read_gptj},
    Family{"llama", "LlamaForCausalLM", hf::read_llama},
    Family{"mistral", "MistralForCausalLM", hf::read_mistral},
    Family{"mixtral", "MixtralForCausalLM", hf::read_mixtral},
    Family{"opt", "OPTForCausalLM", hf::read_opt},
    Family{"phi", "PhiForCausalLM", hf::read_phi},
    Family{"phi3", "Phi3ForCausalLM", hf::read_phi3},
    Family{"qwen", "QWenLMHeadModel", hf::read_qwen},
    Family{"qwen2", "Qwen2ForCausalLM", hf::read_qwen2},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", hf::read_qwen2_moe},
    Family{"qwen3", "Qwen3ForCausalLM", hf::read_qwen3},
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", hf::read_qwen3_moe},
};

/// Names the keys that are missing to read an unknown family.
[[noreturn]] void refuse_family(const Field& config, const Field& at, std::string_view what,
                                std::string_view word) {
  std::vector<std::string> given;
  std::vector<std::string> missing;
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
                          "max_position_embeddings", "tie_word_embeddings", "sliding_window"}) {
    (config.raw().contains(key) ? given : missing).emplace_back(key);
  }
  std::vector<std::string> known;
  known.reserve(kFamilies.size());
  for (const Family& family : kFamilies)
    known.emplace_back(what == "architecture" ? family.architecture : family.model_type);
  at.fail(fmt::format(
      "{}. How its layers cache is not known here; of what a Llama-like family needs, the file "
      "gives {} and does not give {}. If its layers are those of a known family, name it in "
      "model_type",
      unknown_name(what, word, known),
      given.empty() ? "nothing" : fmt::format("{}", fmt::join(given, ", ")),
      missing.empty() ? "nothing" : fmt::format("{}", fmt::join(missing, ", "))));
}

const Family& family_of(const Field& config) {
  if (const auto type = config.find("model_type")) {
    const std::string word = type->string();
    for (const Family& family : kFamilies) {
      if (family.model_type == word) return family;
    }
    refuse_family(config, *type, "model_type", word);
  }
  const auto architectures = config.find("architectures");
  if (!architectures) config.fail("neither model_type nor architectures is given");
  const Field first = architectures->one_or_more().front();
  const std::string word = first.string();
  for (const Family& family : kFamilies) {
    if (family.architecture == word) return family;
  }
  refuse_family(config, first, "architecture", word);
}

/// Models that wrap a language model of a known family; the vision tower is not counted.
bool is_wrapper(std::string_view model_type) {
  return model_type == "gemma3" || model_type == "llava" || model_type == "llava_next" ||
         model_type == "mistral3" || model_type == "mllama";
}

}  // namespace

Llm read_hf_config(const Field& config, std::string name,
                   const std::optional<Field>& quant_config) {
  if (!config.is_object()) config.expected("an object");
  if (const auto type = config.find("model_type");
      type && type->is_string() && is_wrapper(type->string())) {
    const Field text = config.at("text_config");
    // `quantization_config` is at top level; `torch_dtype` may be at either level.
    const bool outside = config.has("quantization_config") || quant_config;
    Llm llm = read_hf_config(text, std::move(name), {});
    if (outside || (!text.has("torch_dtype") && !text.has("dtype"))) {
      read_dtypes(config, quant_config, llm);
    }
    return llm;
  }
  refuse_what_is_not_modelled(config);
  const Family& family = family_of(config);
  Llm llm = family.read(config);
  llm.name = std::move(name);
  llm.model_type = family.model_type;
  llm.source = config.file();
  llm.max_positions = positions_with_rope_scaling(config, llm);
  read_dtypes(config, quant_config, llm);
  if (const std::int64_t total = parameters(llm); total > hf::kMostParameters)
    config.fail(fmt::format("{} parameters; no more than 1e15 are believed", total));
  return llm;
}

Llm read_hf_config_file(const std::filesystem::path& path, std::string name) {
  std::optional<Field> quant_config;
  if (path.filename() == "config.json") {
    const std::filesystem::path other = path.parent_path() / "hf_quant_config.json";
    if (std::error_code status; std::filesystem::exists(other, status)) {
      quant_config = Field::read_file(other);
    }
  }
  return read_hf_config(Field::read_file(path), std::move(name), quant_config);
}

}  // namespace kvsim
