#include "models/cost/layer/split_prompt.hpp"

#include <fmt/format.h>

#include "models/cost/layer/collectives.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/composed.hpp"
#include "models/units/error.hpp"

namespace kvsim {

void check_split_prompts(const Stack& stack, const Llm& llm) {
  if (stack.prefill_context == 1) return;
  for (const LayerSpec& layer : llm.layers) {
    // PCPManager::validate_config.
    if (caches_latents(layer) && layer.state.kind == StateKind::kNone) continue;
    throw InputError{
        fmt::format("engine: prefill_context_parallel: expected 1 for {}: {} {} splits prompts of "
                    "models that cache latents in all layers",
                    llm.name, stack.name, stack.version)};
  }
}

void check_split_prompts(const Stack& stack, const Llm& llm, const Method& method) {
  if (stack.prefill_context == 1) return;
  if (!is_full_or_format(method)) {
    throw InputError{
        fmt::format("engine: prefill_context_parallel: expected 1 with method {}: {} splits "
                    "prompts only with the full cache or caches with rows of a fixed size",
                    method.name(), stack.name)};
  }
  check_split_prompts(stack, llm);
}

std::optional<std::string> describe_split_prompts(const Stack& stack) {
  if (stack.prefill_context == 1) return std::nullopt;
  return fmt::format(
      "prefill context parallelism: each of {} groups of GPUs computes a part of every prompt and "
      "holds all entries; decode steps are the same in all groups; the exchanges take the measured "
      "time of NCCL's gathers and scatters and of the stack's all-reduce; CUDA graphs and the "
      "memory of the start-up's profiling run are assumed to be the same as without it",
      stack.prefill_context);
}

std::int64_t new_elements(const AttentionSpec& attention) {
  const IndexSpec& index = attention.index;
  const bool has_keys = index.top_k > 0 && !index.is_borrowed;
  return std::int64_t{attention.kv_lora_rank} + attention.rope_head_dim +
         (has_keys ? index.head_dim : 0);
}

NewTokens split_span(NewTokens span, std::int32_t ranks) {
  if (ranks == 1) return span;
  const double computed = span.tokens / ranks;
  span.before += (span.tokens - computed) / 2;
  span.tokens = computed;
  return span;
}

std::int64_t expanded_before(std::int64_t before, std::int64_t tokens, std::int64_t computed,
                             std::int32_t ranks) {
  if (ranks == 1) return before + tokens - computed;
  return 2 * before + tokens - computed / 2;
}

std::vector<Op> gather_new_entries(const Stack& stack, const AttentionSpec& attention,
                                   double tokens, Dtype dtype, std::int32_t passes) {
  const std::int32_t ranks = stack.prefill_context;
  if (ranks == 1 || tokens <= 0) return {};
  const double bytes = tokens * static_cast<double>(new_elements(attention)) * bits_of(dtype) / 8.0;
  return {
      collective_op("gather new entries", CollectiveKind::kAllGather, bytes, ranks, dtype, passes)};
}

}  // namespace kvsim
