#pragma once

// Internal to sim/serve: a model whose layers are on several GPUs, one after another.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/memory/vllm_startup.hpp"
#include "sim/serve/engine/iteration_cost.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

struct ServeHooks;

/// Layers of each stage, evenly divided. A remainder goes to the stages before the last, one layer
/// each, starting from the end. Source: vllm distributed/utils.py, get_pp_indices.
/// Errors: InputError if there are more stages than layers.
[[nodiscard]] std::vector<LayerRange> pipeline_stages(const Llm& llm, std::int32_t stages);

/// Bytes of a stage's weights: its layers, the embedding in the first, the head in the last (a copy
/// of the embedding if they are tied). Parameters outside matrices are attributed to the layers.
/// `in` describes one GPU of the whole model. Measured weights apply to every stage.
[[nodiscard]] Bytes stage_weights(const CostInput& in, const LayerRange& range);

/// The parameters of an engine's stages. The stage with the least room bounds the pool.
struct Pipeline {
  std::vector<std::unique_ptr<IterationCost>> costs;  // one per stage
  EngineStartup startup;  // of the stage that bounds the pool; its tokens are those of the cache
  std::optional<VllmGroups> groups;  // of the whole model, if the engine has groups
  std::int64_t pool_units = 0;
  Bytes unit{};  // of one unit of the pool, on that stage's GPU
  Bytes row{};   // hidden states of a token, between stages
  BytesPerSecond link{0.0};
  Seconds latency{};  // per hop
};
/// `in` and `sizes` are those of one GPU with all layers. Stages are connected by the link of two
/// GPUs of a node (NVLink, else PCIe), or by the cluster's link if a replica spans several nodes;
/// every rank sends all of its hidden states. Errors: InputError if caches differ between layers
/// that the engine does not put into groups, or no link is known.
[[nodiscard]] Pipeline make_pipeline(const ServeSpec& spec, const CostInput& in,
                                     const Roofline& roofline, std::int64_t longest,
                                     const StackOptions& options, const ServeHooks& hooks);

}  // namespace kvsim
