// Methods that hold all entries and read some of them, and references.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {

PresetRows reading_presets() {
  return {
      {.name = "quest",
       .summary = "keeps everything, reads the pages whose key bounds match the query best",
       .paper = "Tang et al., Quest: Query-Aware Sparsity",
       .axes = {{"read", "quest"}},
       .size_law = "T (and 2 d elements per page of 16)",
       .cost_class = "S0: flash attention untouched; the budget limits what a query reads",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "mit-han-lab/Quest"}}},
      {.name = "shadowkv",
       .summary = "keys before RoPE as a low-rank product, values in host memory; reads chunks "
                  "chosen by their mean key",
       .paper = "Sun et al., ShadowKV",
       .axes = {{"read", "shadowkv"}},
       .size_law = "T (values of the prompt in host memory, its keys of rank 160 a layer)",
       .cost_class = "S0: flash attention untouched, an SVD at prefill; the budget limits a step's "
                     "reads of the prompt",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "bytedance/ShadowKV"}}},
      {.name = "rocketkv",
       .summary =
           "prompt cut as in SnapKV; a step reads the pages whose bounds match its queries best",
       .paper = "Fu et al., RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV "
                "Cache Compression (arXiv 2502.14051)",
       .axes = {{"select", "window"}, {"budget", "uniform"}, {"read", "rocket"}},
       .size_law = "min(s, cap) + n (and 2 d bytes per page of 4)",
       .cost_class = "SW(32) at prefill; a step reads page keys and 64 pages",
       .defaults = {{"kernel", std::int64_t{63}}, {"cap", std::int64_t{2048}}},
       .default_budget = 0,
       .available = {{"trtllm", "RocketSparseAttentionConfig"}, {"research", "NVlabs/RocketKV"}}},
      {.name = "pqcache",
       .summary = "keys and values in host memory; a step fetches tokens found by product "
                  "quantisation of the keys, and reads them with first and recent tokens",
       .paper = "Zhang et al., PQCache: Product Quantization-based KVCache for Long Context LLM "
                "Inference (arXiv 2407.12820)",
       .axes = {{"read", "pq"}},
       .size_law = "T (in host memory; on the GPU 12 bits per token, centres, and the entries that "
                   "a step reads)",
       .cost_class =
           "S0: flash attention untouched, k-means on the CPU; the budget limits what a step reads",
       .defaults = {},
       .default_budget = 0.1,
       .available = {{"research", "HugoZHL/PQCache"}}},
      {.name = "arkvale",
       .summary = "pages move from the GPU to host memory and return when their digest matches a "
                  "query; a step reads first, last and best pages",
       .paper =
           "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value "
           "Eviction (NeurIPS 2024)",
       .axes = {{"read", "arkvale"}},
       .size_law = "T (full pages in host memory; on the GPU digests of 2 d elements per page of "
                   "32, and four times the entries that a step reads)",
       .cost_class = "S0: flash attention untouched; the budget limits what a step reads",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "pku-liang/ArkVale"}}},
      {.name = "infllm",
       .summary = "blocks of distant tokens in host memory; a step fetches the blocks whose keys "
                  "(means of the most attended keys) match its queries, and reads them with first "
                  "and local tokens",
       .paper = "Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an "
                "Efficient Context Memory (arXiv 2402.04617)",
       .axes = {{"read", "infllm"}},
       .size_law = "T (blocks of 128 in host memory; on the GPU a key per block and query head, "
                   "initial and local tokens, and 32 blocks)",
       .cost_class =
           "SD of the local tokens at prefill and in decode; the budget limits what a step reads",
       .defaults = {},
       .default_budget = 0,
       .available = {{"research", "thunlp/InfLLM"}}},
      {.name = "dsa",
       .summary = "DeepSeek's sparse attention: a recorded indexer chooses the tokens that all "
                  "heads of a layer attend over",
       .paper = "DeepSeek-AI, DeepSeek-V3.2",
       .axes = {{"read", "dsa"}},
       .size_law = "T (and 132 B per token and layer)",
       .cost_class = "S0; a step reads 132 B of index per token and 2048 tokens",
       .available = {{"vllm", "models with an indexer"},
                     {"sglang", "models with an indexer"},
                     {"trtllm", "DeepSeekSparseAttentionConfig"},
                     {"research", "deepseek-ai/DeepSeek-V3.2-Exp"}}},
      {.name = "dsa-oracle",
       .summary = "reference: all heads of a layer attend over the tokens with the largest "
                  "probabilities, summed over query heads",
       .paper = "",
       .axes = {{"read", "dsa"}},
       .size_law = "T (and 132 B per token and layer)",
       .cost_class = "needs all scores to choose the tokens; its costs are those of dsa",
       .defaults = {{"index", std::string{"oracle"}}}},
      {.name = "msa",
       .summary = "MiniMax-M3's sparse attention: a recorded indexer chooses the 16 blocks of 128 "
                  "tokens that the query heads of a KV head read",
       .paper = "MiniMax, MiniMax-M3",
       .axes = {{"read", "blocks"}},
       .size_law = "T (and 256 B of index keys per token and layer, starting at layer 3)",
       .cost_class = "S0; a step reads 256 B of index per token and 2048 tokens",
       .available = {{"trtllm", "models with a block indexer"}}},
      {.name = "moba",
       .summary = "each query head reads its own block and the 11 blocks of 4096 tokens whose mean "
                  "key matches its query best",
       .paper = "Lu et al., MoBA: Mixture of Block Attention for Long-Context LLMs (arXiv "
                "2502.13189)",
       .axes = {{"read", "blocks"}},
       .size_law = "T (and a mean key per block)",
       .cost_class = "S0; a step reads a mean key per block and 12 blocks for each query head",
       .defaults = {{"digest", std::string{"mean"}},
                    {"topk", std::int64_t{12}},
                    {"page", std::int64_t{4096}},
                    {"dense", std::int64_t{0}}},
       .available = {{"research", "MoonshotAI/MoBA"}}},
      {.name = "blocks-oracle",
       .summary = "reference: the query heads of a KV head read the blocks with their largest "
                  "logits, which an indexer with one score per block approximates",
       .paper = "",
       .axes = {{"read", "blocks"}},
       .size_law = "T",
       .cost_class =
           "needs all logits to choose the blocks; its costs are those of the chosen blocks",
       .defaults = {{"digest", std::string{"keys"}}, {"dense", std::int64_t{0}}}},
      {.name = "oracle-step",
       .summary = "reference: each query head attends over the entries with the largest weights at "
                  "its step; no other choice of this size retains more",
       .paper = "",
       .axes = {{"read", "oracle-step"}},
       .size_law = "T",
       .cost_class =
           "needs all weights to choose the entries; the budget limits the entries it attends over",
       .defaults = {},
       .default_budget = 0.2},
  };
}

}  // namespace kvsim
