// Sources of the catalogue's `available`:
// - kvpress: README and kvpress/__init__.py of 0.5.4 (github.com/NVIDIA/kvpress 8bb29b9)
// - vLLM: CacheDType of vllm/config/cache.py (002f10e); docs of the version named, quantized KV
// cache
// - SGLang: docs.sglang.io, advanced_features/quantized_kv_cache
// - TensorRT-LLM: nvidia.github.io/TensorRT-LLM, quantization; features/sparse-attention has no
// method
//   of this catalogue (RocketKV, DSA, skip softmax)
// - LMDeploy: docs, kv_quant; FP8 since pull request 4563
// - transformers: docs 4.51.3, kv_cache (QuantizedCache follows KIVI)
// - research code: the repository that the authors released

#include "models/methods/availability.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "models/methods/presets.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kTitles{{
    {"vllm", "vLLM"},
    {"sglang", "SGLang"},
    {"trtllm", "TensorRT-LLM"},
    {"lmdeploy", "LMDeploy"},
    {"transformers", "transformers"},
    {"kvpress", "kvpress"},
    {"research", "research code"},
}};

std::string joined(const std::vector<Availability>& available, bool with_options) {
  std::string out;
  for (const Availability& one : available) {
    if (!out.empty()) out += ", ";
    out += software_title(one.software);
    if (with_options && !one.as.empty()) out += fmt::format(" ({})", one.as);
  }
  return out.empty() ? "none known" : out;
}

}  // namespace

std::vector<Availability> availability_of(const std::string& method) {
  for (const Preset& preset : presets()) {
    if (preset.info.name == method) return preset.available;
  }
  (void)describe_method(method);  // it has to mean something
  return {};
}

std::string_view software_title(std::string_view software) {
  const auto found = std::find_if(kTitles.begin(), kTitles.end(),
                                  [&](const auto& title) { return title.first == software; });
  KVSIM_CHECK(found != kTitles.end(), "unknown software {}", software);
  return found->second;
}

std::string availability_text(const std::vector<Availability>& available) {
  return joined(available, true);
}

std::string availability_titles(const std::vector<Availability>& available) {
  return joined(available, false);
}

}  // namespace kvsim
