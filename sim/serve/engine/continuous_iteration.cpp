// The parts of an iteration and its time: the cost side of ContinuousEngine.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {

void ContinuousEngine::count_offloads(const Planned& p) {
  const Sequence& s = at(p.id);
  SequenceFootprint* footprint = kv_.footprint(p.id);
  if (footprint == nullptr || !footprint->offloads()) return;
  Bytes written;
  double read = 0;
  if (!s.prefills()) {
    const std::int64_t step = s.computed + 1 - s.target;
    read = footprint->fetched(step) * (1 - parts_.offload.reuse);
    written = std::max(Bytes{}, footprint->outside(step) - footprint->outside(step - 1));
  } else if (s.computed + p.tokens == s.target) {
    written = footprint->outside(0);  // the whole prompt is written
  }
  const OutsideFormat& format = parts_.outside_format;
  coded_fetches_ += format.decode(rounded<Bytes>(read)) + format.encode(written);
  const Bytes fetched = format.link(rounded<Bytes>(read));
  written = format.link(written);
  const bool nvme = parts_.offload.to == OffloadTier::kNvme;
  (nvme ? fetched_.from_nvme : fetched_.pieces) += fetched;
  (nvme ? fetched_.to_nvme : fetched_.host) += written;
  work_.fetched += fetched;
  work_.written += written;
}

std::int64_t ContinuousEngine::rows_scored(std::int64_t tokens) {
  const auto [known, is_new] = rows_scored_.try_emplace(tokens);
  if (is_new) known->second = parts_.scored_rows(tokens);
  return known->second;
}

void ContinuousEngine::add_chunk(const Sequence& s, std::int64_t tokens) {
  const bool sliced = s.target > parts_.longest_scored;
  const std::int64_t rows = sliced ? std::max<std::int64_t>(1, rows_scored(s.target)) : tokens;
  for (std::int64_t done = 0; done < tokens; done += rows) {
    const std::int64_t slice = std::min(rows, tokens - done);
    const std::int64_t before = s.computed + done;
    chunks_.push_back({.tokens = slice, .before = before, .last = before + slice == s.target});
  }
  if (sliced && s.computed + tokens == s.target) ++sliced_;
}

void ContinuousEngine::add_windows(std::int64_t tokens) {
  for (std::size_t l = 0; l < loads_.size(); ++l) {
    const std::int64_t sees = parts_.sizes->layer_class(l).sees;
    if (sees > 0) loads_[l].attended += static_cast<double>(std::min(sees, tokens));
  }
}

MixedStep ContinuousEngine::iteration() {
  chunks_.clear();
  fetched_ = {};
  coded_fetches_ = {};
  if (parts_.offload.to != OffloadTier::kNone) {
    for (const Planned& p : plan_) count_offloads(p);
  }
  decodes_ = prefilled_ = sampled_ = 0;
  const bool full = kv_.full_law();
  std::int64_t attended = 0;
  std::int32_t tokens = 1;  // per decoding sequence; if proposals were cut short, of the others
  if (!full || windows_) std::fill(loads_.begin(), loads_.end(), DecodeLoad{});
  if (steady_planned_ > 0) {
    decodes_ = static_cast<std::int64_t>(steady_planned_);
    attended = steady_.computed();
  }
  for (const Planned& p : plan_) {
    const Sequence& s = at(p.id);
    if (s.prefills()) {
      add_chunk(s, p.tokens);
      prefilled_ += p.tokens;
      sampled_ += s.computed + p.tokens >= s.known ? 1 : 0;
      continue;
    }
    ++decodes_;
    attended += s.computed;
    tokens = std::max(tokens, p.tokens);
    if (full) {
      if (windows_) add_windows(s.computed + p.tokens);
      continue;
    }
    SequenceFootprint* footprint = kv_.footprint(p.id);
    for (std::size_t l = 0; footprint != nullptr && l < loads_.size(); ++l) {
      const std::int64_t at_step = s.computed + p.tokens - s.target;
      const DecodeState m = footprint->moment(l, at_step);
      const bool rewrites = m.evicts && m.change == CacheChange::kRewrite;
      DecodeLoad& load = loads_[l];
      load.held += static_cast<double>(m.after);
      load.evicting += m.evicts ? 1 : 0;
      if (!footprint->uneven()) {
        load.attended += static_cast<double>(m.attended);
        load.rewriting += rewrites ? 1 : 0;
        continue;
      }
      const SequenceFootprint::Attended attends = footprint->attended(l, at_step);
      const std::optional<double> closed = footprint->moved_together(l, at_step);
      load.attended += attends.mean;
      load.longest += attends.longest;
      load.rewriting += rewrites && !closed ? 1 : 0;
      load.holes += m.evicts && closed ? 1 : 0;
      load.compacted += closed.value_or(0);
    }
  }
  sampled_ += decodes_;
  if (full) {
    attended += decodes_ * tokens;
    for (std::size_t l = 0; l < loads_.size(); ++l) {
      const bool all = parts_.sizes->layer_class(l).sees == 0;
      const auto held = static_cast<double>(attended);
      loads_[l] = {.attended = all ? held : loads_[l].attended, .held = held};
    }
  }
  if (tokens > 1) {
    // For sequences whose proposals were cut short, and for layers with short windows.
    const auto rows = static_cast<double>(decodes_ * tokens);
    for (DecodeLoad& load : loads_) load.attended = std::max(load.attended, rows);
  }
  return {.decodes = decodes_, .loads = loads_, .chunks = chunks_, .decode_tokens = tokens};
}

