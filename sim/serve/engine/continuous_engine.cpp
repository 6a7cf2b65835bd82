#include "sim/serve/engine/continuous_engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/serve/engine/speculation.hpp"

namespace kvsim {

ContinuousEngine::ContinuousEngine(ServeState& state, std::int32_t replica, std::size_t max_samples,
                                   EngineParts parts, std::unique_ptr<Scheduler> scheduler,
                                   ServeObserver* observer)
    : Engine{state, replica, max_samples},
      BatchBuilder{state.sequences},
      parts_{std::move(parts)},
      scheduler_{std::move(scheduler)},
      observer_{observer},
      // Host memory limits the entries that a method itself keeps there only if its size is given.
      host_{"host memory", parts_.keeps_outside && parts_.host_memory == Bytes{}
                               ? std::nullopt
                               : std::optional{parts_.host_memory}},
      nvme_{"NVMe", parts_.nvme},
      kv_{{.trace = state.trace,
           .sizes = parts_.sizes,
           .footprints = parts_.footprints,
           .pool_units = parts_.pool_units,
           .prefix_caching = parts_.prefix_caching,
           .keeps_answers = parts_.role == ReplicaRole::kWhole,
           .outside = !parts_.keeps_outside                     ? nullptr
                      : parts_.offload.to == OffloadTier::kNvme ? &nvme_
                                                                : &host_,
           .format = parts_.outside_format}},
      queue_{parts_.order, state.sequences},
      loads_(parts_.sizes->layer_classes()),
      windows_{parts_.sizes->holds_unseen()},
      steady_{parts_.sizes->block_tokens()} {
  block_tokens_ = parts_.sizes->block_tokens();
  block_units_ = parts_.sizes->block_units();
  front_end_ = FrontEnd{parts_.front_end};
  flights_.resize(parts_.later_stages.size() + 1);
  stage_free_.resize(flights_.size());
  piped_ = flights_.size() > 1;
  for (const auto& [owner, bytes] : parts_.resident) resident_ += bytes;
}

void ContinuousEngine::arrive(RequestId id, SimTime now) {
  if (!serves(id, now)) return;
  at(id).state = SequenceState::kWaiting;
  parts_.schedules_ahead&& in_flight_ > 0 ? unseen_.push_back(id) : queue_.push(id);
}

void ContinuousEngine::see() {
  for (const RequestId id : unseen_) queue_.push(id);
  unseen_.clear();
}

bool ContinuousEngine::serves(RequestId id, SimTime now) {
  const Sequence& s = at(id);
  std::int32_t& output = state_->output[static_cast<std::size_t>(id)];
  const std::int64_t room = parts_.max_model_len - s.prompt;
  if (room < 0 || (room == 0 && output > 0) || (s.declared > room && !parts_.clips) ||
      s.prompt > scheduler_->longest_prompt()) {
    state_->end(id, RequestStatus::kRejected, now);
    return false;
  }
  const std::int64_t max = kv_.max_units(s.prompt, s.prompt);
  if (max > kv_.pool()) {
    const Bytes unit = parts_.sizes->unit();
    state_->oom(now, id, fmt::format("cache of {} tokens, more than the whole pool", s.prompt),
                unit * max, unit * kv_.pool(), parts_.resident);
    state_->end(id, RequestStatus::kRejected, now);
    return false;
  }
  if (s.prompt > parts_.longest_scored) {
    state_->oom(now, id,
                fmt::format("attention scores of a prompt of {} tokens, beyond the profiling run",
                            s.prompt),
                parts_.scoring(s.prompt), parts_.scoring_room, parts_.resident);
    state_->end(id, RequestStatus::kRejected, now);
    return false;
  }
  OutsideTier& outside = parts_.offload.to == OffloadTier::kNvme ? nvme_ : host_;
  const Bytes offloaded = kv_.outside_of(s.prompt);
  if (offloaded > Bytes{} && outside.capacity() && offloaded > *outside.capacity()) {
    state_->oom(now, id,
                fmt::format("entries of {} tokens outside the GPU, more than all of {}", s.prompt,
                            outside.name()),
                offloaded, *outside.capacity(), {});
    state_->end(id, RequestStatus::kRejected, now);
    return false;
  }
  if (output > room) {
    output = static_cast<std::int32_t>(room);
    ++state_->truncated_requests;
  }
  return true;
}

std::span<const RequestId> ContinuousEngine::first_waiting(std::size_t max) {
  queue_.first(max, window_);
  return window_;
}

RequestId ContinuousEngine::last_in_order() const {
  KVSIM_CHECK(!idle().empty(), "no sequence may be preempted");
  if (queue_.order() == QueueOrder::kFcfs) return idle().back();
  return *std::max_element(idle().begin(), idle().end(),
                           [&](RequestId a, RequestId b) { return queue_.key(a) < queue_.key(b); });
}

bool ContinuousEngine::admit(RequestId id, std::int32_t tokens, std::int64_t keep_free) {
  Sequence& s = at(id);
  KVSIM_CHECK(s.state == SequenceState::kWaiting && tokens >= 1, "request {} cannot be admitted",
              id);
  if (s.computed > 0) return admit_received(id, tokens, keep_free);
  const std::int32_t found = kv_.cached_tokens(id, s);
  KVSIM_CHECK(found + tokens <= s.known, "{} tokens of {} are planned", tokens, s.known - found);
  if (!kv_.admit(id, s, found, tokens, keep_free)) return false;
  queue_.remove(id);
  s.state = SequenceState::kRunning;
  s.planned = tokens;
  enter_running(id);
  plan_.push_back({id, tokens});
  RequestOutcome& out = state_->outcomes[static_cast<std::size_t>(id)];
  std::int32_t hits = found;
  if (out.scheduled < SimTime{}) {
    out.scheduled = now_;
    out.cached_tokens = found;
    if (parts_.prefix_caching) {
      state_->prefix_queries += s.known;
      counts_.prefix_queries += s.known;
    }
  } else {
    // After a preemption, tokens that the request once had are no hits, whether found or computed
    // again; tokens that others have computed since are.
    const std::int32_t had =
        std::max(out.cached_tokens, state_->computed_once[static_cast<std::size_t>(id)]);
    hits = std::max(0, found - had);
  }
  state_->prefix_hits += hits;
  counts_.prefix_hits += hits;
  return true;
}

bool ContinuousEngine::make_room(RequestId id, std::int32_t tokens) {
  if (kv_.grow(id, at(id), tokens)) return true;
  refused_ = id;
  return false;
}

void ContinuousEngine::enter_running(RequestId id) {
  running_.push_back(id);
  if (!piped_) return;
  at(id).micro_batch = micro_batch_;
  idle_.push_back(id);
}

void ContinuousEngine::leave_running(RequestId id) {
  if (running_.back() == id) {
    running_.pop_back();
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), id));
  }
  if (piped_) std::erase(idle_, id);
}

