#include "sim/serve/engine/static_engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/point/compiled_point.hpp"

namespace kvsim {

namespace {

/// Bytes by owner at the refusal, including the CUDA context.
Owners owners_of(const AllocationRefusal& refusal) {
  Owners owners = refusal.reason.owners;
  owners[std::string{name_of(Owner::kContext)}] += refusal.reason.device.outside;
  return owners;
}

}  // namespace

StaticEngine::StaticEngine(ServeState& state, std::int32_t replica, std::size_t max_samples,
                           StaticSpec spec, SequenceFootprints& footprints, QueueOrder order,
                           std::int64_t batch, std::int64_t reserved)
    : Engine{state, replica, max_samples},
      spec_{std::move(spec)},
      footprints_{&footprints},
      queue_{order, state.sequences},
      max_batch_{batch},
      reserved_{reserved} {
  memory_.context =
      with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel})
          .context;
  notes_.emplace_back(
      "static batches: a request ends with its last token, but its memory is held until the "
      "longest request of its batch ends");
  if (reserved_ > 0) {
    notes_.push_back(
        fmt::format("caches are allocated before a batch runs: for the outputs that its requests "
                    "declare, and for {} tokens per sequence if a request declares none",
                    reserved_));
  }
}

void StaticEngine::arrive(RequestId id, SimTime /*now*/) {
  state_->sequences[static_cast<std::size_t>(id)].state = SequenceState::kWaiting;
  queue_.push(id);
}

void StaticEngine::form(SimTime now) {
  std::int64_t prompt = 1, output = 0, declared = 0;
  bool all_declare = true;
  while (!queue_.empty() && std::ssize(batch_) < max_batch_) {
    const RequestId id = queue_.front();
    queue_.remove(id);
    batch_.push_back(id);
    Sequence& s = state_->sequences[static_cast<std::size_t>(id)];
    s.state = SequenceState::kRunning;
    state_->outcomes[static_cast<std::size_t>(id)].scheduled = now;
    prompt = std::max<std::int64_t>(prompt, s.prompt);
    output = std::max<std::int64_t>(output, state_->output[static_cast<std::size_t>(id)]);
    declared = std::max<std::int64_t>(declared, s.declared);
    all_declare = all_declare && s.declared > 0;
  }
  if (reserved_ > 0) {
    spec_.options.max_model_len =
        all_declare ? prompt + declared : std::max(reserved_, prompt + declared);
  }
  spec_.method = footprints_->resolve_or_full(prompt);
  spec_.batch = std::ssize(batch_);
  spec_.prompt_tokens = prompt;
  // Prefill yields the first token; the last one is never computed.
  spec_.output_tokens = std::max<std::int64_t>(output - 1, 0);
  run_ = run_static(
      spec_, {.max_samples = static_cast<std::size_t>(output) + 3, .allocations = &allocations_});
  if (spec_.allocator) allocate();
  next_ = 0;
  ++formed_;
  if (prefills()) {  // a refused batch takes no time
    work_.flops += run_.flops;
    work_.bytes += run_.bytes_moved;
    work_.at_peak += run_.at_peak;
  }
  memory_.usable = run_.usable_hbm;
  if (run_.startup) memory_.startup = run_.startup;
  if (run_.peak_hbm > memory_.peak) {
    memory_.peak = run_.peak_hbm;
    memory_.peak_owners = run_.peak_owners;
  }
}

void StaticEngine::allocate() {
  KVSIM_CHECK(run_.allocator && allocations_, "a batch whose allocations were not made");
  allocations_->end_batch();
  allocated_ = std::move(run_.allocator->samples);
  refused_ = std::move(run_.allocator->oom);
  if (refused_ && run_.oom && run_.oom->step < refused_->step) refused_.reset();
  if (!refused_) return;
  // Work done before the failure, and memory in use at that time.
  const std::int64_t made = std::ssize(allocated_) - 1;  // decode steps
  if (made < 0) {
    StaticResult none;
    none.usable_hbm = run_.usable_hbm;
    run_ = std::move(none);
  } else {
    StaticSpec before = spec_;
    before.allocator.reset();
    before.output_tokens = made;
    const Stack stack =
        with_options(*spec_.stack, spec_.options, {spec_.gpu, spec_.llm, spec_.tensor_parallel});
    if (stack.growth == CacheGrowth::kStatic) {  // caches are as long as for the whole run
      before.options.max_model_len =
          std::max(stack.max_model_len, spec_.prompt_tokens + spec_.output_tokens);
    }
    run_ = run_static(before, {.max_samples = static_cast<std::size_t>(made) + 4});
    KVSIM_CHECK(!run_.oom, "the bytes alone do not fit where the allocator still had room");
  }
  Owners held = owners_of(*refused_);
  Bytes total;
  for (const auto& [owner, bytes] : held) total += bytes;
  if (total > run_.peak_hbm) {
    run_.peak_hbm = total;
    run_.peak_owners = std::move(held);
  }
}

