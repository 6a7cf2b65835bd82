// Sources of the catalogue's `available`:
// - kvpress: README and kvpress/__init__.py of 0.5.4 (github.com/NVIDIA/kvpress 8bb29b9).
// - vLLM: CacheDType of vllm/config/cache.py (002f10e); docs of the named version, quantized KV
//   cache.
//   KVarN is in its main branch (vllm/model_executor/layers/quantization/kvarn/config.py, eb70063),
//   OSCAR in a pull request (vllm/v1/attention/ops/oscar_ops.py, 2736c2e).
// - SGLang: docs.sglang.io, advanced_features/quantized_kv_cache. Quest is not listed, because no
// server
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
// - research code: the authors' repository. SmoothQuant's repository quantizes weights and
//   activations, but not the KV cache.

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

constexpr std::string_view kMain = "main";
constexpr std::string_view kPullRequest = "pull request";

template <class Detail>
std::string joined(const std::vector<Availability>& available, Detail detail) {
  std::string out;
  for (const Availability& one : available) {
    if (!out.empty()) out += ", ";
    out += software_title(one.software);
    out += detail(one);
  }
  return out.empty() ? "none known" : out;
}

}  // namespace

bool AvailabilityParts::is_released() const { return version != kMain && version != kPullRequest; }

AvailabilityParts parts_of(const Availability& one) {
  const std::size_t colon = one.as.find(": ");
  const std::string_view before = std::string_view{one.as}.substr(0, colon);
  const bool is_number =
      !before.empty() && before.find_first_not_of("0123456789.") == std::string_view::npos;
  if (colon == std::string::npos || !(is_number || before == kMain || before == kPullRequest)) {
    return {.version = {}, .option = one.as};
  }
  return {.version = std::string{before}, .option = one.as.substr(colon + 2)};
}

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
  return joined(available, [](const Availability& one) {
    return one.as.empty() ? std::string{} : fmt::format(" ({})", one.as);
  });
}

std::string availability_titles(const std::vector<Availability>& available) {
  return joined(available, [](const Availability&) { return std::string{}; });
}

std::string availability_versions(const std::vector<Availability>& available) {
  return joined(available, [](const Availability& one) {
    const AvailabilityParts parts = parts_of(one);
    if (parts.version.empty()) return std::string{};
    return parts.is_released() ? fmt::format(" {}", parts.version)
                               : fmt::format(" ({})", parts.version);
  });
}

}  // namespace kvsim
