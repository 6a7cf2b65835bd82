#pragma once

// Distributions of a service over GPUs, as searched by a plan.

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/stack/stack.hpp"
#include "sim/scenario/fields/plan_field.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The GPUs of one service, whose engines have `tensor_parallel` x `pipeline_parallel` GPUs.
struct Layout {
  std::int32_t tensor_parallel = 1, pipeline_parallel = 1;
  std::int32_t context_parallel = 1;  // GPUs of an engine over which a sequence's entries are
                                      // distributed
  std::int32_t prefill_context = 1;   // groups of them over which a prompt's tokens are split
  std::int32_t expert_parallel = 1;   // GPUs that share a layer's experts
  std::int32_t replicas = 1;          // engines with data-parallel attention, or engines that
                                      // decode
  std::int32_t prefill_replicas = 0;  // engines that only prefill

  friend bool operator==(const Layout&, const Layout&) = default;
};

[[nodiscard]] Layout layout_of(const ServeSpec& spec);

/// "TP 4", "TP 2, PP 2", "TP 8, DCP 4", "TP 2, EP 2", "TP 1, DP 8, EP 8" (data-parallel attention:
/// engines that share experts), "TP 2, 1P3D" (one engine prefills, three decode).
[[nodiscard]] std::string layout_words(const Layout& layout);

/// Returns every layout of `llm` on at most `search.gpus` GPUs that the engine's rules allow, those
/// with fewer GPUs first:
/// - tensor parallelism within a node, as check_gpus allows it;
/// - decode context parallelism over powers of two of the GPUs that would hold equal entries;
/// - pipelines, if `has_pipelines`, with at most one stage per layer;
/// - for a model with experts: experts shared by the GPUs of an engine, or by engines with separate
///   attention (check_expert_parallel);
/// - with `search.disaggregated`: engines that prefill and engines that decode, in every ratio.
///   Multiples of a ratio are copies of it.
[[nodiscard]] std::vector<Layout> layouts_of(const Llm& llm, const Gpu& gpu, const Stack& stack,
                                             const LayoutSearch& search, bool has_pipelines);

}  // namespace kvsim
