#include "validation/published/published_metrics.hpp"

#include <algorithm>
#include <array>

namespace kvsim {
namespace {

constexpr std::string_view kTotalTime =
    "prefill and N - 1 decode steps for N output tokens; the prefill produces the first";

constexpr std::array kRules{
    PublishedMetricInfo{
        "peak_mem_gb", PublishedKind::kPeakMemory,
        "peak bytes of the run without the CUDA context, as counted by torch; of decode only if "
        "the row is a decode step or names the context reached, of prefill only without output"},
    PublishedMetricInfo{"allocated_mem_gb", PublishedKind::kPeakMemory,
                        "bytes held between two steps at the end of the run"},
    PublishedMetricInfo{"weights_gb", PublishedKind::kEngineMemory, "weights on one GPU"},
    PublishedMetricInfo{"non_torch_gb", PublishedKind::kEngineMemory,
                        "CUDA context, libraries and collectives' buffers of one GPU"},
    PublishedMetricInfo{"activation_gb", PublishedKind::kEngineMemory,
                        "peak of an engine's profiling run in addition to the weights"},
    PublishedMetricInfo{"cuda_graph_gb", PublishedKind::kEngineMemory, "CUDA graph pools"},
    PublishedMetricInfo{
        "kv_cache_gb", PublishedKind::kCacheSize,
        "cache of the prompt; an engine's pool if the row sets its share of memory"},
    PublishedMetricInfo{"memory_gb", PublishedKind::kCacheSize, "cache of the prompt"},
    PublishedMetricInfo{"kv_bytes_per_token", PublishedKind::kCacheSize,
                        "cache of one additional token"},
    PublishedMetricInfo{"kv_capacity_tokens", PublishedKind::kCacheSize,
                        "tokens that an engine's pool holds"},
    PublishedMetricInfo{"max_batch", PublishedKind::kCapacity, "largest batch whose run fits"},
    PublishedMetricInfo{"max_context", PublishedKind::kCapacity,
                        "last length before a run is out of memory: of the prompt if the row "
                        "states it as such, otherwise by decoding from the prompt"},
    PublishedMetricInfo{"oom", PublishedKind::kOom,
                        "whether the run is out of memory; of caches that grow by copies, whether "
                        "the caching allocator is"},
    PublishedMetricInfo{
        "throughput_tok_s", PublishedKind::kTime,
        "output tokens of the batch over prefill and N - 1 decode steps; without the prefill for a "
        "decode step, or if the note excludes it; all GPUs together unless the unit says per GPU"},
    PublishedMetricInfo{"total_throughput_tok_s", PublishedKind::kTime,
                        "prompt and output tokens over prefill and decode"},
    PublishedMetricInfo{"latency_s", PublishedKind::kTime, kTotalTime},
    PublishedMetricInfo{"latency_ms", PublishedKind::kTime, kTotalTime},
    PublishedMetricInfo{"latency_ms_per_layer", PublishedKind::kTime,
                        "a decode step if the output column states it, otherwise the prefill of "
                        "the batch, over the layers"},
    PublishedMetricInfo{"prefill_latency_s", PublishedKind::kTime, "prefill of the batch"},
    PublishedMetricInfo{"prefill_latency_ms", PublishedKind::kTime, "prefill of the batch"},
    PublishedMetricInfo{"generation_time_s", PublishedKind::kTime,
                        "as latency_s; without the prefill if the note excludes it"},
    PublishedMetricInfo{"latency_ms_per_token", PublishedKind::kTime,
                        "mean decode step; prefill spread over the tokens if the note includes it"},
    PublishedMetricInfo{"ttft_s", PublishedKind::kTime, "prefill of the batch"},
    PublishedMetricInfo{"ttft_ms", PublishedKind::kTime, "prefill of the batch"},
    PublishedMetricInfo{"mem_bandwidth_gb_s", PublishedKind::kTime,
                        "weight bytes of one GPU times decode steps per second"},
    PublishedMetricInfo{"attention_tflops", PublishedKind::kKernel,
                        "arithmetic of causal attention over its time"},
    PublishedMetricInfo{"compression_ratio", PublishedKind::kRelative,
                        "bytes of the full cache over those of the method's"},
    PublishedMetricInfo{"removed_fraction", PublishedKind::kRelative,
                        "1 - bytes of the method's cache over those of the full cache"},
    PublishedMetricInfo{"relative_memory", PublishedKind::kRelative,
                        "cache (or peak, if the unit is of the peak) over that of the baseline"},
    PublishedMetricInfo{"mem_saving_pct", PublishedKind::kRelative,
                        "1 - cache (or peak) over that of the baseline"},
    PublishedMetricInfo{"mem_saving_gb", PublishedKind::kRelative,
                        "peak of the full cache minus that of the method"},
    PublishedMetricInfo{"relative_throughput", PublishedKind::kRelative,
                        "throughput over that of the baseline"},
    PublishedMetricInfo{"relative_latency", PublishedKind::kRelative,
                        "latency over that of the baseline"},
    PublishedMetricInfo{"relative_max_batch", PublishedKind::kRelative,
                        "largest batch over that of the baseline"},
    PublishedMetricInfo{"gpu_kv_cache_size", PublishedKind::kEngineCache,
                        "tokens that an engine prints for the cache memory of its start"},
    PublishedMetricInfo{"max_concurrency", PublishedKind::kEngineCache,
                        "requests of max_model_len tokens that this memory holds"},
    PublishedMetricInfo{
        "model_loading", PublishedKind::kEngineCache,
        "weights on one GPU, as published if the format has the same number of bits"},
    PublishedMetricInfo{"num_gpu_blocks", PublishedKind::kEngineCache, "blocks of this memory"},
    PublishedMetricInfo{"available_mamba_cache_blocks", PublishedKind::kEngineCache,
                        "blocks of this memory: a state takes one"},
    PublishedMetricInfo{"attention_block_size", PublishedKind::kEngineCache,
                        "tokens of a block next to recurrent states"},
    PublishedMetricInfo{"available_kv_cache_memory", PublishedKind::kEngineCache,
                        "cache memory of one GPU: the remainder after its settings and weights"},
    PublishedMetricInfo{"kv_needed_for_one_request", PublishedKind::kEngineCache,
                        "blocks of one request of max_model_len tokens"},
    PublishedMetricInfo{"estimated_max_model_len", PublishedKind::kEngineCache,
                        "longest request that this memory holds"},
};

constexpr std::array<std::string_view, 9> kKindNames{"peak memory", "cache size", "start-up",
                                                     "capacity",    "oom",        "time",
                                                     "kernel",      "relative",   "engine cache"};

}  // namespace

std::string_view name_of(PublishedKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::span<const PublishedMetricInfo> published_metric_rules() { return kRules; }

const PublishedMetricInfo* find_metric_rule(std::string_view name) {
  const auto* const found =
      std::find_if(kRules.begin(), kRules.end(),
                   [&](const PublishedMetricInfo& rule) { return rule.name == name; });
  return found == kRules.end() ? nullptr : found;
}

}  // namespace kvsim
