#pragma once

// Internal to sim/serve: consecutive batches, as in a script around transformers' generate().

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/batch/static_run.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "sim/serve/engine/engine.hpp"
#include "sim/serve/schedulers/waiting_queue.hpp"

namespace kvsim {

/// Waits for `batch` requests, or for all remaining ones; pads their prompts to the longest and
/// decodes until the longest output is done. Memory and times of each batch come from run_static. A
/// batch that runs out of memory raises an error: its requests are lost, and the next batch starts.
class StaticEngine final : public Engine {
 public:
  /// `spec`: everything except method and sizes. `footprints` must outlive the engine. `reserved`:
  /// tokens per sequence that a stack with static caches allocates if a request declares no output;
  /// 0: caches grow, or the stack's own setting applies.
  StaticEngine(ServeState& state, std::int32_t replica, std::size_t max_samples, StaticSpec spec,
               SequenceFootprints& footprints, QueueOrder order, std::int64_t batch,
               std::int64_t reserved);

  void arrive(RequestId id, SimTime now) override;
  std::optional<SimTime> start(SimTime now, bool more_coming) override;
  void end(SimTime now) override;
  std::int64_t load() const override {
    return static_cast<std::int64_t>(queue_.size() + batch_.size());
  }
  EngineMemory memory() const override;
  std::string describe() const override;
  BatchLimits limits() const override { return {.seqs = max_batch_}; }
  std::vector<std::string> notes() const override;

 private:
  void form(SimTime now);
  /// Runs the batch on the allocator as previous batches left it, and cuts it short at a refusal.
  void allocate();
  [[nodiscard]] bool lost() const { return refused_ || run_.oom; }
  void raise(SimTime now);
  /// Memory missing for the last formed batch, and the part of the batch that would fit.
  struct Shortage {
    Bytes missing{};     // at its peak; 0: unknown because the run ends before it
    bool fits = false;   // by its bytes; the free memory was fragmented
    std::string enough;  // "5 of them fit at once, or 8 with prompts of up to 2,311 tokens"
  };
  [[nodiscard]] Shortage shortage() const;
  /// Returns whether the batch's prompts are computed; a refused prefill leaves no sample of step
  /// 0.
  [[nodiscard]] bool prefills() const {
    return !run_.timeline.empty() && run_.timeline.front().step == 0 && run_.prefill_time;
  }
  /// Context and segments after a step of the batch.
  [[nodiscard]] Bytes reserved_after(const StaticSample& step) const;
  [[nodiscard]] ServeSample sample_now(SimTime now, const StaticSample& step) const;

  StaticSpec spec_;
  SequenceFootprints* footprints_;
  WaitingQueue queue_;
  std::int64_t max_batch_;
  std::int64_t reserved_;
  std::vector<RequestId> batch_;
  StaticResult run_;
  std::optional<AllocationSession> allocations_;  // if spec_.allocator is set, since the first
                                                  // batch
  std::optional<AllocationRefusal> refused_;      // of the allocator, although the bytes would fit
  std::vector<AllocationSample> allocated_;       // of the batch, by step
  std::size_t next_ = 0;                          // step of the batch that runs or starts next
  SimTime started_{};
  EngineMemory memory_;
  Bytes held_empty_{};  // between batches
  std::int64_t tokens_ = 0, prompt_tokens_ = 0;
  std::vector<std::string> notes_;
  std::int64_t formed_ = 0, raised_ = 0;  // batches
  Bytes max_missing_{};                   // of the batches that raised
  std::string max_missing_remedy_;
};

}  // namespace kvsim
