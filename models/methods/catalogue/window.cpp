// Selection by the attention of recent queries.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows window_presets() {
  const std::string window = "SW at prefill; decode untouched";
  return {
      {.name = "snapkv",
       .summary = "prompt cut by the pooled votes of its last queries; decode appends",
       .paper = "Li et al., SnapKV: LLM Knows What You Are Looking for Before Generation",
       .axes = {{"select", "window"}, {"budget", "uniform"}},
       .size_law = "min(s, cap) + n",
       .cost_class = window,
       .available = {{"kvpress", "SnapKVPress"}, {"research", "FasterDecoding/SnapKV"}}},
      {.name = "snapstream",
       .summary =
           "SnapKV on the prompt, then a ring of generated tokens: a cache of constant size; "
           "the paper's sizes are not published, here both parts are equal",
       .paper = "SnapStream: Efficient Long Sequence Decoding on Dataflow Accelerators (arXiv "
                "2511.03092)",
       .axes = {{"select", "window"}, {"budget", "uniform"}},
       .size_law = "min(s, cap) + min(n, ring)",
       .cost_class = window,
       .defaults = {{"ring", std::int64_t{-1}}}},
      {.name = "lazyeviction",
       .summary = "every 175 decode steps, keeps entries whose attention recurs at gaps no shorter "
                  "than the time since their last activation",
       .paper = "Zhang et al., LazyEviction: Lagged KV Eviction with Attention Pattern Observation "
                "for Efficient Long Reasoning (arXiv 2506.15969)",
       .axes = {{"select", "recurrence"}},
       .size_law = "T until the first eviction above B, then in [B, B + W)",
       .cost_class = "SD in decode; prefill untouched"},
      {.name = "morphkv",
       .summary = "constant cache: recent tokens and the older tokens that they attend to",
       .paper = "Ghadia et al., Dialogue Without Limits: Constant-Sized KV Caches (MorphKV)",
       .axes = {{"select", "fusion"}, {"budget", "uniform"}},
       .size_law = "min(T, C + R)",
       .cost_class = "SW at prefill, SD in decode",
       .available = {{"research", "ghadiaravi13/MorphKV"}}},
      {.name = "pyramidkv",
       .summary = "SnapKV with budgets that fall from layer to layer",
       .paper = "Cai et al., PyramidKV: Dynamic KV Cache Compression by Pyramidal Information "
                "Funneling",
       .axes = {{"select", "window"}, {"budget", "pyramid"}},
       .size_law = "min(s, m_l + w) + n",
       .cost_class = window,
       .defaults = {{"window", std::int64_t{8}}, {"cap", std::int64_t{512}}},
       .available = {{"kvpress", "PyramidKVPress"}, {"research", "Zefan-Cai/KVCache-Factory"}}},
      {.name = "tova",
       .summary = "at every step, keeps the tokens that the current query attends to, one set for "
                  "all heads",
       .paper = "Oren et al., Transformers are Multi-State RNNs",
       .axes = {{"select", "last-row"}, {"budget", "uniform"}},
       .size_law = "min(T, B)",
       .cost_class = "SW(1) at prefill, SD in decode",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"kvpress", "TOVAPress"}, {"research", "schwartz-lab-NLP/TOVA"}}},
      {.name = "observed-attention",
       .summary = "prompt cut by accumulated attention over exposure; decode appends",
       .paper = "kvpress (after Zhang et al., H2O)",
       .axes = {{"select", "observed"}, {"budget", "uniform"}},
       .size_law = "int(s f) + n",
       .cost_class = "SF at prefill; decode untouched",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"kvpress", "ObservedAttentionPress"}}},
      {.name = "scissorhands",
       .summary = "evicts entries that were rarely pivotal, half the budget at once",
       .paper = "Liu et al., Scissorhands: Exploiting the Persistence of Importance Hypothesis",
       .axes = {{"select", "persistence"}, {"budget", "uniform"}},
       .size_law = "in (B - m, B] once B is reached; data-dependent with variant=percentile",
       .cost_class = "SW at prefill (SF with history=cumulative), SD in decode",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "lzcemma/Scissorhands"}}},
      {.name = "keyformer",
       .summary = "accumulated attention regularised by Gumbel noise and a rising temperature",
       .paper = "Adnan et al., Keyformer: KV Cache Reduction through Key Tokens Selection",
       .axes = {{"select", "gumbel"}, {"budget", "uniform"}},
       .size_law = "min(T, B)",
       .cost_class = "SF at prefill, SD in decode",
       .defaults = {},
       .default_budget = 0.6,
       .available = {{"research", "d-matrix-ai/keyformer-llm"}}},
  };
}

}  // namespace kvsim
