#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "models/cost/layer/step_graphs.hpp"
#include "models/units/check.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/batch/allocation_run.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/replay_allocations.hpp"
#include "sim/batch/static_state.hpp"

// The report of a finished static run: peaks by owner, refusals, times term by term.

namespace kvsim {

std::string StaticRun::provenance() const {
  if (calibration_.kernels == nullptr || !stack_.kernels.empty()) return calibration_.provenance;
  return fmt::format(
      "no fitted kernels, stack {} names none: {}", stack_.name,
      roofline_.is_bound() ? "rates of the data sheet" : "shares of the data sheet by its profile");
}

void StaticRun::finish() {
  const PeakInput peak_input{.cost = &in_,
                             .prompt = spec_.prompt_tokens,
                             .static_caches = is_static_ ? &caches_ : nullptr,
                             .static_end = static_end_};
  if (peak_base_) {
    OwnerBytes owners = *peak_base_;
    owners[Owner::kActivations] += resident_;
    owners.add(graph_at(peak_input, peak_place_).alive_peak().by_owner);
    KVSIM_CHECK(owners.total() == result_.peak_hbm, "owners sum to {} B, the peak is {} B",
                owners.total().count(), result_.peak_hbm.count());
    peak_holdings_ = owners;
    result_.peak_phase = "decode";
  }
  if (result_.oom) note_refusal(*result_.oom);
  result_.peak_owners = peak_holdings_.named();
  result_.peak_terms = peak_terms(peak_input, peak_place_, result_.peak_owners);
  if (last_ && (result_.timeline.empty() || result_.timeline.back().step != last_->step)) {
    result_.timeline.push_back(*last_);
  }
  if (explains_) explain_times();
  if (finds_intervals_) find_intervals();
  if (spec_.allocator && result_.usable_hbm >= spec_.stack->context) {
    result_.allocator = simulate_allocations(spec_, in_, result_.usable_hbm, layer_score_rows_,
                                             score_rows_, allocations_);
  }
  for (const LayerCache& cache : caches_) {
    result_.kv_bytes += cache.total();
    result_.kv_bytes_per_layer.push_back(cache.total());
  }
  if (result_.oom && result_.oom->phase == "prefill") count_refused_cache(result_.oom->owners);
}

void StaticRun::explain_times() {
  if (!result_.prefill_time) return;
  const std::int64_t prompt = spec_.prompt_tokens;
  const auto add = [&](std::int64_t step, Seconds time) {
    result_.explained.push_back(explain_step(
        {.cost = &in_, .gpu = spec_.gpu, .roofline = &roofline_}, step, prompt + step, time,
        step == 0 ? prefill_step(in_, prompt, layer_score_rows_)
                  : decode_step(in_, prompt, prompt + step)));
  };
  add(0, *result_.prefill_time);
  if (last_->step >= 1) add(1, first_decode_);
  if (last_->step > 1) add(last_->step, last_->time);
}

void StaticRun::find_intervals() {
  RunIntervals out;
  const std::int64_t prompt = spec_.prompt_tokens;
  std::vector<Step> prefill, decode;
  if (result_.prefill_time) {
    prefill.push_back(prefill_step(in_, prompt, layer_score_rows_));
    out.prefill = interval_of(*result_.prefill_time, prefill, roofline_, in_, RunPhase::kPrefill);
  }
  if (result_.decode_time && spec_.output_tokens > 0) {
    // The first, the middle and the last step: errors change as the cache grows.
    const std::int64_t n = spec_.output_tokens;
    const std::set<std::int64_t> numbers{1, (n + 1) / 2, n};
    for (const std::int64_t number : numbers) {
      decode.push_back(decode_step(in_, prompt, prompt + number));
    }
    out.decode = interval_of(*result_.decode_time, decode, roofline_, in_, RunPhase::kDecode);
  }
  const RunPhase phase = decode.empty() ? RunPhase::kPrefill : RunPhase::kDecode;
  prefill.insert(prefill.end(), decode.begin(), decode.end());
  out.time_basis = time_basis(prefill, roofline_, stack_);
  if (out.prefill) {
    out.time_basis = fmt::format("{}; {}", time_residual(in_, phase).basis, out.time_basis);
  }
  if (const auto ends = memory_ends(stack_, spec_.gpus())) {
    Bytes cache;
    for (const Owner owner : {Owner::kKvCache, Owner::kSideData}) {
      const auto found = result_.peak_owners.find(std::string{name_of(owner)});
      if (found != result_.peak_owners.end()) cache += found->second;
    }
    // The peak of a run up to an OOM depends on the GPU's memory, so it has no interval.
    if (!result_.oom) {
      out.peak = peak_interval(*ends, peak_parts(spec_, result_, result_.peak_hbm, cache));
    }
    out.memory_basis = ends->basis;
  } else {
    out.memory_basis =
        fmt::format("none: stack {} counts only tensors, which is a bound", stack_.name);
  }
  result_.intervals = std::move(out);
}

void StaticRun::note_refusal(const OomEvent& event) {
  OwnerBytes held;
  for (std::size_t i = 0; i < kOwners; ++i) {
    const auto found = event.owners.find(std::string{name_of(static_cast<Owner>(i))});
    if (found != event.owners.end()) held.by_owner[i] = found->second;
  }
  note_peak(held, refusal_place_);
}

void StaticRun::count_refused_cache(const Owners& owners) {
  Bytes cache_bytes;
  for (const Owner owner : {Owner::kKvCache, Owner::kSideData}) {
    const auto found = owners.find(std::string{name_of(owner)});
    if (found != owners.end()) cache_bytes += found->second;
  }
  const std::int32_t layer = refusal_place_.layer;
  if (layer >= 0) {
    result_.kv_bytes_per_layer[static_cast<std::size_t>(layer)] += cache_bytes - result_.kv_bytes;
  }
  result_.kv_bytes = cache_bytes;
}

OomEvent StaticRun::event(const OpGraph& graph, const PeakLocation& place) {
  Hbm hbm{result_.usable_hbm};
  for (std::size_t i = 0; i < kOwners; ++i) {
    KVSIM_CHECK(hbm.allocate(name_of(static_cast<Owner>(i)), holdings_.by_owner[i]).has_value(),
                "memory between two steps does not fit");
  }
  const auto refused = replay_allocations(hbm, graph);
  KVSIM_CHECK(refused.has_value(), "a graph whose peak does not fit was replayed without refusal");
  refusal_place_ = place;
  refusal_place_.refused_at = refused->op;
  refusal_place_.refused_tensor = refused->tensor;
  const std::int64_t step = place.tokens - spec_.prompt_tokens;
  return {.step = step,
          .tokens = place.tokens,
          .phase = step == 0 ? "prefill" : "decode",
          .what = place.layer < 0 ? refused->what
                                  : fmt::format("{} of layer {}", refused->what, place.layer),
          .requested = refused->refusal.requested,
          .free = refused->refusal.free,
          .owners = refused->refusal.owners};
}

void StaticRun::sample(std::int64_t step, Bytes peak, Seconds time) {
  StaticSample now{.step = step,
                   .tokens = spec_.prompt_tokens + step,
                   .peak = peak,
                   .held = holdings_.total(),
                   .kv = holdings_[Owner::kKvCache] + holdings_[Owner::kSideData],
                   .time = time,
                   .tok_s = step == 0 ? 0 : static_cast<double>(spec_.batch) / time.count()};
  if (step % stride_ == 0 || step == spec_.output_tokens) result_.timeline.push_back(now);
  if (step == 1) first_decode_ = time;
  last_ = now;
}

}  // namespace kvsim
