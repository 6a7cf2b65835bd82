// TensorRT-LLM's in-flight batching. Source: TensorRT-LLM 1.0, cpp/tensorrt_llm/batch_manager/
// capacityScheduler.cpp (GuaranteedNoEvictScheduler, MaxUtilizationScheduler),
// microBatchScheduler.cpp (MicroBatchScheduler), scheduledBlocksManager.h and
// kvCacheManager.cpp (getRemainingBlocksToCompletion, getNeededBlocksOneStep), without beams,
// LoRA, encoders, and the delay of prompts whose blocks another one is about to compute
// (beneficialToSkip).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/queue_order.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kName = "trtllm";
constexpr std::int64_t kMaxBatchSize = 2048;  // trtllm-build
constexpr std::int64_t kMaxNumTokens = 8192;  // likewise

/// Two decisions per iteration: which blocks fit (capacity), and which tokens (micro-batch).
///
/// Capacity, GUARANTEED_NO_EVICT: a waiting request starts if the blocks of its prompt and of all
/// tokens it may generate are free in addition to those that running requests may still need; no
/// request is ever evicted. A request without a declared length may grow to the engine's longest
/// sequence. MAX_UTILIZATION: a request starts if its prompt's blocks are free. If a running
/// request finds no block, the request started last is paused and recomputed later, and no request
/// starts in that iteration.
///
/// Micro-batch: generations take one token each of max_num_tokens (plus one per proposal), then
/// contexts in order. A context that does not fit entirely takes a chunk of whole blocks, or waits
/// if contexts are not chunked. Without chunks, prompts longer than max_num_tokens are refused
/// (tensorrt_llm/llmapi/llm.py). The first context that gets no tokens ends the batch. Up to 1.2,
/// tokens in the prefix cache count as if they were computed (setPrepopulatedPromptLen is called
/// after the budget; pull request 11637 of 2026-03 changes this).
///
/// The engine chunks contexts only with enable_chunked_prefill. If a prompt is longer than
/// max_num_tokens, which would be refused, and the spec does not set the flag, it is assumed.
///
/// In a pipeline, one micro-batch per stage is in flight, each with at most max_batch_size of the
/// requests that are not in flight.
///
/// Difference from TensorRT-LLM: a request that exceeds its declared length waits until others end.
class Trtllm : public Scheduler {
 public:
  Trtllm(const SchedulerSpec& spec, const SchedulerContext& site)
      : order_{spec.order},
        evicts_{spec.policy.value_or("guaranteed-no-evict") == "max-utilization"},
        max_model_len_{site.max_model_len},
        block_{site.block_tokens},
        stages_{site.stages},
        drafts_{site.drafts} {
    const ConfiguredLimits configured = resolve_limits(*site.stack, spec);
    max_seqs_ = configured.seqs.value_or(kMaxBatchSize);
    budget_ = configured.tokens.value_or(kMaxNumTokens);
    chunked_ = spec.chunked_prefill.value_or(site.longest_prompt > budget_);
    expect_at_least(kName, "max_num_seqs", max_seqs_, 1);
    expect_at_least(kName, "max_num_batched_tokens", budget_, chunked_ ? block_ : 1);
  }

  void schedule(BatchBuilder& batch) override {
    left_ = budget_;
    waits_for_reservation_ = false;
    owed_ = 0;
    has_contexts_ = false;
    // Without evictions and in order of arrival, running sequences keep their places until new ones
    // start: one pass without a copy.
    std::span<const RequestId> line = batch.idle();
    if (evicts_ || order_ != QueueOrder::kFcfs) {
      line_.assign(line.begin(), line.end());
      if (order_ != QueueOrder::kFcfs) {
        std::sort(line_.begin(), line_.end(), [&](RequestId a, RequestId b) {
          return order_key(order_, batch.sequence(a)) < order_key(order_, batch.sequence(b));
        });
      }
      line = line_;
    }
    if (evicts_ &&
        std::any_of(line.begin(), line.end(), [&](RequestId id) { return batch.prefills(id); })) {
      owed_ = owed(batch);
    }
    const bool paused = generate(batch, line);
    if (has_contexts_ && !go_on(batch, line)) return;
    if (!paused) start(batch);
  }

