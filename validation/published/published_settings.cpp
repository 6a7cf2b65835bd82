#include "validation/published/published_settings.hpp"

#include <algorithm>
#include <array>

#include "validation/published/published_text.hpp"

namespace kvsim {
namespace {

struct NamedSetting {
  std::string_view document, engine, name, words;
};

// QwenLM/Qwen2.5, docs/source/benchmark/speed_benchmark.rst: the legend under its table of 72B.
constexpr std::string_view kQwen = "qwen2.5 docs/source/benchmark/speed_benchmark.rst";
constexpr std::array kSettings{
    NamedSetting{kQwen, "vllm", "Default", "gpu_memory_utilization=0.9 max_model_len=32768"},
    NamedSetting{kQwen, "vllm", "Setting 1",
                 "gpu_memory_utilization=0.98 max_model_len=4096 enforce_eager"},
    NamedSetting{kQwen, "vllm", "Setting 2",
                 "gpu_memory_utilization=1.0 max_model_len=4096 enforce_eager"},
    NamedSetting{kQwen, "vllm", "Setting 3",
                 "gpu_memory_utilization=1.0 max_model_len=8192 enforce_eager"},
    NamedSetting{kQwen, "vllm", "Setting 4", "gpu_memory_utilization=0.9 max_model_len=65536"},
    NamedSetting{kQwen, "vllm", "Setting 5", "gpu_memory_utilization=0.9 max_model_len=131072"},
};

}  // namespace

std::string_view named_setting(const PublishedRow& row) {
  const std::string name = plain_text(row.note);
  const auto* const found =
      std::find_if(kSettings.begin(), kSettings.end(), [&](const NamedSetting& s) {
        return name == plain_text(std::string{s.name}) && has_text(row.source, s.document) &&
               has_text(row.framework, s.engine);
      });
  return found == kSettings.end() ? std::string_view{} : found->words;
}

}  // namespace kvsim