void ContinuousEngine::find_idle() {
  if (!piped_) return;
  idle_.clear();
  for (const RequestId id : running_) {
    if (!sequence(id).in_flight) idle_.push_back(id);
  }
}

bool ContinuousEngine::open(std::int32_t micro_batch) {
  micro_batch_ = micro_batch;
  idle_.clear();
  for (const RequestId id : running_) {
    const Sequence& s = sequence(id);
    if (s.micro_batch != micro_batch) continue;
    if (s.in_flight) return false;
    idle_.push_back(id);
  }
  return true;
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

/// Rejects a request that can never be served, so that none waits forever.
void ContinuousEngine::refuse(RequestId id, SimTime now) {
  stop_steady();
  Sequence& s = at(id);
  const Bytes unit = parts_.sizes->unit();
  if (const Bytes missing = kv_.outside_shortage(id); missing > Bytes{}) {
    const OutsideTier& outside = parts_.offload.to == OffloadTier::kNvme ? nvme_ : host_;
    state_->oom(now, id,
                fmt::format("entries of {} tokens outside the GPU, with no other sequence to make "
                            "room in {}",
                            s.known, outside.name()),
                missing, outside.free(), outside.owners());
  } else {
    state_->oom(now, id,
                fmt::format("cache of {} tokens, with no other sequence to make room", s.known),
                unit * kv_.max_units(s.prompt, s.known), unit * kv_.available(), parts_.resident);
  }
  if (s.state == SequenceState::kRunning) {
    leave_running(id);
    kv_.release(id, s);
  } else if (s.state == SequenceState::kWaiting) {
    queue_.remove(id);
  } else {
    kv_.release_outside(id);
  }
  state_->end(id, RequestStatus::kRejected, now);
  if (load() == 0) timeline_.finish(sample_now(now));
}

std::int32_t ContinuousEngine::preempt(RequestId id, Preemption how) {
  stop_steady();
  Sequence& s = at(id);
  KVSIM_CHECK(s.state == SequenceState::kRunning, "request {} does not run", id);
  const std::int32_t planned = unplan(id);
  if (running_.size() == 1 && refused_ == id) {
    if (!others_hold()) {
      refuse(id, now_);
      return planned;
    }
    // Otherwise memory could pass back and forth between it and arrived requests.
    (void)drop_received();
  }
  leave_running(id);
  auto& once = state_->computed_once[static_cast<std::size_t>(id)];
  once = std::max(once, s.computed);
  kv_.release(id, s, how.keeps_generated ? s.computed : s.target);
  s.computed = s.drafts = 0;
  s.target = s.known;
  if (s.known > parts_.longest_scored && rows_scored(s.known) < 1) {
    state_->oom(
        now_, id,
        fmt::format("attention scores of {} tokens to recompute, one row at a time", s.known),
        parts_.scoring(s.known), parts_.scoring_room, parts_.resident);
    state_->end(id, RequestStatus::kRejected, now_);
    if (load() == 0) timeline_.finish(sample_now(now_));
    return planned;
  }
  s.state = SequenceState::kWaiting;
  how.to_back ? queue_.push(id) : queue_.push_front(id);
  RequestOutcome& out = state_->outcomes[static_cast<std::size_t>(id)];
  ++out.preemptions;
  ++state_->preemptions;
  ++counts_.preemptions;
  return planned;
}

/// Handles an empty plan although requests are waiting: the request at the head can never be
/// scheduled.
void ContinuousEngine::resolve_dead_end(SimTime now) {
  if (!running_.empty()) {
    refuse(running_.front(), now);
  } else if (!swapped_.empty()) {
    const RequestId id = swapped_.front();
    const SwappedCache cache = swapped_caches_.front();
    swapped_.erase(swapped_.begin());
    swapped_caches_.erase(swapped_caches_.begin());
    free_outside(cache);
    refuse(id, now);
  } else {
    refuse(queue_.front(), now);
  }
}

std::optional<SimTime> ContinuousEngine::start(SimTime now, bool /*more_coming*/) {
  now_ = now;
  // A plan may be empty because of preemptions or moved caches; the next attempt has their memory.
  // The number of sequences bounds the attempts.
  for (std::int64_t idle = 0, tries = 0;; ++tries) {
    plan_.clear();
    refused_ = -1;
    may_join_ = false;
    if (load() == 0) return std::nullopt;
    const std::size_t before = running_.size();
    find_idle();
    scheduler_->schedule(*this);
    // Members got no token: an iteration of prompts only.
    if (steady_planned_ == 0) stop_steady();
    if (planned() > 0) break;
    if (!unseen_.empty()) {
      see();
      continue;
    }
    idle = running_.size() < before && tries <= 2 * load() ? 0 : idle + 1;
    if (idle < 2) continue;
    if (!drop_received()) {
      if (others_hold()) return std::nullopt;  // the next departure or arrival wakes it
      resolve_dead_end(now);
    }
    idle = tries = 0;
  }
  see();
  const SimTime ends = pass(now);
  Flight& flight = flights_[(next_flight_ + in_flight_) % flights_.size()];
  ++in_flight_;
  flight.start = now;
  flight.due = ends;
  flight.decodes = decodes_;
  flight.prefilled = prefilled_;
  flight.sampled = sampled_;
  flight.steady = steady_planned_ > 0 ? std::optional{steady_place_} : std::nullopt;
  flight.plan.swap(plan_);
  if (observer_ != nullptr) observer_->planned(view(flight.plan, now, ends));
  if (flights_.size() > 1) send(flight);
  if (!queue_.empty() && scheduler_->waits_for_reservation()) work_.reservation_wait += ends - now;
  return ends;
}

void ContinuousEngine::compute(const Planned& p, std::int32_t tokens, bool prefill) {
  Sequence& s = at(p.id);
  if (prefill) {
    const std::int32_t once = state_->computed_once[static_cast<std::size_t>(p.id)];
    state_->recomputed += std::clamp(once - s.computed, 0, tokens);
    prompt_tokens_ += tokens;
    counts_.prompt_tokens += tokens;
  }
  s.computed += tokens;
  if (prefill || !kv_.full_law()) kv_.resolve(p.id, s);
  s.planned = 0;
}

std::int32_t ContinuousEngine::verified(const Planned& p, std::int32_t output) {
  const Sequence& s = at(p.id);
  const std::int32_t drafts = p.tokens - 1;
  const std::int32_t accepted = accepted_drafts(
      std::min(drafts, parts_.draft_levels), parts_.acceptance, parts_.seed, p.id, s.generated());
  ++state_->verifications;
  state_->drafted += drafts;
  state_->accepted += accepted;
  return std::min(accepted + 1, output - s.generated());
}

void ContinuousEngine::send(Flight& flight) {
  for (Planned& p : flight.plan) {
    Sequence& s = at(p.id);
    if (s.computed + p.tokens < s.target) {
      compute(p, p.tokens, true);
      p.tokens = 0;
    } else {
      s.in_flight = true;
    }
  }
  peak_taken_ = std::max(peak_taken_, kv_.taken());
}

void ContinuousEngine::end(SimTime now) {
  const auto iteration = static_cast<std::int32_t>(ends_.size());
  Flight& flight = flights_[next_flight_];
  const SimTime delivered = front_end_.deliver(now, flight.sampled);
  ends_.push_back(delivered);
  next_flight_ = (next_flight_ + 1) % flights_.size();
  --in_flight_;
  if (now > flight.due) {  // it waited for a link used by others
    work_.busy += now - flight.due;
    work_.add_phase(now - flight.due, flight.prefilled > 0, flight.decodes > 0);
  }
  std::size_t done = 0;
  peak_taken_ = std::max(peak_taken_, kv_.taken());
  Sequence* const sequences = state_->sequences.data();
  const std::int32_t* const outputs = state_->output.data();
  const bool keeps = parts_.role != ReplicaRole::kPrefill;
  const bool plain = keeps && kv_.full_law() && parts_.drafts == 0;
  std::int64_t plain_tokens = 0;
  for (std::size_t place = 0; place <= flight.plan.size(); ++place) {
    if (flight.steady == place) {
      end_steady(delivered);
      flight.steady.reset();
    }
    if (place == flight.plan.size()) break;
    const Planned& p = flight.plan[place];
    if (p.tokens == 0) continue;
    Sequence& s = sequences[p.id];
    s.in_flight = false;
    const bool prefill = s.prefills();
    const std::int32_t output = outputs[p.id];
    if (plain && !prefill && s.generated() + 1 < output) {  // most tokens
      ++s.computed;
      ++s.known;
      s.planned = 0;
      ++plain_tokens;
      state_->token(p.id, replica_, iteration, delivered);
      if (may_join_ && !flight.steady) join_steady(p.id, output);
      continue;
    }
    const std::int32_t made = p.tokens > 1 && !prefill ? verified(p, output) : 1;
    compute(p, prefill ? p.tokens : made, prefill);
    if (s.computed < s.known) continue;
    if (output > 0) {
      s.known += made;
      tokens_ += made;
      state_->tokens(p.id, replica_, iteration, made, delivered);
    }
    if (s.generated() < output) {
      if (keeps) {
        // No token exceeds the longest sequence.
        if (parts_.drafts > 0) {
          s.drafts = static_cast<std::int32_t>(
              std::clamp<std::int64_t>(parts_.max_model_len - s.known, 0, parts_.drafts));
        }
        continue;
      }
      s.state = SequenceState::kMoving;
      prefilled_ids_.push_back(p.id);
      leaving_.push_back(p.id);
      ++done;
      continue;
    }
    complete(p.id, delivered);
    ++done;
  }
  tokens_ += plain_tokens;
  if (done > 0) {
    std::erase_if(running_, [&](RequestId id) { return at(id).state != SequenceState::kRunning; });
  }
  const std::int64_t taken = kv_.taken();
  if (timeline_.wants(taken)) {
    timeline_.add(sample_now(now), taken);
    timeline_.add_iteration({.start = flight.start,
                             .end = now,
                             .replica = replica_,
                             .decodes = static_cast<std::int32_t>(flight.decodes),
                             .prefill_tokens = static_cast<std::int32_t>(flight.prefilled)});
  }
  if (observer_ != nullptr) observer_->ended(view(flight.plan, flight.start, now));
  if (load() == 0) timeline_.finish(sample_now(now));
}

ServeSample ContinuousEngine::sample_now(SimTime now) {
  const Bytes unit = parts_.held_unit;
  ServeSample out{
      .at = now,
      .running = static_cast<std::int32_t>(running_.size()),
      .waiting = static_cast<std::int32_t>(queue_.size() + unseen_.size() + swapped_.size()),
      .tokens = tokens_,
      .prompt_tokens = prompt_tokens_,
      .held = resident_ + unit * kv_.pool(),
      .kv_blocks = unit * kv_.taken(),
      .kv_cached = unit * kv_.cached()};
  out.kv_logical = parts_.sizes->unit() * kv_.pinned();  // prefixes: counted once for all readers
  for (const RequestId id : running_) {
    Sequence s = at(id);
    if (s.is_steady()) s.computed += steady_.tokens_since(s.counted_to);
    out.kv_logical += kv_.own_logical(id, s);
    out.in_service += s.computed;
  }
  for (const RequestId id : leaving_) {
    out.kv_logical += kv_.own_logical(id, at(id));
    out.in_service += at(id).computed;
  }
  // A stage's share, if layers are equal.
  if (unit != parts_.sizes->unit()) {
    out.kv_logical = truncated<Bytes>(static_cast<double>(out.kv_logical.count()) *
                                      static_cast<double>(unit.count()) /
                                      static_cast<double>(parts_.sizes->unit().count()));
  }
  return out;
}

IterationView ContinuousEngine::view(std::span<const Planned> plan, SimTime start,
                                     SimTime end) const {
  return {.replica = replica_,
          .start = start,
          .end = end,
          .plan = plan,
          .running = running_,
          .waiting = queue_.size() + unseen_.size(),
          .memory = &kv_,
          .sequences = &state_->sequences};
}

EngineMemory ContinuousEngine::memory() const {
  // If the pool is not a whole number of blocks, some units belong to no block: a block that they
  // begin is not counted.
  const std::int64_t blocks = kv_.pool() / parts_.sizes->block_units();
  const std::int64_t taken =
      (peak_taken_ + parts_.sizes->block_units() - 1) / parts_.sizes->block_units();
  EngineMemory out{.peak = resident_ + parts_.held_unit * kv_.pool(),
                   .usable = parts_.startup.limit(),
                   .pool = parts_.held_unit * kv_.pool(),
                   .peak_owners = parts_.resident,
                   .blocks = blocks,
                   .block_tokens = block_tokens_,
                   .peak_blocks = std::min(taken, blocks),
                   .capacity_tokens = parts_.startup.tokens,
                   .startup = parts_.startup,
                   .tiers = {},
                   .dropped = kv_.dropped(),
                   .reclaimed = kv_.reclaimed()};
  out.peak_owners["kv_cache"] = out.pool;
  if (!parts_.startup.starts()) {
    // In queue order until one does not fit.
    out.peak = Bytes{};
    bool stopped = false;
    for (const char* owner : {"context", "weights", "kv_cache", "activations"}) {
      const auto part = out.peak_owners.find(owner);
      if (part == out.peak_owners.end()) continue;
      stopped = stopped || out.peak + part->second > out.usable;
      if (stopped) part->second = Bytes{};
      out.peak += part->second;
    }
  }
  for (const OutsideTier* tier : {&host_, &nvme_}) {
    if (tier->peak() == Bytes{}) continue;
    out.tiers.push_back({.name = std::string{tier->name()},
                         .capacity = tier->capacity(),
                         .peak = tier->peak(),
                         .peak_owners = tier->peak_owners()});
  }
  return out;
}

std::string ContinuousEngine::describe() const {
  return fmt::format("{}, prefix caching {}", scheduler_->describe(),
                     parts_.prefix_caching ? "on" : "off");
}

std::vector<std::string> ContinuousEngine::notes() const {
  std::vector<std::string> notes;
  if (parts_.outside_format.codes()) {
    notes.push_back(parts_.outside_format.note(parts_.swap.link));
  }
  if (kv_.unshared_blocks() > 0) {
    notes.push_back(fmt::format(
        "{} shared prefix blocks were copied because the method drops entries of its readers",
        kv_.unshared_blocks()));
  }
  if (swaps_ > swaps_to_nvme_) {
    notes.push_back(fmt::format("{} caches were moved to host memory, at most {} per GPU",
                                swaps_ - swaps_to_nvme_, host_.peak()));
  }
  if (swaps_to_nvme_ > 0) {
    notes.push_back(fmt::format(
        "{} caches that did not fit into host memory were moved to NVMe, at most {} per GPU",
        swaps_to_nvme_, nvme_.peak()));
  }
  if (no_room_outside_ > 0) {
    notes.push_back(fmt::format("{} preempted caches did not fit into {}: recomputed",
                                no_room_outside_,
                                parts_.nvme > Bytes{} ? "host memory and NVMe" : "host memory"));
  }
  if (sliced_ > 0) {
    notes.push_back(fmt::format(
        "{} recomputed prompts had grown beyond {} tokens, whose attention scores do not fit: they "
        "were scored a few rows at a time",
        sliced_, parts_.longest_scored));
  }
  return notes;
}

}  // namespace kvsim
