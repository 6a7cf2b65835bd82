// The full cache, sliding windows and accumulated attention. A new composition of existing choices
// needs only a row in such a file.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows basic_presets() {
  const std::string flash = "S0: flash attention untouched";
  const std::string scores = "SF at prefill, SD in decode";
  return {
      {.name = "full",
       .summary = "keeps every token; the baseline for all other methods",
       .paper = "Vaswani et al. 2017",
       .axes = {},
       .size_law = "T",
       .cost_class = flash,
       .available = {{"vllm", ""},
                     {"sglang", ""},
                     {"trtllm", ""},
                     {"lmdeploy", ""},
                     {"transformers", "DynamicCache"}}},
      {.name = "streaming-llm",
       .summary = "first tokens (attention sinks) and a sliding window",
       .paper = "Xiao et al., Efficient Streaming Language Models with Attention Sinks",
       .axes = {{"select", "recent"}, {"budget", "uniform"}},
       .size_law = "min(T, n_sink + window)",
       .cost_class = flash,
       .available = {{"trtllm", "TensorRT backend, to 1.2: plugin streamingllm, sink_token_length"},
                     {"kvpress", "StreamingLLMPress"},
                     {"research", "mit-han-lab/streaming-llm"}}},
      {.name = "h2o",
       .summary = "heavy hitters by accumulated attention, and recent tokens",
       .paper = "Zhang et al., H2O: Heavy-Hitter Oracle",
       .axes = {{"select", "accumulated"}, {"budget", "uniform"}},
       .size_law = "min(T, heavy + recent)",
       .cost_class = scores,
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "FMInference/H2O"}}},
      {.name = "zeromerge",
       .summary = "decayed heavy hitters; evicted tokens averaged into residual slots (as in the "
                  "released code)",
       .paper = "Liu et al., ZeroMerge",
       .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "residual"}},
       .size_law = "min(T, B)",
       .cost_class = scores,
       .defaults = {{"decay", 0.98},
                    {"recent", 0.1},
                    {"eviction_candidates", std::string{"code"}},
                    {"tail_ring", std::string{"code"}}},
       .default_budget = 0.2,
       .available = {{"research", "SusCom-Lab/ZeroMerge"}}},
      {.name = "zeromerge-paper",
       .summary = "ZeroMerge with algorithm 1 as printed: prompt fed token by token",
       .paper = "Liu et al., ZeroMerge",
       .axes = {{"select", "accumulated"}, {"budget", "uniform"}, {"merge", "residual"}},
       .size_law = "min(T, B)",
       .cost_class = scores,
       .defaults = {{"decay", 0.98},
                    {"recent", 0.1},
                    {"prefill", std::string{"online"}},
                    {"layout", std::string{"indirect"}}},
       .default_budget = 0.2},
  };
}

}  // namespace kvsim
