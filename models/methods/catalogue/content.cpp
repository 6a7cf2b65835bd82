// Selection by the contents of keys and values, and wrappers of such scorers.

#include "models/methods/resolve/presets.hpp"

namespace kvsim {
namespace {

/// A preset with a scorer in the ratio harness.
PresetRow scorer(std::string name, std::string summary, std::string paper, std::string cost_class,
                 std::string press) {
  return {.name = name,
          .summary = std::move(summary),
          .paper = std::move(paper),
          .axes = {{"select", name}, {"budget", "uniform"}},
          .size_law = "int(s (1 - ratio)) + n",
          .cost_class = std::move(cost_class),
          .available = {{"kvpress", std::move(press)}}};
}

}  // namespace

PresetRows content_presets() {
  const std::string flash = "S0: flash attention untouched";
  return {
      {.name = "knorm",
       .summary = "prompt tokens with the smallest keys; skip_layers leaves the first layers whole",
       .paper =
           "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
       .axes = {{"select", "knorm"}, {"budget", "first_full"}},
       .size_law = "int(s (1 - ratio)) + n; the first skip_layers T",
       .cost_class = flash,
       .defaults = {{"full_layers", std::int64_t{0}}},
       .available = {{"kvpress", "KnormPress"}}},
      scorer("keydiff", "prompt tokens whose keys differ most from the mean key",
             "Park et al., KeyDiff", flash, "KeyDiffPress"),
      scorer("cur", "prompt tokens whose keys and values are the longest near them",
             "Sengupta et al., CurDKV (arXiv 2509.15038)", flash, "CURPress"),
      scorer("compactor",
             "prompt tokens whose keys are outliers, and that nearby queries attend to",
             "Chari and Van Durme, Compactor (arXiv 2507.08143)",
             "S0, queries and keys before RoPE; logits within chunks of 256", "CompactorPress"),
      scorer("leverage", "prompt tokens whose keys are outliers: approximate leverage scores",
             "Chari and Van Durme, Compactor (arXiv 2507.08143)", "S0 and keys before RoPE",
             "LeverageScorePress"),
      scorer("non-causal", "prompt tokens that queries of the same 256 tokens attend to",
             "Chari and Van Durme, Compactor (arXiv 2507.08143)",
             "S0 and queries; logits within chunks of 256", "NonCausalAttnPress"),
      scorer(
          "qfilter",
          "prompt tokens whose keys point along the main direction of the queries; a replay takes "
          "it from the prompt's own queries, the authors from those of other texts",
          "Godey et al., Q-Filters (arXiv 2503.02812)", flash, "QFilterPress"),
      scorer("capkv", "prompt tokens whose values are outliers, weighted by the fit of their keys",
             "CapKV (arXiv 2604.25975)", "S0 and queries before RoPE", "CapPress"),
      scorer("expected-attention",
             "prompt tokens that queries still to come are expected to attend",
             "Devoto et al., Expected Attention", "S0 and queries before RoPE",
             "ExpectedAttentionPress"),
      scorer("lagkv", "prompt tokens that differ from those after them", "Liang et al., LagKV",
             flash, "LagKVPress"),
      scorer("random", "prompt tokens drawn at random: what any scorer must beat", "kvpress", flash,
             "RandomPress"),
      {.name = "adakv",
       .summary =
           "the heads of a layer share one budget, by where attention of the last queries is "
           "high",
       .paper = "Feng et al., Ada-KV",
       .axes = {{"select", "last-window"}, {"budget", "ada"}},
       .size_law = "sum over heads about Hkv int(s (1 - ratio)), ragged, + n each",
       .cost_class = "SW(32)",
       .available = {{"kvpress", "AdaKVPress"}, {"research", "FFY0/AdaKV"}}},
      {.name = "criticalkv",
       .summary = "half by attention of the last queries, half by that times the value's effect on "
                  "the output",
       .paper = "Feng et al., Identify Critical KV Cache in LLM Inference from an Output "
                "Perturbation Perspective",
       .axes = {{"select", "critical"}, {"budget", "uniform"}},
       .size_law = "int(s (1 - ratio)) + n",
       .cost_class = "SW(32) and a projection of every value",
       .available = {{"kvpress", "CriticalKVPress"}}},
      {.name = "chunkkv",
       .summary = "whole chunks of 20 tokens, the same in every head of a layer",
       .paper = "Liu et al., ChunkKV",
       .axes = {{"select", "chunked"}, {"budget", "uniform"}},
       .size_law = "20 int(ceil(s / 20) (1 - ratio)) + n, less where the last chunk is short",
       .cost_class = "SW(32)",
       .available = {{"kvpress", "ChunkKVPress"}}},
      {.name = "chunkpress",
       .summary = "the tokens of highest score in each run of 1024, run by run",
       .paper = "kvpress, ChunkPress",
       .axes = {{"select", "within-chunks"}, {"budget", "uniform"}},
       .size_law = "sum over runs of m <= 1024 of max(1, int(m (1 - ratio))), + n",
       .cost_class = flash,
       .available = {{"kvpress", "ChunkPress"}}},
      {.name = "blockpress",
       .summary = "a streaming top-k: 128 tokens join at a time and the highest scores go on",
       .paper = "kvpress, BlockPress",
       .axes = {{"select", "block-wise"}, {"budget", "uniform"}},
       .size_law = "int(s (1 - ratio)) + n",
       .cost_class = flash,
       .available = {{"kvpress", "BlockPress"}}},
      {.name = "decoding",
       .summary = "compression every 512 decode steps, the prompt left whole",
       .paper = "kvpress, DecodingPress",
       .axes = {{"select", "periodic"}},
       .size_law = "s + n until n = 512, then in [target, target + 512)",
       .cost_class = flash,
       .available = {{"kvpress", "DecodingPress"}}},
      {.name = "r-kv",
       .summary = "importance less redundancy, every 128 decode steps",
       .paper = "Cai et al., R-KV: Redundancy-aware KV Cache Compression for Reasoning Models",
       .axes = {{"select", "r-kv"}, {"budget", "uniform"}},
       .size_law = "in [B, B + 128)",
       .cost_class = "SW(8); 2 E^2 d every 128 steps",
       .defaults = {},
       .default_budget = 0.2,
       .available = {{"research", "Zefan-Cai/R-KV"}}},
      {.name = "triattention",
       .summary = "every 128 decode steps the entries that the mean query of each head would score "
                  "highest from positions to come; the prompt stays whole",
       .paper =
           "Mao et al., TriAttention: Efficient Long Reasoning with Trigonometric KV Compression "
           "(arXiv 2604.04921)",
       .axes = {{"select", "triattention"}},
       .size_law = "T until T = s + B, then in [s + B, s + B + 128)",
       .cost_class = "S0 and queries before RoPE; keys are read every 128 steps",
       .available = {{"trtllm",
                      "1.3.0rc27: TriAttentionKvCacheCompressionConfig, "
                      "eviction_mode=per_layer_perhead"},
                     {"research", "WeianMao/triattention"}}},
      {.name = "simlayerkv",
       .summary =
           "layers whose last query attends only to sinks and recent tokens keep nothing else",
       .paper = "Zhang et al., SimLayerKV",
       .axes = {{"select", "lazy-layers"}, {"budget", "lazy"}},
       .size_law = "lazy layers min(T, 1027), others T",
       .cost_class = "SW(1)",
       .available = {{"kvpress", "SimLayerKVPress"}}},
      {.name = "duo-attention",
       .summary = "retrieval heads keep everything, streaming heads sinks and recent tokens",
       .paper = "Xiao et al., DuoAttention",
       .axes = {{"select", "streaming-heads"}, {"budget", "duo"}},
       .size_law = "retrieval heads T, streaming heads min(T, 384)",
       .cost_class = flash,
       .available = {{"kvpress", "DuoAttentionPress"}, {"research", "mit-han-lab/duo-attention"}}},
      {.name = "oracle-future",
       .summary = "reference: the entry that later queries attend least leaves for good",
       .paper = "none: a reference of this simulator",
       .axes = {{"select", "oracle-future"}, {"budget", "uniform"}},
       .size_law = "min(T, B)",
       .cost_class = "none can be named: it reads the trace's future",
       .defaults = {},
       .default_budget = 0.2},
  };
}

}  // namespace kvsim
