// Partly computed prompts. The cache is complete.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows prefill_presets() {
  const std::string part = "S0 in decode; part of the prompt's attention is computed";
  return {
      {.name = "xattention",
       .summary = "attention of the prompt only in blocks with the largest antidiagonal sums; "
                  "keeps the full cache",
       .paper = "Xu et al., XAttention: Block Sparse Attention with Antidiagonal Scoring (arXiv "
                "2503.16428)",
       .axes = {{"prefill", "xattention"}},
       .size_law = "T",
       .cost_class = part,
       .available = {{"research", "mit-han-lab/x-attention"}}},
      {.name = "minference",
       .summary = "attention of the prompt only in columns and diagonals chosen by its last "
                  "queries; keeps the full cache",
       .paper = "Jiang et al., MInference 1.0 (arXiv 2407.02490)",
       .axes = {{"prefill", "minference"}},
       .size_law = "T",
       .cost_class = part,
       .available = {{"research", "microsoft/MInference"}}},
      {.name = "flexprefill",
       .summary = "attention of the prompt only in columns and diagonals of blocks that cover a "
                  "share of the last block's attention; keeps the full cache",
       .paper = "Lai et al., FlexPrefill (arXiv 2502.20766)",
       .axes = {{"prefill", "flexprefill"}},
       .size_law = "T",
       .cost_class = part,
       .available = {{"research", "ByteDance-Seed/FlexPrefill"}}},
      {.name = "skip-softmax",
       .summary = "attention of the prompt without tiles far below their rows' maxima; keeps the "
                  "full cache",
       .paper = "BLASST: Dynamic Blocked Attention Sparsity via Softmax Thresholding",
       .axes = {{"prefill", "skip-softmax"}},
       .size_law = "T",
       .cost_class = part,
       .available = {{"trtllm", "SkipSoftmaxAttentionConfig"}}},
      {.name = "cacheblend",
       .summary = "a prompt of chunks whose rows come from host memory; the tokens whose keys "
                  "differ most are recomputed; keeps the full cache",
       .paper = "Yao et al., CacheBlend: Fast Large Language Model Serving for RAG with Cached "
                "Knowledge Fusion (arXiv 2405.16444)",
       .axes = {{"prefill", "blend"}},
       .size_law = "T",
       .cost_class = "S0 in decode; a share r of the prompt's tokens is computed, starting at the "
                     "check layer",
       .available = {{"vllm", "LMCache, enable_blending"}, {"research", "YaoJiayi/CacheBlend"}}},
  };
}

}  // namespace kvsim
