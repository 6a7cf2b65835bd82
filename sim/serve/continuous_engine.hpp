#pragma once

// Inside of sim/serve: an engine with continuous batching over a paged cache.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/cost/roofline.hpp"
#include "sim/serve/engine.hpp"
#include "sim/serve/iteration_cost.hpp"
#include "sim/serve/kv_memory.hpp"
#include "sim/serve/scheduler.hpp"
#include "sim/serve/waiting_queue.hpp"

namespace kvsim {

/// What an engine is made of; all of it outlives the engine.
struct EngineParts {
  const BlockSizes* sizes = nullptr;
  SequenceLaws* laws = nullptr;  // null: every layer holds every token
  IterationCost* cost = nullptr;
  EngineStartup startup;
  std::int64_t pool_units = 0;
  bool prefix_caching = false;
  std::int64_t max_model_len = 0;
  Owners standing;           // beside the pool: context, weights, …
  Bytes host_memory{};       // for swapped caches
  BytesPerSecond link{0.0};  // to host memory
  QueueOrder order = QueueOrder::kFcfs;
};

/// What an observer is shown of an iteration.
struct IterationView {
  std::int32_t replica = 0;
  SimTime start{}, end{};
  std::span<const Planned> plan;
  std::span<const RequestId> running;
  std::size_t waiting = 0;
  const KvMemory* memory = nullptr;
  const std::vector<Sequence>* sequences = nullptr;
};

/// Looks on; for tests of what must hold at every step.
class ServeObserver {
 public:
  virtual ~ServeObserver() = default;
  virtual void planned(const IterationView& view) = 0;  // before the iteration runs
  virtual void ended(const IterationView& view) = 0;    // after it
};

class ContinuousEngine final : public Engine, private BatchBuilder {
 public:
  ContinuousEngine(ServeState& state, std::int32_t replica, std::size_t max_samples,
                   EngineParts parts, std::unique_ptr<Scheduler> scheduler,
                   ServeObserver* observer);

  void arrive(RequestId id, SimTime now) override;
  std::optional<SimTime> start(SimTime now, bool more_coming) override;
  void end(SimTime now) override;
  std::int64_t load() const override {
    return static_cast<std::int64_t>(running_.size() + queue_.size() + swapped_.size());
  }
  EngineMemory memory() const override;
  std::string describe() const override;
  std::vector<std::string> notes() const override;
  const KvMemory& kv() const { return kv_; }

 private:
  // BatchBuilder
  std::size_t waiting() const override { return queue_.size(); }
  RequestId next_waiting() const override { return queue_.front(); }
  std::span<const RequestId> first_waiting(std::size_t most) override;
  const std::vector<RequestId>& swapped() const override { return swapped_; }
  RequestId last_in_order() const override;
  std::int64_t pool_units() const override { return kv_.pool(); }
  std::int64_t free_units() const override { return kv_.available(); }
  std::int64_t units_for(std::int32_t prompt, std::int64_t tokens) override {
    return kv_.most_units(prompt, tokens);
  }
  std::int64_t units_held(RequestId id) const override { return kv_.held(id); }
  std::int32_t cached_tokens(RequestId id) override { return kv_.cached_tokens(id, sequence(id)); }
  bool admit(RequestId id, std::int32_t tokens, std::int64_t keep_free) override;
  std::int32_t preempt(RequestId id) override;
  bool swap_out(RequestId id) override;
  bool swap_in(RequestId id) override;
  bool make_room(RequestId id, std::int32_t tokens) override;

  [[nodiscard]] Sequence& at(RequestId id) {
    return state_->sequences[static_cast<std::size_t>(id)];
  }
  void leave_running(RequestId id);
  std::int32_t unplan(RequestId id);
  void refuse(RequestId id, SimTime now);
  void resolve_dead_end(SimTime now);
  [[nodiscard]] MixedCost iteration_cost();
  [[nodiscard]] IterationView view(SimTime start, SimTime end) const;
  [[nodiscard]] ServeSample sample_now(SimTime now);

  EngineParts parts_;
  std::unique_ptr<Scheduler> scheduler_;
  ServeObserver* observer_;
  KvMemory kv_;
  WaitingQueue queue_;
  std::vector<RequestId> swapped_;
  std::vector<std::int64_t> swapped_units_;
  std::vector<RequestId> window_;  // of first_waiting
  std::vector<DecodeLoad> loads_;
  std::vector<PrefillChunk> chunks_;
  std::int64_t decodes_ = 0;
  std::int64_t prefilled_ = 0;  // tokens of the iteration
  SimTime now_{};               // when the iteration was formed
  RequestId refused_ = -1;      // whose room was asked for last, in vain
  Bytes moved_{};               // over the link, for this iteration
  Bytes host_used_{};
  std::int64_t tokens_ = 0, prompt_tokens_ = 0;  // computed so far
  std::int64_t peak_taken_ = 0;
  std::int64_t swaps_ = 0;
  Bytes standing_{};
};

}  // namespace kvsim
