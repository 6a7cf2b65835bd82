#include "sim/serve/engine/pipeline.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "models/cost/iteration/layer_split.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/serve/engine/serve_hooks.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
std::vector<LayerRange> pipeline_stages(const Llm& llm, std::int32_t stages) {
  const std::int32_t layers = llm.n_layers();
  if (stages < 1 || stages > layers) {
    throw InputError{fmt::format("pipeline: expected 1 to {} stages for the layers of {}, got {}",
                                 layers, llm.name, stages)};
  }
  std::vector<std::int32_t> counts(static_cast<std::size_t>(stages), layers / stages);
  for (std::int32_t i = 0; i < layers % stages; ++i) {
    ++counts[static_cast<std::size_t>(stages - 2 - i)];
  }
  std::vector<LayerRange> out;
  std::int32_t first = 0;
  for (std::int32_t i = 0; i < stages; ++i) {
    const std::int32_t last = first + counts[static_cast<std::size_t>(i)];
    out.push_back({.first = first, .last = last, .embedding = i == 0, .head = i == stages - 1});
    first = last;
  }
  return out;
}

Bytes stage_weights(const CostInput& in, const LayerRange& range) {
  const bool whole = range.embedding && range.head;
  if (in.measured_weights || whole) return weights_held(in);
  const Llm stage = stage_llm(*in.llm, range);
  CostInput of_stage = in;
  of_stage.llm = &stage;
  return weights_held(of_stage);
}

namespace {

/// The groups of all stages together, if the engine has groups; nullopt if all layers have equal
/// blocks, or the method does not keep all entries.
std::optional<VllmGroups> pipeline_groups(const ServeSpec& spec, const CostInput& in,
                                          std::int64_t longest) {
  if (spec.method.name != "full" || spec.measured) return std::nullopt;
  const std::int64_t max = in.stack->max_model_len > 0 ? in.stack->max_model_len : longest;
  const auto settings = group_settings(in, max);
  if (!settings) return std::nullopt;
  VllmGroups groups = vllm_groups(*in.llm, *settings);
  // The bytes of packed entries (DeepSeek-V4) are not known per layer.
  if (groups.id_of_layers(0, in.llm->n_layers()) != groups.block_id) return std::nullopt;
  return groups;
}

}  // namespace

Pipeline make_pipeline(const ServeSpec& spec, const CostInput& in, const Roofline& roofline,
                       std::int64_t longest, const StackOptions& options, const ServeHooks& hooks) {
  KVSIM_CHECK(hooks.stage_cost || !hooks.cost, "a pipeline's costs are those of its stages");
  Pipeline out;
  out.pool_units = std::numeric_limits<std::int64_t>::max();
  out.groups = pipeline_groups(spec, in, longest);
  const std::optional<VllmGroups>& groups = out.groups;
  for (const LayerRange& range : pipeline_stages(*in.llm, spec.pipeline_parallel)) {
    out.costs.push_back(hooks.stage_cost ? hooks.stage_cost(in, roofline, range)
                                         : mixed_iteration_cost(in, roofline, range));
    const BlockSizes sizes{in, out.costs.back()->layer_classes()};
    if (!groups && (!sizes.counts_blocks() || sizes.windowed())) {
      throw InputError{
          fmt::format("pipeline: the layers of {} under method {} do not all keep the same rows, "
                      "and groups of layers are modelled only for vLLM with the full cache",
                      in.llm->name, spec.method.name)};
    }
    const Llm stage = stage_llm(*in.llm, range);
    CostInput of_stage = in;
    of_stage.llm = &stage;
    of_stage.measured_weights = stage_weights(in, range);
    // Without groups, all layers of a block are equal.
    const Bytes unit =
        groups ? groups->id_of_layers(range.first, range.last)
               : Bytes{sizes.unit().count() / in.llm->n_layers() * (range.last - range.first)};
    // A stage whose layers all share the caches of other layers bounds nothing.
    if (unit == Bytes{}) continue;
    EngineStartup startup;
    if (groups) {
      startup = startup_memory(of_stage, spec.gpu->hbm_usable, longest, options);
      startup.hold(*groups, unit);
    } else {
      startup = engine_startup(of_stage, spec.gpu->hbm_usable, longest, options);
    }
    const std::int64_t units = startup.kv_cache.count() / unit.count();
    if (units >= out.pool_units) continue;
    out.pool_units = units;
    out.unit = unit;
    out.startup = std::move(startup);
  }
  out.row = stage_boundary_bytes(in, 1);
  if (is_in_one_node(spec, gpus_per_replica(spec))) {
    out.link = spec.gpu->nvlink ? *spec.gpu->nvlink * 0.5 : spec.gpu->pcie;
  } else if (spec.cluster.link.count() > 0) {
    out.link = spec.cluster.link;
    out.latency = spec.cluster.link_latency;
  } else {
    throw InputError{fmt::format(
        "cluster: link: expected a bandwidth (key /cluster/link, such as \"50 GB/s\"), because a "
        "pipeline of {} GPUs spans several nodes",
        gpus_per_replica(spec))};
  }
  return out;
}

}  // namespace kvsim
