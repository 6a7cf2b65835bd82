#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/cost/step.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"
#include "sim/memory/groups/engine_pools.hpp"
#include "sim/memory/groups/vllm_groups.hpp"

namespace kvsim {

/// The start of a paged engine on one GPU: the profiling run's terms and the remaining cache
/// blocks.
///
///   cache = f x memory - weights - non-torch - activation peak          (vLLM before 0.20)
///   cache = f x memory - weights - non-torch - activation peak - CUDA graphs   (vLLM since 0.20)
///   cache = f x (memory - non-torch) - weights                          (SGLang)
///   cache = f x (memory - non-torch - weights)                          (TurboMind)
///   cache = f x (memory - non-torch - weights - activation peak - CUDA graphs)   (TensorRT-LLM)
///
/// where f is the memory fraction, of the memory selected by Stack::fraction_of. The activation
/// peak is the larger of the profiling run's layers over all tokens of a pass, and of its dummy
/// sampling: sampler_bytes x sequences x vocabulary in addition to the hidden states. CUDA graphs
/// are captured after the pool is allocated and must fit next to it, unless the engine counts them
/// before.
/// Sources: vllm v1/worker/gpu_worker.py, determine_available_memory, with which published logs
/// agree to 0.01 GiB; TensorRT-LLM _torch/pyexecutor/_util.py, configure_kv_cache_capacity ("memory
/// used outside torch", which includes graphs). A vision encoder that vLLM loads is profiled
/// before, with the largest image of a pass; its outputs stay while the language model is profiled.
/// Not modelled: padding of packed weights, buffers of LoRA, other families' vision encoders.
struct EngineStartup {
  Bytes total{};  // memory of the GPU
  double fraction = 1;
  FractionOf fraction_of = FractionOf::kAll;
  Bytes usable{};  // the engine's fraction of it; all of it if the fraction is of less
  Bytes weights{};
  Bytes non_torch{};
  std::int64_t pass_tokens = 0;  // of the profiling run: the most that a pass computes
  Bytes layer_activation{};      // peak of the profiling run's layers
  Bytes sampling_activation{};   // peak of its dummy sampling
  Bytes vision_activation{};     // peak of the vision encoder; 0: not profiled
  Bytes vision_outputs{};        // held during layers and sampling
  Bytes activation{};            // max(vision, outputs + max(layers, sampling)), or as measured
  bool activation_measured = false;
  Bytes graphs{};
  bool counts_graphs = false;  // of FractionOf::kAll: the pool leaves room for them
  Bytes kv_cache{};            // 0 if nothing is left; without `draft_cache`
  Bytes draft_cache{};         // of the pool's memory: the share of a draft with the same kind of
                               // blocks
  Bytes missing{};             // shortage before any cache; 0 if something is left
  /// For vLLM if not all layers hold every token: the groups that share the pool's block ids.
  std::optional<VllmGroups> groups{};
  /// For SGLang and TensorRT-LLM with such layers: separate pools for each kind.
  std::optional<EnginePools> pools{};
  Bytes block{};  // of all layers; with groups, of a block id
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;  // "GPU KV cache size"
  std::int64_t max_model_len = 0;
  std::shared_ptr<const EngineSettings> settings{};  // the engine's settings; null: unknown
  Bytes sequence{};                                  // blocks of one sequence of max_model_len
  double max_concurrency = 0;                        // sequences of max_model_len that fit
                                                     // simultaneously
  /// Whether one sequence of max_model_len fits, which vLLM checks at its start.
  [[nodiscard]] bool serves() const { return max_concurrency >= 1; }