  [[nodiscard]] bool waits_for_reservation() const override { return waits_for_reservation_; }

  [[nodiscard]] std::int64_t longest_prompt() const override {
    return chunked_ ? Scheduler::longest_prompt() : budget_;
  }

  [[nodiscard]] BatchLimits limits() const override {
    return {.seqs = max_seqs_, .tokens = budget_};
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("trtllm, {}, {}, max_batch_size {}, max_num_tokens {}, contexts {}",
                       evicts_ ? "max-utilization" : "guaranteed-no-evict", display_name(order_),
                       max_seqs_, budget_, chunked_ ? "in chunks" : "whole");
  }

 private:
  [[nodiscard]] static std::int64_t planned(const BatchBuilder& batch) {
    return static_cast<std::int64_t>(batch.planned());
  }
  /// Units of running contexts that are not computed yet: TensorRT-LLM allocates their blocks at
  /// once.
  [[nodiscard]] static std::int64_t owed(BatchBuilder& batch) {
    std::int64_t sum = 0;
    for (const RequestId id : batch.running()) {
      if (!batch.prefills(id)) continue;
      const Sequence& s = batch.sequence(id);
      sum += std::max<std::int64_t>(0, batch.units_for(s.target, s.target) - batch.units_held(id));
    }
    return sum;
  }
  /// Units of a request that generates its maximum, including the proposals after its last token.
  [[nodiscard]] std::int64_t completion(BatchBuilder& batch, const Sequence& s) const {
    const std::int64_t room = std::max<std::int64_t>(0, max_model_len_ - s.prompt);
    const std::int64_t max =
        s.declared > 0 ? std::min<std::int64_t>(s.declared + drafts_, room) : room;
    return batch.units_for(s.prompt, s.prompt + max);
  }
  /// Tokens of a context that fit into the budget.
  [[nodiscard]] std::int32_t chunk(std::int32_t wanted) const {
    if (wanted <= left_) return wanted;
    if (chunked_) return static_cast<std::int32_t>(left_ / block_ * block_);
    return left_ == budget_ ? wanted : 0;  // a paused request may have grown beyond the budget
  }

