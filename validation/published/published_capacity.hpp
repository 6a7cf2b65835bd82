#pragma once

#include <optional>
#include <string>

#include "validation/published/published_csv.hpp"
#include "validation/published/published_setup.hpp"

namespace kvsim {

/// What a vLLM start printed about its cache, predicted from the cache memory that the same start
/// printed (setup.pool) and the settings that the row states: "gpu_kv_cache_size",
/// "max_concurrency", "num_gpu_blocks", "available_mamba_cache_blocks", "attention_block_size"; and
/// "model_loading", the weights on one GPU in GiB.
/// nullopt, with a reason in `why`, where the row does not state what decides it.
[[nodiscard]] std::optional<double> predict_engine_cache(const PublishedRow& row,
                                                         const PublishedSetup& setup,
                                                         std::string& why);

}  // namespace kvsim
