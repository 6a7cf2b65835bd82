// Sources of the catalogue's `available`:
// - kvpress: README and kvpress/__init__.py of 0.5.4 (github.com/NVIDIA/kvpress 8bb29b9).
// - vLLM: CacheDType of vllm/config/cache.py (002f10e); docs of the named version, quantized KV
//   cache.
//   KVarN is in its main branch (vllm/model_executor/layers/quantization/kvarn/config.py, eb70063),
//   OSCAR in a pull request (vllm/v1/attention/ops/oscar_ops.py, 2736c2e).
// - SGLang: docs.sglang.io, advanced_features/quantized_kv_cache. Quest is not listed: no server
//   option reaches mem_cache/sparsity/algorithms/quest_algorithm.py (pull requests 28882 and 30277
//   are open).
// - TensorRT-LLM: docs 1.0.0, features/quantization (FP8 KV cache);
//   tests/unittest/llmapi/test_llm.py, test_generate_with_streaming_llm, and
//   legacy/tensorrt-backend-removal. features/sparse-attention (RocketKV, DSA, skip
//   softmax). 1.3.0rc27, llm-api/reference:
//   TriAttentionKvCacheCompressionConfig. Cold pages: docs features/kv-cache-compression
//   (0bf8290d).
// - LMDeploy 0.16.0 (github.com/InternLM/lmdeploy): docs/en/quantization/kv_quant.md for 4 and 8
//   bits in both engines; lmdeploy/messages.py, where TurbomindEngineConfig refuses FP8 (pull
//   request 4563, 0.14, is for the PyTorch engine).
// - transformers: docs/source/en/kv_cache.md of 4.51.3 (QuantizedCache follows KIVI).
// - research code: the repository that the authors released. SmoothQuant's quantizes weights and
//   activations; it has no KV cache of this kind.

#include "models/methods/resolve/availability.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "models/methods/resolve/presets.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kTitles{{
    {"vllm", "vLLM"},
    {"sglang", "SGLang"},
    {"trtllm", "TensorRT-LLM"},
    {"lmdeploy", "LMDeploy TurboMind"},
    {"lmdeploy-pytorch", "LMDeploy PyTorch engine"},
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
  (void)describe_method(method);  // throws if the name is unknown
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