StaticEngine::Shortage StaticEngine::shortage() const {
  CompiledPoint point{
      {.llm = spec_.llm,
       .gpu = spec_.gpu,
       .stack = spec_.stack,
       .method = [this](std::int64_t prompt) -> std::shared_ptr<const Method> {
         if (prompt == spec_.prompt_tokens) return spec_.method;
         try {
           return footprints_->resolve(prompt);
         } catch (const InputError&) {  // too short for the method: the cache is full either way
           return spec_.method;
         }
       },
       .weight_dtype = spec_.weight_dtype,
       .kv_dtype = spec_.kv_dtype,
       .calibration = spec_.calibration,
       .weight_format = spec_.weight_format,
       .tensor_parallel = spec_.tensor_parallel,
       .options = spec_.options}};
  const std::int64_t prompt = spec_.prompt_tokens, output = spec_.output_tokens;
  const PointResult whole =
      point.memory_at({.batch = spec_.batch, .prompt_tokens = prompt, .output_tokens = output});
  Shortage out{.missing = std::max(Bytes{}, Bytes{} - whole.margin()), .enough = {}};
  if (refused_ && whole.fits) {
    out.fits = true;
    out.enough = fmt::format(
        "its tensors need {} of {}; the rest is reserved in segments that are too small",
        whole.peak(), whole.usable);
    return out;
  }
  const auto fitting = point.largest_batch(prompt, output, spec_.batch);
  const std::int64_t sequences = fitting ? spec_.batch : 1;
  std::optional<std::int64_t> shorter;
  try {
    if (reserved_ == 0) shorter = point.longest_prompt(sequences, output, prompt);
  } catch (const InputError&) {  // size laws of whole chunks do not cover prompts in between
  }
  out.enough = fitting ? fmt::format("{} of them {} at once", with_commas(*fitting),
                                     *fitting == 1 ? "fits" : "fit")
                       : std::string{"not one of them fits"};
  if (shorter && (!fitting || spec_.batch > *fitting)) {
    out.enough += fmt::format(", {} with {} of up to {} tokens",
                              fitting ? fmt::format("or {}", with_commas(sequences)) : "one does",
                              sequences == 1 ? "a prompt" : "prompts", with_commas(*shorter));
  }
  return out;
}

void StaticEngine::raise(SimTime now) {
  const Shortage found = shortage();
  std::string what = fmt::format(
      "{} of a batch of {}, prompts of up to {} and outputs of up to {} tokens{}: {}",
      refused_ ? refused_->what : run_.oom->what, spec_.batch, with_commas(spec_.prompt_tokens),
      with_commas(spec_.output_tokens + 1),
      found.missing > Bytes{} ? fmt::format(", {} too large", found.missing) : "", found.enough);
  ++raised_;
  if (raised_ == 1 || found.missing > max_missing_) {
    max_missing_ = found.missing;
    max_missing_remedy_ = fmt::format(
        "{} requests of {} prompt and {} output tokens{}: {}", with_commas(spec_.batch),
        with_commas(spec_.prompt_tokens), with_commas(spec_.output_tokens + 1),
        found.fits ? std::string{} : fmt::format(", {} too large", found.missing), found.enough);
  }
  if (refused_) {
    const OutOfMemory& why = refused_->reason;
    state_->oom(now, batch_.front(), std::move(what), why.requested, why.free, owners_of(*refused_),
                why.message());
  } else {
    const OomEvent& oom = *run_.oom;
    state_->oom(now, batch_.front(), std::move(what), oom.requested, oom.free, oom.owners);
  }
  for (const RequestId id : batch_) {
    const Sequence& s = state_->sequences[static_cast<std::size_t>(id)];
    if (s.state != SequenceState::kEnded) state_->end(id, RequestStatus::kRejected, now);
  }
  batch_.clear();
  const StaticSample last = run_.timeline.empty() ? StaticSample{} : run_.timeline.back();
  if (load() == 0) timeline_.finish(sample_now(now, last));
}

