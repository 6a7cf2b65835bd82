// Codecs of pages outside the GPU. The GPU holds the full cache.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows tier_presets() {
  const std::string flash = "S0: flash attention untouched";
  return {
      {.name = "nvfp4-cold-pages",
       .summary = "pages in host memory or on disk in NVFP4 (9/16 B per element), 16-bit or FP8 "
                  "rows on the GPU",
       .paper = "",
       .axes = {{"tier", "nvfp4"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"trtllm", "kv_cache_compression_config: quantization_for_cold_page, SM100"}}},
      {.name = "cachegen",
       .summary = "pages outside the GPU as codes of 32 or 16 bins of a row's maximum, "
                  "arithmetic-coded per channel",
       .paper = "Liu et al., CacheGen: KV Cache Compression and Streaming for Fast LLM Serving "
                "(SIGCOMM 2024)",
       .axes = {{"tier", "cachegen"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"research", "LMCache: remote_serde cachegen"}}},
      {.name = "kvtc",
       .summary = "pages outside the GPU as principal coefficients of a token's keys (before RoPE) "
                  "and values, in groups of 32, 16, 8 or 4 bits",
       .paper = "KVTC: KV Cache Transform Coding for Compact Storage in LLM Inference",
       .axes = {{"tier", "kvtc"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"research", "jfckm/sglang-kvtc"}}},
      {.name = "ans-pages",
       .summary = "pages on link and disk compressed without loss by ANS; host memory reserves "
                  "their full size",
       .paper = "",
       .axes = {{"tier", "ans"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"research", "FlexKV, pull request 183 (nvCOMP)"}}},
  };
}

}  // namespace kvsim
