#pragma once

// Inside of sim/serve: a model whose layers stand on several GPUs one after another.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/memory/vllm_startup.hpp"
#include "sim/serve/engine/iteration_cost.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

struct ServeHooks;

/// Layers of each stage, as many to each; where they do not divide, the stages before the last have
/// one more, from the end on. Source: vllm distributed/utils.py, get_pp_indices.
/// Errors: InputError where there are more stages than layers.
[[nodiscard]] std::vector<LayerRange> pipeline_stages(const Llm& llm, std::int32_t stages);

/// Weights that a stage holds: its layers, the embedding in the first, the head in the last (a copy
/// of the embedding where they are tied); what a model has beside its matrices goes with the
/// layers. `in` is of one GPU of the whole model. Measured weights stand for every stage.
[[nodiscard]] Bytes stage_weights(const CostInput& in, const LayerRange& range);

/// What an engine needs to know of its stages. The stage with the least room bounds the pool.
struct Pipeline {
  std::vector<std::unique_ptr<IterationCost>> costs;  // one a stage
  EngineStartup startup;  // of the stage that bounds the pool; its tokens are those of the cache
  std::int64_t pool_units = 0;
  Bytes unit{};  // of one unit of the pool, on that stage's GPU
  Bytes row{};   // hidden states of a token, between stages
  BytesPerSecond link{0.0};
  Seconds latency{};  // of a hop
};
/// `in` and `sizes` are those of one GPU with all layers. Between stages goes the link of two GPUs
/// of a node (NVLink, else PCIe), or the cluster's link where a replica does not stand in one node;
/// every rank sends its hidden states whole.
/// Errors: InputError where the cache of the method is not the same in every layer, or no link is
/// known.
[[nodiscard]] Pipeline make_pipeline(const ServeSpec& spec, const CostInput& in,
                                     const Roofline& roofline, std::int64_t longest,
                                     const StackOptions& options, const ServeHooks& hooks);

}  // namespace kvsim
