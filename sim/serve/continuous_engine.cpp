#include "sim/serve/continuous_engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"

namespace kvsim {

ContinuousEngine::ContinuousEngine(ServeState& state, std::int32_t replica, std::size_t max_samples,
                                   EngineParts parts, std::unique_ptr<Scheduler> scheduler,
                                   ServeObserver* observer)
    : Engine{state, replica, max_samples},
      BatchBuilder{state.sequences},
      parts_{std::move(parts)},
      scheduler_{std::move(scheduler)},
      observer_{observer},
      kv_{{.trace = state.trace,
           .sizes = parts_.sizes,
           .laws = parts_.laws,
           .pool_units = parts_.pool_units,
           .prefix_caching = parts_.prefix_caching}},
      queue_{parts_.order, state.sequences},
      loads_(parts_.sizes->laws()) {
  block_tokens_ = parts_.sizes->block_tokens();
  for (const auto& [owner, bytes] : parts_.standing) standing_ += bytes;
}

void ContinuousEngine::arrive(RequestId id, SimTime now) {
  Sequence& s = at(id);
  const std::int64_t output = state_->output[static_cast<std::size_t>(id)];
  if (s.prompt + output > parts_.max_model_len) {
    state_->end(id, RequestStatus::kRejected, now);
    return;
  }
  // The last token generated is never computed.
  const std::int64_t cached = s.prompt + std::max<std::int64_t>(output - 1, 0);
  const std::int64_t most = kv_.most_units(s.prompt, cached);
  if (most > kv_.pool()) {
    const Bytes unit = parts_.sizes->unit();
    state_->oom(now, id, fmt::format("cache of {} tokens, more than the whole pool", cached),
                unit * most, unit * kv_.pool(), parts_.standing);
    state_->end(id, RequestStatus::kRejected, now);
    return;
  }
  s.state = SequenceState::kWaiting;
  queue_.push(id);
}

std::span<const RequestId> ContinuousEngine::first_waiting(std::size_t most) {
  queue_.first(most, window_);
  return window_;
}

RequestId ContinuousEngine::last_in_order() const {
  KVSIM_CHECK(!running_.empty(), "nobody runs");
  if (queue_.order() == QueueOrder::kFcfs) return running_.back();
  return *std::max_element(running_.begin(), running_.end(),
                           [&](RequestId a, RequestId b) { return queue_.key(a) < queue_.key(b); });
}

bool ContinuousEngine::admit(RequestId id, std::int32_t tokens, std::int64_t keep_free) {
  Sequence& s = at(id);
  KVSIM_CHECK(s.state == SequenceState::kWaiting && tokens >= 1, "request {} cannot be admitted",
              id);
  const std::int32_t found = kv_.cached_tokens(id, s);
  KVSIM_CHECK(found + tokens <= s.known, "{} tokens of {} are planned", tokens, s.known - found);
  if (!kv_.admit(id, s, found, tokens, keep_free)) return false;
  queue_.remove(id);
  s.state = SequenceState::kRunning;
  s.planned = tokens;
  running_.push_back(id);
  plan_.push_back({id, tokens});
  RequestOutcome& out = state_->outcomes[static_cast<std::size_t>(id)];
  if (out.scheduled < SimTime{}) {
    out.scheduled = now_;
    out.cached_tokens = found;
    if (parts_.prefix_caching) {
      state_->prefix_hits += found;
      state_->prefix_queries += s.known;
    }
  }
  return true;
}

bool ContinuousEngine::make_room(RequestId id, std::int32_t tokens) {
  if (kv_.grow(id, at(id), tokens)) return true;
  refused_ = id;
  return false;
}

void ContinuousEngine::leave_running(RequestId id) {
  if (running_.back() == id) {
    running_.pop_back();
    return;
  }
  running_.erase(std::find(running_.begin(), running_.end(), id));
}

std::int32_t ContinuousEngine::unplan(RequestId id) {
  Sequence& s = at(id);
  const std::int32_t planned = std::exchange(s.planned, 0);
  if (planned > 0) {
    plan_.erase(
        std::find_if(plan_.begin(), plan_.end(), [&](const Planned& p) { return p.id == id; }));
  }
  return planned;
}

/// A request that nobody could ever serve ends here, so that nothing waits for ever.
void ContinuousEngine::refuse(RequestId id, SimTime now) {
  Sequence& s = at(id);
  const Bytes unit = parts_.sizes->unit();
  state_->oom(now, id,
              fmt::format("cache of {} tokens, with no other sequence to make room", s.known),
              unit * kv_.most_units(s.prompt, s.known), unit * kv_.available(), parts_.standing);
  if (s.state == SequenceState::kRunning) {
    leave_running(id);
    kv_.release(id, s);
  } else if (s.state == SequenceState::kWaiting) {
    queue_.remove(id);
  }
  state_->end(id, RequestStatus::kRejected, now);
}

std::int32_t ContinuousEngine::preempt(RequestId id) {
  Sequence& s = at(id);
  KVSIM_CHECK(s.state == SequenceState::kRunning, "request {} does not run", id);
  const std::int32_t planned = unplan(id);
  if (running_.size() == 1 && refused_ == id) {
    refuse(id, now_);
    return planned;
  }
  leave_running(id);
  auto& once = state_->computed_once[static_cast<std::size_t>(id)];
  once = std::max(once, s.computed);
  kv_.release(id, s);
  s.computed = 0;
  s.target = s.known;
  s.state = SequenceState::kWaiting;
  queue_.push_front(id);
  RequestOutcome& out = state_->outcomes[static_cast<std::size_t>(id)];
  ++out.preemptions;
  ++state_->preemptions;
  return planned;
}

bool ContinuousEngine::swap_out(RequestId id) {
  Sequence& s = at(id);
  if (s.state != SequenceState::kRunning || s.planned > 0 || s.computed == 0) return false;
  const Bytes bytes = parts_.sizes->unit() * kv_.held(id);
  if (host_used_ + bytes > parts_.host_memory || parts_.link.count() <= 0) return false;
  leave_running(id);
  const std::int64_t units = kv_.swap_out(id, s);
  s.state = SequenceState::kSwapped;
  swapped_.push_back(id);
  swapped_units_.push_back(units);
  host_used_ += bytes;
  moved_ += bytes;
  ++swaps_;
  ++state_->outcomes[static_cast<std::size_t>(id)].preemptions;
  ++state_->preemptions;
  return true;
}

bool ContinuousEngine::swap_in(RequestId id) {
  const auto place = std::find(swapped_.begin(), swapped_.end(), id) - swapped_.begin();
  KVSIM_CHECK(place < std::ssize(swapped_), "request {} is not swapped out", id);
  const std::int64_t units = swapped_units_[static_cast<std::size_t>(place)];
  Sequence& s = at(id);
  if (!kv_.swap_in(id, s, units)) return false;
  const Bytes bytes = parts_.sizes->unit() * units;
  swapped_.erase(swapped_.begin() + place);
  swapped_units_.erase(swapped_units_.begin() + place);
  host_used_ -= bytes;
  moved_ += bytes;
  s.state = SequenceState::kRunning;
  running_.push_back(id);
  return true;
}

/// Nothing could be planned although somebody is here: whoever would be first can never be.
void ContinuousEngine::resolve_dead_end(SimTime now) {
  if (!running_.empty()) {
    refuse(running_.front(), now);
  } else if (!swapped_.empty()) {
    const RequestId id = swapped_.front();
    host_used_ -= parts_.sizes->unit() * swapped_units_.front();
    swapped_.erase(swapped_.begin());
    swapped_units_.erase(swapped_units_.begin());
    refuse(id, now);
  } else {
    refuse(queue_.front(), now);
  }
}

MixedCost ContinuousEngine::iteration_cost() {
  chunks_.clear();
  decodes_ = prefilled_ = 0;
  std::int64_t attended = 0;
  if (!kv_.full_law()) std::fill(loads_.begin(), loads_.end(), DecodeLoad{});
  for (const Planned& p : plan_) {
    const Sequence& s = at(p.id);
    if (s.prefills()) {
      chunks_.push_back(
          {.tokens = p.tokens, .before = s.computed, .last = s.computed + p.tokens == s.target});
      prefilled_ += p.tokens;
      continue;
    }
    ++decodes_;
    attended += s.computed + 1;
    SequenceLaw* law = kv_.law(p.id);
    for (std::size_t l = 0; law != nullptr && l < loads_.size(); ++l) {
      const DecodeMoment m = law->moment(l, s.computed + 1 - s.target);
      loads_[l].attended += static_cast<double>(m.attended);
      loads_[l].held += static_cast<double>(m.after);
      loads_[l].evicting += m.evicts ? 1 : 0;
      loads_[l].rewriting += m.evicts && m.change == CacheChange::kRewrite ? 1 : 0;
    }
  }
  if (kv_.full_law()) {
    loads_.front() = {.attended = static_cast<double>(attended),
                      .held = static_cast<double>(attended)};
  }
  return parts_.cost->cost({.decodes = decodes_, .loads = loads_, .chunks = chunks_});
}

std::optional<SimTime> ContinuousEngine::start(SimTime now, bool /*more_coming*/) {
  now_ = now;
  // An empty plan may be the price of a preemption: the next try finds its memory free.
  for (bool again = true;;) {
    plan_.clear();
    refused_ = -1;
    if (load() == 0) return std::nullopt;
    scheduler_->schedule(*this);
    if (!plan_.empty()) break;
    if (!std::exchange(again, false)) {
      resolve_dead_end(now);
      again = true;
    }
  }
  const MixedCost cost = iteration_cost();
  work_.flops += cost.flops;
  work_.bytes += cost.bytes;
  Seconds time = cost.time;
  if (moved_ > Bytes{}) time += std::exchange(moved_, Bytes{}) / parts_.link;
  // The clock's smallest step: even a cost of nothing lets time go on.
  const SimTime took = std::max(SimTime{1}, to_sim_time(time));
  work_.busy += took;
  if (observer_ != nullptr) observer_->planned(view(now, now + took));
  return now + took;
}

void ContinuousEngine::end(SimTime now) {
  const auto iteration = static_cast<std::int32_t>(ends_.size());
  ends_.push_back(now);
  const bool full = kv_.full_law();
  std::size_t done = 0;
  peak_taken_ = std::max(peak_taken_, kv_.taken());
  for (const Planned& p : plan_) {
    Sequence& s = at(p.id);
    const bool prefill = s.prefills();
    if (prefill) {
      const std::int32_t once = state_->computed_once[static_cast<std::size_t>(p.id)];
      state_->recomputed += std::clamp(once - s.computed, 0, p.tokens);
      prompt_tokens_ += p.tokens;
    }
    s.computed += p.tokens;
    if (prefill || !full) kv_.settle(p.id, s);
    s.planned = 0;
    if (s.computed < s.known) continue;
    const std::int32_t output = state_->output[static_cast<std::size_t>(p.id)];
    if (output > 0) {
      ++s.known;
      ++tokens_;
      state_->token(p.id, replica_, iteration, now);
    }
    if (s.generated() < output) continue;
    kv_.release(p.id, s);
    state_->end(p.id, RequestStatus::kCompleted, now);
    state_->outcomes[static_cast<std::size_t>(p.id)].replica = static_cast<std::int16_t>(replica_);
    ++done;
  }
  if (done > 0) {
    std::erase_if(running_, [&](RequestId id) { return at(id).state == SequenceState::kEnded; });
  }
  const std::int64_t taken = kv_.taken();
  if (timeline_.wants(taken)) {
    timeline_.add(sample_now(now), taken);
    timeline_.add_iteration({.start = now_,
                             .end = now,
                             .replica = replica_,
                             .decodes = static_cast<std::int32_t>(decodes_),
                             .prefill_tokens = static_cast<std::int32_t>(prefilled_)});
  }
  if (observer_ != nullptr) observer_->ended(view(now_, now));
  if (load() == 0) timeline_.finish(sample_now(now));
}

ServeSample ContinuousEngine::sample_now(SimTime now) {
  const Bytes unit = parts_.sizes->unit();
  ServeSample out{.at = now,
                  .running = static_cast<std::int32_t>(running_.size()),
                  .waiting = static_cast<std::int32_t>(queue_.size() + swapped_.size()),
                  .tokens = tokens_,
                  .prompt_tokens = prompt_tokens_,
                  .held = standing_ + unit * kv_.pool(),
                  .kv_blocks = unit * kv_.taken(),
                  .kv_cached = unit * kv_.cached()};
  for (const RequestId id : running_) out.kv_logical += kv_.logical(id, at(id));
  return out;
}

IterationView ContinuousEngine::view(SimTime start, SimTime end) const {
  return {.replica = replica_,
          .start = start,
          .end = end,
          .plan = plan_,
          .running = running_,
          .waiting = queue_.size(),
          .memory = &kv_,
          .sequences = &state_->sequences};
}

EngineMemory ContinuousEngine::memory() const {
  EngineMemory out{
      .peak = standing_ + parts_.sizes->unit() * kv_.pool(),
      .usable = parts_.startup.usable,
      .pool = parts_.sizes->unit() * kv_.pool(),
      .peak_owners = parts_.standing,
      .blocks = kv_.pool() / parts_.sizes->block_units(),
      .block_tokens = block_tokens_,
      .peak_blocks = (peak_taken_ + parts_.sizes->block_units() - 1) / parts_.sizes->block_units(),
      .capacity_tokens = parts_.startup.tokens,
      .startup = parts_.startup};
  out.peak_owners["kv_cache"] = out.pool;
  return out;
}

std::string ContinuousEngine::describe() const {
  return fmt::format("{}, prefix caching {}", scheduler_->describe(),
                     parts_.prefix_caching ? "on" : "off");
}

std::vector<std::string> ContinuousEngine::notes() const {
  std::vector<std::string> notes;
  if (kv_.unshared_blocks() > 0) {
    notes.push_back(fmt::format(
        "{} shared prefix blocks were copied because the method drops entries of its readers",
        kv_.unshared_blocks()));
  }
  if (swaps_ > 0) notes.push_back(fmt::format("{} caches were moved to host memory", swaps_));
  return notes;
}

}  // namespace kvsim