  /// Plans a token and all proposals for each generating request. Returns true if a request was
  /// paused.
  bool generate(BatchBuilder& batch, std::span<const RequestId> line) {
    bool paused = false;
    std::size_t decodes = 0;
    if (order_ == QueueOrder::kFcfs) {
      decodes = batch.schedule_decodes(0, std::min(left_, max_seqs_), owed_);
      left_ -= static_cast<std::int64_t>(decodes);
    }
    for (const RequestId id : line.subspan(decodes)) {
      const Sequence& s = batch.sequence(id);
      if (s.state != SequenceState::kRunning) continue;
      if (s.prefills()) {
        has_contexts_ = true;
        continue;
      }
      if (left_ == 0 || planned(batch) == max_seqs_) {
        has_contexts_ = true;  // possibly: neither they nor new requests fit
        break;
      }
      const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(s.to_compute(), left_));
      bool scheduled = generate(batch, id, tokens);
      while (!scheduled && evicts_) {
        paused = true;
        const RequestId last = batch.last_in_order();
        left_ += batch.preempt(last);
        if (owed_ > 0) owed_ = owed(batch);
        if (last == id) break;
        scheduled = generate(batch, id, tokens);
      }
      if (scheduled) left_ -= tokens;
    }
    return paused;
  }
  [[nodiscard]] bool generate(BatchBuilder& batch, RequestId id, std::int32_t tokens) const {
    const Sequence& s = batch.sequence(id);
    // The next block may be reserved for a context.
    if (owed_ > 0 && s.computed + tokens > s.room &&
        batch.free_units() - owed_ < batch.block_units()) {
      return false;
    }
    return batch.schedule(id, tokens);
  }

  /// Plans contexts in progress; returns false if the batch is full.
  bool go_on(BatchBuilder& batch, std::span<const RequestId> line) {
    for (const RequestId id : line) {
      if (!batch.prefills(id)) continue;
      const Sequence& s = batch.sequence(id);
      if (s.state != SequenceState::kRunning) continue;
      const std::int32_t tokens = chunk(s.to_compute());
      if (tokens == 0 || planned(batch) == max_seqs_) return false;
      if (!batch.schedule(id, tokens)) {
        if (evicts_) batch.preempt(id);
        return false;
      }
      left_ -= tokens;
    }
    if (evicts_) owed_ = owed(batch);
    return true;
  }

  void start(BatchBuilder& batch) {
    while (batch.waiting() > 0 && left_ > 0 && planned(batch) < max_seqs_) {
      const RequestId id = batch.next_waiting();
      const Sequence& s = batch.sequence(id);
      // Planned requests stay: a request that precedes one of them takes its place next time.
      if (!has_room(batch, id)) {
        const RequestId last = batch.idle().empty() ? id : batch.last_in_order();
        const bool before = order_ != QueueOrder::kFcfs &&
                            order_key(order_, s) < order_key(order_, batch.sequence(last));
        if (!evicts_ || !before) return;
        left_ += batch.preempt(last);
        owed_ = owed(batch);
        continue;
      }
      const std::int32_t wanted = s.known - batch.cached_tokens(id);
      const std::int32_t charged = chunk(s.known);
      const std::int32_t tokens = std::min(charged, wanted);
      if (tokens == 0 || !batch.admit(id, tokens)) return;
      left_ = std::max<std::int64_t>(0, left_ - charged);
      if (evicts_ && tokens < wanted) {
        owed_ +=
            std::max<std::int64_t>(0, batch.units_for(s.known, s.known) - batch.units_held(id));
      }
      running_then_ = kUnknown;
    }
  }
  [[nodiscard]] bool has_room(BatchBuilder& batch, RequestId id) {
    const std::vector<RequestId>& running = batch.running();
    if (std::ssize(running) >= max_seqs_ * stages_) return false;
    const Sequence& s = batch.sequence(id);
    if (evicts_) return batch.units_for(s.known, s.known) + owed_ <= batch.free_units();
    // A single request always fits into the pool, no matter what it declares.
    if (running.empty()) return true;
    // While no request starts or ends, used units were reserved before: the remainder is unchanged.
    if (std::ssize(running) != running_then_) {
      running_then_ = std::ssize(running);
      uncommitted_ = batch.free_units();
      for (const RequestId one : running) {
        uncommitted_ -= std::max<std::int64_t>(
            0, completion(batch, batch.sequence(one)) - batch.units_held(one));
      }
    }
    if (completion(batch, s) <= uncommitted_) return true;
    waits_for_reservation_ = batch.units_for(s.known, s.known) <= batch.free_units();
    return false;
  }

  static constexpr std::int64_t kUnknown = -1;

  QueueOrder order_;
  bool evicts_, chunked_ = false;
  std::int64_t max_model_len_, block_, stages_, drafts_;
  std::int64_t max_seqs_ = 0, budget_ = 0;
  std::vector<RequestId> line_;
  std::int64_t left_ = 0;                 // tokens
  std::int64_t owed_ = 0;                 // units
  std::int64_t running_then_ = kUnknown;  // when uncommitted_ was counted
  std::int64_t uncommitted_ = 0;          // units that no running request may need
  bool waits_for_reservation_ = false;
  bool has_contexts_ = false;
};

}  // namespace

std::unique_ptr<Scheduler> make_trtllm(const SchedulerSpec& spec, const SchedulerContext& site) {
  return std::make_unique<Trtllm>(spec, site);
}

}  // namespace kvsim
