// Stores of fewer bits, and layers that share.

#include "models/methods/presets.hpp"

namespace kvsim {

PresetRows stored_presets() {
  const std::string flash = "S0: flash attention untouched";
  const std::string kivi = "Liu et al., KIVI: A Tuning-Free Asymmetric 2bit Quantization";
  const std::string fp8 = "Micikevicius et al., FP8 Formats for Deep Learning";
  return {
      {.name = "int8",
       .summary = "every key and value in 8 bits, a step a token",
       .paper = "",
       .axes = {{"store", "int8"}},
       .size_law = "T; d + 2 B a row",
       .cost_class = flash},
      {.name = "rtn",
       .summary = "every key and value rounded to 4 bits in groups of channels",
       .paper = "",
       .axes = {{"store", "rtn"}},
       .size_law = "T; bits + 32/g an element",
       .cost_class = flash},
      {.name = "kivi-2",
       .summary = "keys by channel, values by token, 2 bits; the newest in full precision",
       .paper = kivi,
       .axes = {{"store", "kivi"}},
       .size_law = "T; bits + 32/g an element, and up to 2R rows whole",
       .cost_class = flash},
      {.name = "kivi-4",
       .summary = "keys by channel, values by token, 4 bits; the newest in full precision",
       .paper = kivi,
       .axes = {{"store", "kivi"}},
       .size_law = "T; bits + 32/g an element, and up to 2R rows whole",
       .cost_class = flash,
       .defaults = {{"bits", std::int64_t{4}}}},
      {.name = "fp8-e4m3",
       .summary = "every key and value in 8-bit floating point, 4 bits of exponent",
       .paper = fp8,
       .axes = {{"store", "fp8-e4m3"}},
       .size_law = "T; 1 B an element",
       .cost_class = flash},
      {.name = "fp8-e5m2",
       .summary = "every key and value in 8-bit floating point, 5 bits of exponent",
       .paper = fp8,
       .axes = {{"store", "fp8-e5m2"}},
       .size_law = "T; 1 B an element",
       .cost_class = flash},
      {.name = "smoothquant-kv",
       .summary = "8 bits a token, with the ranges of key channels moved into the queries",
       .paper = "Xiao et al., SmoothQuant",
       .axes = {{"store", "smoothquant-kv"}},
       .size_law = "T; d + 2 B a row",
       .cost_class = flash},
      {.name = "gear",
       .summary = "2-bit backbone, outliers apart, low-rank part of what was lost",
       .paper = "Kang et al., GEAR",
       .axes = {{"store", "gear"}},
       .size_law = "T; bits + 32/g, outliers, r(T + d), and a buffer whole",
       .cost_class = flash},
      {.name = "think",
       .summary = "drops the key channels that recent queries weigh least",
       .paper = "Xu et al., ThinK",
       .axes = {{"store", "think"}},
       .size_law = "T; keys of the prompt times 1 - rho_c but the last 32",
       .cost_class = flash},
      {.name = "minicache",
       .summary = "two neighbouring layers keep one direction a token and their own norms",
       .paper = "Liu et al., MiniCache",
       .axes = {{"share", "minicache"}},
       .size_law = "T; merged layers hold half, norms and retained tokens",
       .cost_class = flash},
  };
}

}  // namespace kvsim
