// Speculative decoding: the part of ServeContext that sets up the proposer.

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "models/cost/cache_rows.hpp"
#include "models/llm/llm.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/engine/serve_hooks.hpp"
#include "sim/serve/service/serve_context.hpp"

namespace kvsim {

void ServeContext::add_proposals(const ServeHooks& hooks) {
  const SpeculationSpec& speculation = spec_.speculation;
  check_speculation(speculation);
  if (pipeline_) throw InputError{"speculation: a draft with a pipeline is not supported"};
  if (spec_.method.name != "full" || spec_.measured) {
    throw InputError{
        fmt::format("speculation: method {}: proposals can be verified only if every token is kept",
                    spec_.method.name)};
  }
  if (speculation.has_draft()) add_draft(hooks);
  notes_.push_back(fmt::format(
      "{} proposes {} tokens per step{}, each accepted with probability {} if all earlier ones "
      "were: tokens of one step arrive simultaneously, with gaps of 0 between them",
      draft_ ? draft_->llm.name : "the preceding text", speculation.tokens,
      speculation.levels() < speculation.tokens ? fmt::format(" in {} levels", speculation.levels())
                                                : "",
      speculation.acceptance));
}

void ServeContext::add_draft(const ServeHooks& hooks) {
  draft_ = make_draft(spec_, in_);
  CostInput both = in_;
  // Memory measured on a GPU includes the draft.
  if (!both.measured_weights) both.measured_weights = weights_held(in_) + draft_->weights;
  EngineStartup start = engine_startup(both, spec_.gpu->hbm_usable, longest_, options_);
  if (!sizes_->counts_blocks() || sizes_->windowed()) {
    // Blocks of layers of several kinds: the draft's rows take their share of the pool's memory.
    constexpr std::int64_t kLong = 1 << 20;  // beyond all windows
    const Bytes rows = draft_->block;
    const Bytes own = full_cache_bytes(llm_, kLong + stack_.block_tokens, spec_.kv_dtype) -
                      full_cache_bytes(llm_, kLong, spec_.kv_dtype);
    const double share =
        static_cast<double>(rows.count()) / static_cast<double>((rows + own).count());
    const auto draft_pool = rounded<Bytes>(static_cast<double>(start.kv_cache.count()) * share);
    start.kv_cache -= draft_pool;
    start.draft_cache = draft_pool;
    resident_["context"] += draft_pool;
    notes_.push_back(
        fmt::format("the draft's cache of {} is shown with the CUDA context", draft_pool));
    pool_units_ = sizes_->pool_units(start.kv_cache);
    for (std::int64_t* of : {&start.tokens, &start.blocks}) {
      *of = static_cast<std::int64_t>(static_cast<double>(*of) * (1 - share));
    }
    start.max_concurrency *= 1 - share;
    startup_ = start;
    resident_["weights"] = start.weights;
    put_draft_cost(hooks);
    return;
  }
  held_unit_ = sizes_->unit() + draft_->block;
  pool_units_ = start.kv_cache.count() / held_unit_.count();
  start.max_concurrency *=
      start.blocks > 0 ? static_cast<double>(pool_units_) / static_cast<double>(start.blocks) : 1;
  start.block = held_unit_;
  start.blocks = pool_units_;
  start.tokens = pool_units_ * sizes_->block_tokens();
  startup_ = start;
  resident_["weights"] = start.weights;
  put_draft_cost(hooks);
}

void ServeContext::put_draft_cost(const ServeHooks& hooks) {
  auto draft_cost =
      hooks.cost ? hooks.cost(draft_->in, roofline_) : mixed_iteration_cost(draft_->in, roofline_);
  cost_ = with_draft(std::move(cost_), std::move(draft_cost), spec_.speculation);
}

}  // namespace kvsim