std::optional<SimTime> StaticEngine::start(SimTime now, bool more_coming) {
  for (;;) {
    if (batch_.empty()) {
      if (queue_.empty()) return std::nullopt;
      if (static_cast<std::int64_t>(queue_.size()) < max_batch_ && more_coming) return std::nullopt;
      form(now);
    }
    const bool runs = next_ < run_.timeline.size() &&
                      run_.timeline[next_].step == static_cast<std::int64_t>(next_);
    if (runs && (next_ > 0 || prefills())) break;
    KVSIM_CHECK(lost(), "a batch has no step {}", next_);
    raise(now);
  }
  started_ = now;
  const SimTime took =
      std::max(SimTime{1}, to_sim_time(state_->factors.iteration(run_.timeline[next_].time,
                                                                 next_ == 0, std::ssize(batch_))));
  work_.busy += took;
  work_.add_phase(took, next_ == 0, false);
  if (std::ssize(batch_) >= max_batch_ && !queue_.empty()) work_.seqs_full += took;
  return now + took;
}

void StaticEngine::end(SimTime now) {
  const auto iteration = static_cast<std::int32_t>(ends_.size());
  ends_.push_back(now);
  const StaticSample step = run_.timeline[next_];
  std::int32_t decodes = 0;
  for (const RequestId id : batch_) {
    Sequence& s = state_->sequences[static_cast<std::size_t>(id)];
    const std::int32_t output = state_->output[static_cast<std::size_t>(id)];
    if (next_ == 0) {
      s.computed = s.prompt;
      prompt_tokens_ += s.prompt;
    } else {
      ++decodes;  // finished sequences are computed as padding
      if (s.state == SequenceState::kEnded) continue;
      s.computed = s.known;
    }
    if (output > 0) {
      ++s.known;
      ++tokens_;
      state_->token(id, replica_, iteration, now);
    }
    if (s.generated() < output) continue;
    state_->end(id, RequestStatus::kCompleted, now);
    state_->outcomes[static_cast<std::size_t>(id)].replica = static_cast<std::int16_t>(replica_);
  }
  const std::int64_t padded = next_ == 0 ? spec_.batch * spec_.prompt_tokens : 0;
  ++next_;
  if (timeline_.wants(step.kv.count())) {
    timeline_.add(sample_now(now, step), step.kv.count());
    timeline_.add_iteration({.start = started_,
                             .end = now,
                             .replica = replica_,
                             .decodes = decodes,
                             .prefill_tokens = static_cast<std::int32_t>(padded)});
  }
  if (std::cmp_greater(next_, spec_.output_tokens) && !lost()) batch_.clear();
  if (load() == 0) timeline_.finish(sample_now(now, step));
}

ServeSample StaticEngine::sample_now(SimTime now, const StaticSample& step) const {
  std::int64_t in_service = 0;
  for (const RequestId id : batch_) {
    in_service += state_->sequences[static_cast<std::size_t>(id)].computed;
  }
  return {.at = now,
          .running = static_cast<std::int32_t>(batch_.size()),
          .waiting = static_cast<std::int32_t>(queue_.size()),
          .tokens = tokens_,
          .prompt_tokens = prompt_tokens_,
          .held = step.held,
          .reserved = reserved_after(step),
          .kv_logical = step.kv,
          .kv_blocks = step.kv,
          .kv_cached = Bytes{},
          .in_service = in_service};
}

Bytes StaticEngine::reserved_after(const StaticSample& step) const {
  const auto n = static_cast<std::size_t>(step.step);
  return n < allocated_.size() ? memory_.context + allocated_[n].reserved : Bytes{};
}

EngineMemory StaticEngine::memory() const {
  EngineMemory memory = memory_;
  if (allocations_) memory.allocator = allocations_->report();
  return memory;
}

std::vector<std::string> StaticEngine::notes() const {
  std::vector<std::string> notes = notes_;
  if (raised_ > 0) {
    notes.push_back(
        fmt::format("{} of {} batches ran out of memory and are lost; the largest had {}",
                    with_commas(raised_), with_commas(formed_), max_missing_remedy_));
  }
  return notes;
}

std::string StaticEngine::describe() const {
  const char* order = queue_.order() == QueueOrder::kFcfs       ? "first come first served"
                      : queue_.order() == QueueOrder::kPriority ? "by priority"
                                                                : "shortest declared output first";
  return fmt::format("static, {}, batch {}", order, max_batch_);
}

}  // namespace kvsim
