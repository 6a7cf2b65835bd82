#pragma once

// Internal to sim/serve: a draft model next to the served one.

#include <cstdint>
#include <memory>

#include "models/cost/rates/roofline.hpp"
#include "sim/serve/engine/iteration_cost.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Returns how many of `drafts` levels of proposals are accepted: leading levels, each with
/// probability `acceptance`, by draws that depend only on (seed, request, step). With the target's
/// own token, this yields (1 - a^(k+1)) / (1 - a) tokens per step on average.
/// Source: Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding, eq.
/// (1).
[[nodiscard]] std::int32_t accepted_drafts(std::int32_t drafts, double acceptance,
                                           std::uint64_t seed, std::int32_t request,
                                           std::int32_t step);

/// Memory of a draft model on one GPU. It caches every token in blocks of the target's size, in the
/// same format and on the same GPUs.
struct Draft {
  Llm llm;  // of one GPU
  CostInput in;
  std::shared_ptr<const Method> method;
  Bytes weights{};
  Bytes block{};
};
/// Errors: InputError for tokens, levels or an acceptance out of range.
void check_speculation(const SpeculationSpec& speculation);
/// `target` is of one GPU; its stack must outlive the draft. The speculation must have a draft.
/// Errors: InputError as check_speculation and draft_head, and for a draft with windows.
[[nodiscard]] std::unique_ptr<Draft> make_draft(const ServeSpec& spec, const CostInput& target);

/// Cost of the target's iteration plus one pass of the draft per level of proposals. The first pass
/// includes the iteration's prompts; later ones have `topk` tokens per sequence. Proposals of one
/// step attend to half of each other on average. Not modelled: the draft's memory other than
/// weights and cache.
[[nodiscard]] std::unique_ptr<IterationCost> with_draft(std::unique_ptr<IterationCost> target,
                                                        std::unique_ptr<IterationCost> draft,
                                                        const SpeculationSpec& speculation);

}  // namespace kvsim
