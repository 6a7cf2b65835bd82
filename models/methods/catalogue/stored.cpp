// Low-bit stores, and layers that share.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows stored_presets() {
  const std::string flash = "S0: flash attention untouched";
  const std::string kivi = "Liu et al., KIVI: A Tuning-Free Asymmetric 2bit Quantization";
  const std::string fp8 = "Micikevicius et al., FP8 Formats for Deep Learning";
  return {
      {.name = "int8",
       .summary = "every key and value in 8 bits, a step a token: d + 2 B a row",
       .paper = "",
       .axes = {{"store", "int8"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"vllm", "0.23: --kv-cache-dtype int8_per_token_head"},
                     {"lmdeploy", "0.4: --quant-policy 8"}}},
      {.name = "rtn",
       .summary =
           "every key and value rounded to 4 bits in groups of channels: bits + 32/g an element",
       .paper = "",
       .axes = {{"store", "rtn"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"lmdeploy", "0.4: --quant-policy 4"}}},
      {.name = "kivi-2",
       .summary = "keys by channel, values by token, 2 bits (bits + 32/g an element); the newest R "
                  "in full precision",
       .paper = kivi,
       .axes = {{"store", "kivi"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"transformers", "QuantizedCache, nbits 2"}, {"research", "jy-yuan/KIVI"}}},
      {.name = "kivi-4",
       .summary = "keys by channel, values by token, 4 bits (bits + 32/g an element); the newest R "
                  "in full precision",
       .paper = kivi,
       .axes = {{"store", "kivi"}},
       .size_law = "T",
       .cost_class = flash,
       .defaults = {{"bits", std::int64_t{4}}},
       .available = {{"transformers", "QuantizedCache, nbits 4"}, {"research", "jy-yuan/KIVI"}}},
      {.name = "fp8-e4m3",
       .summary = "every key and value in 8-bit floating point, 4 bits of exponent",
       .paper = fp8,
       .axes = {{"store", "fp8-e4m3"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"vllm", "0.6.4: --kv-cache-dtype fp8_e4m3"},
                     {"sglang", "--kv-cache-dtype fp8_e4m3"},
                     {"trtllm", "kv_cache_config.dtype fp8"},
                     {"lmdeploy-pytorch", "0.14: --quant-policy fp8"}}},
      {.name = "fp8-e5m2",
       .summary = "every key and value in 8-bit floating point, 5 bits of exponent",
       .paper = fp8,
       .axes = {{"store", "fp8-e5m2"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"vllm", "0.6.6: --kv-cache-dtype fp8_e5m2"},
                     {"sglang", "--kv-cache-dtype fp8_e5m2"},
                     {"lmdeploy-pytorch", "0.14: --quant-policy fp8_e5m2"}}},
      {.name = "smoothquant-kv",
       .summary = "8 bits a token, with the ranges of key channels moved into the queries",
       .paper = "Xiao et al., SmoothQuant",
       .axes = {{"store", "smoothquant-kv"}},
       .size_law = "T",
       .cost_class = flash},
      {.name = "gear",
       .summary = "2-bit backbone, outliers apart, low-rank part of what was lost; the newest in "
                  "full precision",
       .paper = "Kang et al., GEAR",
       .axes = {{"store", "gear"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"research", "opengear-project/GEAR"}}},
      {.name = "think",
       .summary = "drops the key channels that recent queries weigh least: keys of the prompt "
                  "times 1 - rho_c, but the last 32",
       .paper = "Xu et al., ThinK",
       .axes = {{"store", "think"}},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"kvpress", "ThinKPress"}}},
      {.name = "minicache",
       .summary = "two neighbouring layers keep one direction a token and their own norms",
       .paper = "Liu et al., MiniCache",
       .axes = {{"share", "minicache"}},
       .size_law = "T",
       .cost_class = flash},
  };
}

}  // namespace kvsim
