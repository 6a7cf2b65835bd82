#include "sim/batch/allocation_run.hpp"

#include <utility>

#include "sim/memory/step_allocations.hpp"

namespace kvsim {

AllocationReport simulate_allocations(const StaticSpec& spec, const CostInput& in, Bytes usable,
                                      std::vector<std::int64_t> prefilled, std::int64_t score_rows,
                                      std::optional<AllocationSession>* session) {
  AllocationRun run{.cost = &in,
                    .prompt = spec.prompt_tokens,
                    .output = spec.output_tokens,
                    .score_rows = std::move(prefilled)};
  // The layer at which the prefill stopped also has rows.
  if (static_cast<std::int32_t>(run.score_rows.size()) < in.llm->n_layers()) {
    run.score_rows.push_back(score_rows);
  }
  std::optional<AllocationSession> own;
  if (session == nullptr) session = &own;
  if (!session->has_value()) {
    session->emplace(AllocatorDevice{.total = usable, .outside = spec.stack->context},
                     *spec.allocator);
  }
  return (*session)->batch(run);
}

}  // namespace kvsim