void ContinuousEngine::count_work(const MixedCost& cost, SimTime took) {
  const auto stages = static_cast<std::int64_t>(flights_.size());
  work_.flops += cost.flops / static_cast<double>(stages);
  work_.bytes += cost.bytes / static_cast<double>(stages);
  work_.at_peak += cost.at_peak * (1.0 / static_cast<double>(stages));
  const SimTime of_engine{took.count() / stages};
  work_.busy += of_engine;
  work_.add_phase(of_engine, prefilled_ > 0, decodes_ > 0);
  const BatchLimits limits = scheduler_->limits();
  const std::int64_t tokens = prefilled_ + (limits.prompts_alone ? 0 : decodes_);
  if (limits.tokens > 0 && tokens + block_tokens_ > limits.tokens) work_.tokens_full += of_engine;
  if (limits.seqs > 0 && std::ssize(running_) >= limits.seqs && !queue_.empty()) {
    work_.seqs_full += of_engine;
  }
}

Seconds ContinuousEngine::with_transfers(const MixedCost& cost) {
  if (parts_.shares_host_link) {
    // The method's own copies share the link with all other transfers; if there are no others,
    // their time is unchanged.
    const auto copied = rounded<Bytes>(cost.host_copies.count() * parts_.swap.link.count());
    host_traffic_ += std::exchange(moved_, SwapTraffic{});
    host_traffic_ += {.host = copied, .back = copied};
    return cost.time - cost.host_copies;
  }
  // Swapped caches must arrive first; fetched entries may overlap with the arithmetic.
  const Seconds coded = std::exchange(coded_, Seconds{});
  const Seconds coded_fetches = std::exchange(coded_fetches_, Seconds{});
  const Seconds swapped = std::max(coded, swap_time(moved_, parts_.swap));
  SwapTraffic all = std::exchange(fetched_, SwapTraffic{});
  all += std::exchange(moved_, SwapTraffic{});
  const Seconds moves = std::max(coded + coded_fetches, swap_time(all, parts_.swap));
  if (parts_.offload.to == OffloadTier::kNone) return cost.time + moves;
  const Seconds computes = cost.time - cost.copy_wait;
  const Seconds alone = computes + swapped;
  const Seconds links = moves + cost.host_copies;
  const Seconds time = parts_.offload.prefetch ? std::max(alone, links) : computes + links;
  work_.link_wait += time - alone;
  return time;
}

SimTime ContinuousEngine::pass(SimTime now) {
  const MixedStep step = iteration();
  SimTime at = now;
  const Seconds hop = flights_.size() == 1 ? Seconds{}
                                           : parts_.stage_row * step.rows() / parts_.stage_link +
                                                 parts_.stage_latency;
  for (std::size_t stage = 0; stage < flights_.size(); ++stage) {
    IterationCost& of_stage = stage == 0 ? *parts_.cost : *parts_.later_stages[stage - 1];
    const MixedCost cost = of_stage.cost(step);
    const auto sequences = static_cast<double>(step.decodes + std::ssize(step.chunks));
    const Seconds served = stage == 0 ? parts_.front_end.sequence * sequences : Seconds{};
    const Seconds time = with_transfers(cost) + served;
    // The clock's smallest step: time advances even if the cost is zero.
    const Seconds real = state_->factors.iteration(time, prefilled_ > 0, decodes_);
    const SimTime took = std::max(SimTime{1}, to_sim_time(real));
    if (stage > 0) at += to_sim_time(hop);
    at = std::max(at, stage_free_[stage]) + took;
    stage_free_[stage] = at;
    count_work(cost, took);
  }
  return at;
}

}  // namespace kvsim
