#include "validation/published/published_weights.hpp"

#include <algorithm>
#include <string_view>

namespace kvsim {
namespace {

std::string_view format_name(const PublishedRow& row, const FormatText& text, const Llm& llm) {
  const auto said = [&](std::string_view word) {
    return has_text(row.dtype, word) || has_text(row.note, word) || has_text(row.model, word) ||
           has_text(row.framework, word);
  };
  // Frameworks that also quantise a model's output projection.
  const bool torch_quantised = said("gpt-fast") || said("torchao");
  switch (text.weights) {
    case Dtype::kFp4:
      return "mxfp4";
    case Dtype::kFp8E4m3:
    case Dtype::kFp8E5m2:
      // Released with a scale for each block of 128 x 128.
      return llm.name.starts_with("qwen3") || llm.name.starts_with("deepseek") ? "fp8-block"
                                                                               : "fp8-tensor";
    case Dtype::kInt8:
      if (said("w8a8") || (text.activations && bits_of(*text.activations) == 8)) return "w8a8-int8";
      if (torch_quantised) return "int8-channel";
      return "gptq-int8";
    default:
      break;
  }
  if (said("flexgen") || said("flexllmgen")) return "flexgen-int4";
  if (said("nf4") || said("bitsandbytes")) return "nf4";
  if (text.group == 32) return "int4-g32";
  if (text.group == 64) return "int4-g64";
  if (torch_quantised) return "int4-g32";
  if (said("awq") || text.activations) return "awq-int4";
  return "gptq-int4";
}

}  // namespace

WeightStore match_weights(const PublishedRow& row, const FormatText& text, const Llm& llm) {
  if (bits_of(text.weights) >= 16) return {.base = text.weights, .format = nullptr};
  // Modules excluded from a quantization are in the model's 16-bit compute format: 8- and 4-bit
  // kernels do not output fp32, regardless of the checkpoint's format (GPT-J's).
  return {.base = wide_dtype(llm, text.weights),
          .format = &find_weight_format(format_name(row, text, llm))};
}

}  // namespace kvsim
