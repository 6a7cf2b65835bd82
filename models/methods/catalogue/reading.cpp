// Methods that hold all entries and read some of them, and references.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows reading_presets() {
  return {
      {.name = "quest",
       .summary = "holds all, reads the pages whose keys could fit the query best",
       .paper = "Tang et al., Quest: Query-Aware Sparsity",
       .axes = {{"read", "quest"}},
       .size_law = "T (and 2 d elements a page of 16)",
       .cost_class = "S0: flash attention untouched; the budget is what a query reads",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "mit-han-lab/Quest"}}},
      {.name = "shadowkv",
       .summary = "keys before RoPE as a low-rank product, values in host memory; reads chunks "
                  "chosen by their mean key",
       .paper = "Sun et al., ShadowKV",
       .axes = {{"read", "shadowkv"}},
       .size_law = "T (values of the prompt in host memory, its keys of rank 160 a layer)",
       .cost_class = "S0: flash attention untouched, an SVD at prefill; the budget is what a step "
                     "reads of the prompt",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "bytedance/ShadowKV"}}},
      {.name = "rocketkv",
       .summary =
           "prompt cut as by SnapKV; a step reads the pages whose bounds fit its queries best",
       .paper = "Fu et al., RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV "
                "Cache Compression (arXiv 2502.14051)",
       .axes = {{"select", "window"}, {"budget", "uniform"}, {"read", "rocket"}},
       .size_law = "min(s, cap) + n (and 2 d bytes a page of 4)",
       .cost_class = "SW(32) at prefill; a step reads page keys and 64 pages",
       .defaults = {{"kernel", std::int64_t{63}}, {"cap", std::int64_t{2048}}},
       .default_budget = 0,
       .available = {{"trtllm", "RocketSparseAttentionConfig"}, {"research", "NVlabs/RocketKV"}}},
      {.name = "pqcache",
       .summary = "keys and values in host memory; a step fetches the tokens that product "
                  "quantisation of the keys finds, and reads them with first and recent ones",
       .paper = "Zhang et al., PQCache: Product Quantization-based KVCache for Long Context LLM "
                "Inference (arXiv 2407.12820)",
       .axes = {{"read", "pq"}},
       .size_law = "T (in host memory; 12 bits a token, centres, and what a step reads on the GPU)",
       .cost_class = "S0: flash attention untouched, k-means on the CPU; the budget is what a step "
                     "reads",
       .defaults = {},
       .default_budget = 0.1,
       .available = {{"research", "HugoZHL/PQCache"}}},
      {.name = "arkvale",
       .summary = "pages leave the GPU for host memory and return when their digest suits a query; "
                  "a step reads first, last and best pages",
       .paper =
           "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value "
           "Eviction (NeurIPS 2024)",
       .axes = {{"read", "arkvale"}},
       .size_law = "T (full pages in host memory; digests of 2 d elements a page of 32, and four "
                   "times what a step reads on the GPU)",
       .cost_class = "S0: flash attention untouched; the budget is what a step reads",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "pku-liang/ArkVale"}}},
      {.name = "infllm",
       .summary =
           "blocks of distant tokens in host memory; a step fetches those whose keys, means of "
           "the most attended ones, suit its queries, and reads them with first and local "
           "tokens",
       .paper = "Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an "
                "Efficient Context Memory (arXiv 2402.04617)",
       .axes = {{"read", "infllm"}},
       .size_law =
           "T (blocks of 128 in host memory; on the GPU a key a block and query head, initial "
           "and local tokens, and 32 blocks)",
       .cost_class = "SD, of the local tokens at prefill and in decode; the budget is what a step "
                     "reads",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "thunlp/InfLLM"}}},
      {.name = "dsa",
       .summary = "DeepSeek's sparse attention: a recorded indexer chooses the tokens that all "
                  "heads of a layer attend over",
       .paper = "DeepSeek-AI, DeepSeek-V3.2",
       .axes = {{"read", "dsa"}},
       .size_law = "T (and 132 B a token and layer)",
       .cost_class = "S0; a step reads 132 B of index a token and 2048 tokens",
       .available = {{"vllm", "models with an indexer"},
                     {"sglang", "models with an indexer"},
                     {"trtllm", "DeepSeekSparseAttentionConfig"},
                     {"research", "deepseek-ai/DeepSeek-V3.2-Exp"}}},
      {.name = "dsa-oracle",
       .summary = "reference: all heads of a layer attend over the tokens whose probabilities, "
                  "summed over its query heads, are greatest",
       .paper = "",
       .axes = {{"read", "dsa"}},
       .size_law = "T (and 132 B a token and layer)",
       .cost_class = "reads everything to know what to leave out; its costs are those of dsa",
       .defaults = {{"index", std::string{"oracle"}}}},
      {.name = "msa",
       .summary = "MiniMax-M3's sparse attention: a recorded indexer chooses the 16 blocks of 128 "
                  "tokens that the query heads of a KV head read",
       .paper = "MiniMax, MiniMax-M3",
       .axes = {{"read", "blocks"}},
       .size_law = "T (and 256 B a token and layer of index keys, from layer 3 on)",
       .cost_class = "S0; a step reads 256 B of index a token and 2048 tokens",
       .available = {{"trtllm", "models with a block indexer"}}},
      {.name = "moba",
       .summary = "each query head reads its own block and the 11 blocks of 4096 tokens whose mean "
                  "key suits its query best",
       .paper = "Lu et al., MoBA: Mixture of Block Attention for Long-Context LLMs (arXiv "
                "2502.13189)",
       .axes = {{"read", "blocks"}},
       .size_law = "T (and a mean key a block)",
       .cost_class = "S0; a step reads a mean key a block and 12 blocks for each query head",
       .defaults = {{"digest", std::string{"mean"}},
                    {"topk", std::int64_t{12}},
                    {"page", std::int64_t{4096}},
                    {"dense", std::int64_t{0}}},
       .available = {{"research", "MoonshotAI/MoBA"}}},
      {.name = "blocks-oracle",
       .summary = "reference: the query heads of a KV head read the blocks with their largest "
                  "logits, which an indexer with one score a block tries to find",
       .paper = "",
       .axes = {{"read", "blocks"}},
       .size_law = "T",
       .cost_class = "reads everything to know what to leave out; its costs are those of what it "
                     "reads",
       .defaults = {{"digest", std::string{"keys"}}, {"dense", std::int64_t{0}}}},
      {.name = "oracle-step",
       .summary =
           "reference: each query head attends over the entries that weigh most at its step; "
           "no choice of as many retains more",
       .paper = "",
       .axes = {{"read", "oracle-step"}},
       .size_law = "T",
       .cost_class = "reads everything to know what to leave out; its budget is what it attends "
                     "over",
       .defaults = {},
       .default_budget = 0.2},
  };
}

}  // namespace kvsim