  /// Memory that must fit in addition to the pool: the activations of a full pass and CUDA graphs.
  [[nodiscard]] Bytes non_kv_bytes() const { return activation + graphs; }
  /// Bytes of these that do not fit: the engine runs out of memory while it captures its graphs, or
  /// in its first full pass.
  [[nodiscard]] Bytes shortage() const {
    if (missing > Bytes{}) return {};  // there is no memory for a pool
    return std::max(Bytes{}, weights + non_torch + kv_cache + draft_cache + non_kv_bytes() - total);
  }
  /// Memory left beyond the pool for CUDA graphs, before any pass runs.
  [[nodiscard]] Bytes graphs_room() const { return total - weights - non_torch - kv_cache; }
  [[nodiscard]] bool starts() const { return missing == Bytes{} && shortage() == Bytes{}; }
  /// Required memory of a start divided by the available memory; at most 1 if it starts.
  [[nodiscard]] double demand_ratio() const;
  /// Most memory that a run may hold on the GPU.
  [[nodiscard]] Bytes limit() const {
    if (fraction_of != FractionOf::kAll) return total;
    return std::min(total, counts_graphs ? usable : usable + graphs);
  }
  /// Memory left for the cache if the other terms are these; below 0: the shortage.
  [[nodiscard]] Bytes remaining_cache(Bytes weights_taken, Bytes non_torch_taken,
                                      Bytes activation_taken) const;
  /// Divides its cache memory into block ids of groups, of `id` bytes each: for all layers of the
  /// groups, or for those of a pipeline stage.
  void hold(VllmGroups of, Bytes id);
};

/// The memory terms of engine_startup(), without a layout of the cache. Errors: as there.
[[nodiscard]] EngineStartup startup_memory(const CostInput& in, Bytes total,
                                           std::int64_t run_tokens,
                                           const StackOptions& measured = {});
/// Computes the start of `in`'s stack on a GPU of `total` bytes. `in` is of one GPU, with its stack
/// as configured by the run; `run_tokens` is the longest sequence unless the stack sets one.
/// Errors: ContractError if the stack's cache is not paged.
[[nodiscard]] EngineStartup engine_startup(const CostInput& in, Bytes total,
                                           std::int64_t run_tokens,
                                           const StackOptions& measured = {});

/// Returns the inputs of the groups of a vLLM engine that runs `in`, for sequences of
/// `max_model_len`; nullopt if it has one kind of blocks: an engine without groups (vLLM before
/// 0.9.2, others), or a model with equal layers.
[[nodiscard]] std::optional<VllmGroupSettings> group_settings(const CostInput& in,
                                                              std::int64_t max_model_len);

/// If sequences need a state each: "max_num_seqs of at most 652: …"; empty: the cache does not
/// bound it.
[[nodiscard]] std::string state_limit_text(const EngineStartup& startup);

/// "the cache's pool leaves 1 GiB for activations and CUDA graphs, which take 2 GiB"
[[nodiscard]] std::string shortage_text(const EngineStartup& startup);

/// Bytes of the score matrices of a method that reads attention scores, beyond those of the
/// profiling run, whose prompts have no prefix: while a pass computes the last rows of a prompt in
/// one layer, all queries of the pass over the whole prompt. `in` as in engine_startup.
[[nodiscard]] Bytes scoring_excess(const CostInput& in, const EngineStartup& startup,
                                   std::int64_t prompt);
/// Memory left for them: the part of the activation peak by which sampling exceeds layers, and the
/// memory outside the engine's fraction that CUDA graphs do not use.
[[nodiscard]] Bytes scoring_room(const EngineStartup& startup);
/// Number of query rows of a pass over such a prompt that can be scored at once in this room, at
/// most the whole pass; 0 if not even one fits. With a measured activation peak, all of them do.
[[nodiscard]] std::int64_t scored_rows(const CostInput& in, const EngineStartup& startup,
                                       std::int64_t prompt);
/// Longest prompt, at most `max` tokens, whose scoring fits into this room; 0 if none does. A
/// measured activation peak is assumed to include the method's additions: returns `max`.
[[nodiscard]] std::int64_t longest_scored_prompt(const CostInput& in, const EngineStartup& startup,
                                                 std::int64_t max);

}  // namespace kvsim
