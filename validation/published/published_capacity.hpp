#pragma once

#include <optional>
#include <string>
#include <vector>

#include "validation/published/published_csv.hpp"
#include "validation/published/published_setup.hpp"

namespace kvsim {

/// Predicts a figure that an engine's start printed about its cache: "gpu_kv_cache_size",
/// "max_concurrency", "num_gpu_blocks", "available_mamba_cache_blocks", "attention_block_size",
/// "kv_needed_for_one_request" and "available_kv_cache_memory" (GiB), "estimated_max_model_len";
/// and "model_loading", the weights on one GPU in GiB. It is derived from the cache memory that the
/// same start printed (setup.facts) or that its settings define; else from another figure that it
/// printed; else from the memory predicted for its GPU. The choice, and inputs that the row does
/// not state, are added to `assumed`. Returns nullopt, with a reason in `why`, if the row does not
/// state the inputs of the figure.
[[nodiscard]] std::optional<double> predict_engine_cache(const PublishedRow& row,
                                                         const PublishedSetup& setup,
                                                         std::vector<std::string>& assumed,
                                                         std::string& why);

}  // namespace kvsim
