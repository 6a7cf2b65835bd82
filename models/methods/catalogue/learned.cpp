// Oracles, surrogates and recorded decisions.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows learned_presets() {
  const std::string repeat = "S0 after a repeat of the prompt (2-3 times the prefill)";
  const std::string flash = "S0: flash attention untouched";
  return {
      {.name = "kvzip",
       .summary = "prompt entries ranked over all heads by the attention they receive when the "
                  "prompt is repeated",
       .paper =
           "Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
       .axes = {{"select", "kvzip"}, {"budget", "global"}},
       .size_law = "(1 - ratio) s on average over heads, and n",
       .cost_class = repeat,
       .available = {{"kvpress", "KVzipPress"}, {"research", "snu-mllab/KVzip"}}},
      {.name = "kvzip-plus",
       .summary = "KVzip, each entry weighted by its effect on the residual stream",
       .paper = "KVzip+ of kvpress, targets of KVzap's surrogates",
       .axes = {{"select", "kvzip-plus"}, {"budget", "global"}},
       .size_law = "(1 - ratio) s on average over heads, and n",
       .cost_class = repeat,
       .available = {{"kvpress", "KVzipPress"}}},
      {.name = "kvzap",
       .summary = "a surrogate predicts KVzip+ from hidden states; tokens below a threshold are "
                  "dropped when they leave a window",
       .paper = "KVzap, released with kvpress",
       .axes = {{"select", "kvzap"}, {"budget", "threshold"}},
       .size_law = "min(T, w) + tokens before the window that score >= tau (known from a replay)",
       .cost_class = "S0, hidden states",
       .available = {{"kvpress", "KVzapPress with DMSPress"}}},
      {.name = "sepllm",
       .summary = "first tokens, separators (punctuation, white space) and recent tokens",
       .paper = "Chen et al., SepLLM: Accelerate Large Language Models by Compressing One Segment "
                "into One Separator (arXiv 2412.12094)",
       .axes = {{"select", "separators"}},
       .size_law = "min(T, n_sink + kept separators + tokens since the last trim) <= cache (known "
                   "from a replay)",
       .cost_class = flash,
       .available = {{"research", "HKUDS/SepLLM"}}},
      {.name = "dms",
       .summary = "a learned decision per token and head, applied one window later",
       .paper = "Lancucki et al., Inference-Time Hyper-Scaling with KV Cache Compression",
       .axes = {{"select", "dms"}},
       .size_law =
           "min(T, w) + tokens before the window that the model keeps (known from a replay)",
       .cost_class = flash},
      {.name = "dmc",
       .summary = "a learned choice per token and head: append, or accumulate into the last entry",
       .paper = "Nawrot et al., Dynamic Memory Compression: Retrofitting LLMs for Accelerated "
                "Inference",
       .axes = {{"select", "dmc"}, {"merge", "accumulate"}},
       .size_law = "tokens with alpha = 0 (known from a replay)",
       .cost_class = flash},
      {.name = "pyramidinfer",
       .summary =
           "each layer passes on fewer prompt tokens to the next, which neither computes nor "
           "caches the others",
       .paper = "Yang et al., PyramidInfer: Pyramid KV Cache Compression for High-throughput LLM "
                "Inference",
       .axes = {{"select", "pyramidinfer"}, {"budget", "nested"}},
       .size_law = "c_l + min(n, recent + 16) + (keep_l / 16) max(n - recent - 16, 0)",
       .cost_class = "SW(0.2 s) at prefill, SD in decode",
       .available = {{"research", "mutonix/pyramidinfer"}}},
  };
}

}  // namespace kvsim
