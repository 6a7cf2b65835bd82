#pragma once

// Internal to sim/serve: an engine with continuous batching over a paged cache.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "sim/serve/cache/kv_cache_manager.hpp"
#include "sim/serve/cache/outside_format.hpp"
#include "sim/serve/cache/outside_tier.hpp"
#include "sim/serve/cache/swap_time.hpp"
#include "sim/serve/engine/engine.hpp"
#include "sim/serve/engine/iteration_cost.hpp"
#include "sim/serve/engine/steady_decodes.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "sim/serve/schedulers/waiting_queue.hpp"

namespace kvsim {

/// The parts of an engine; all of them must outlive it.
struct EngineParts {
  const BlockSizes* sizes = nullptr;
  SequenceFootprints* footprints = nullptr;  // null: every layer holds every token
  IterationCost* cost = nullptr;             // of the first stage, if there are several
  std::vector<IterationCost*> later_stages{};
  Bytes stage_row{};  // per token, between stages
  BytesPerSecond stage_link{0.0};
  Seconds stage_latency{};
  EngineStartup startup;
  std::int64_t pool_units = 0;
  Bytes held_unit{};  // of a unit, on the GPU whose memory is reported: the stage with the least
                      // room
  bool prefix_caching = false;
  std::int64_t max_model_len = 0;
  /// Longest prompt whose score matrices fit. `scoring` returns the bytes of a prompt's scores,
  /// `scored_rows` the number of rows of a pass over it that fit simultaneously.
  std::int64_t longest_scored = std::numeric_limits<std::int64_t>::max();
  std::function<Bytes(std::int64_t)> scoring{};
  std::function<std::int64_t(std::int64_t)> scored_rows{};
  Bytes scoring_room{};
  bool clips = false;   // cuts outputs declared beyond max_model_len instead of refusing them
  Owners resident;      // outside the pool: context, weights, …
  Bytes host_memory{};  // for swapped caches, of one GPU
  Bytes nvme{};         // for caches that do not fit there, likewise
  SwapRates swap{};     // of one GPU
  /// Caches of other replicas also use the GPU's link to its host. The engine's caller then times
  /// an iteration's transfers over it (take_host_traffic).
  bool shares_host_link = false;
  bool keeps_outside = false;  // methods keep entries in host memory, or in NVMe if `offload` says
                               // so
  OffloadSpec offload{};
  OutsideFormat outside_format{};  // of pages in host memory and NVMe
  QueueOrder order = QueueOrder::kFcfs;
  ReplicaRole role = ReplicaRole::kWhole;
  /// An iteration is formed while the previous one runs, so a request waits one iteration longer.
  bool schedules_ahead = false;
  FrontEndTimes front_end{};
  std::int32_t drafts = 0;        // tokens proposed per decoding sequence
  std::int32_t draft_levels = 0;  // most of these that can be accepted
  double acceptance = 0;
  std::uint64_t seed = 0;
};

/// The part of an iteration that is visible to an observer.
struct IterationView {
  std::int32_t replica = 0;
  SimTime start{}, end{};
  std::span<const Planned> plan;
  std::span<const RequestId> running;
  std::size_t waiting = 0;
  const KvCacheManager* memory = nullptr;
  const ActiveArray<Sequence>* sequences = nullptr;
};

/// Observer for tests of invariants at every step.
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
    return static_cast<std::int64_t>(running_.size() + queue_.size() + swapped_.size() +
                                     unseen_.size());
  }
  void release_group(std::size_t group) override { kv_.release_group(group); }
  EngineMemory memory() const override;
  std::string describe() const override;
  BatchLimits limits() const override { return scheduler_->limits(); }
  std::vector<std::string> notes() const override;
  std::size_t max_in_flight() const override { return flights_.size(); }
  const KvCacheManager& kv() const { return kv_; }
  std::int32_t prefix_found(RequestId id) const override {
    return kv_.cached_tokens(id, state_->sequences[static_cast<std::size_t>(id)]);
  }

  // Caches that move from a prefilling to a decoding engine. Both sides hold memory from reserve()
  // to leave() and receive().

  /// Returns whether a request is accepted, using only what an engine can observe: its prompt, its
  /// declared length, the longest sequence and the scheduler's limits. Others are rejected. An
  /// output that would exceed the longest sequence ends there.
  [[nodiscard]] bool serves(RequestId id, SimTime now);
  /// When the client receives the first token; the request must have one.
  [[nodiscard]] SimTime first_token(RequestId id) const {
    return state_->outcomes[static_cast<std::size_t>(id)].first_token;
  }
  /// Returns the requests prefilled since the last call that have more to generate.
  [[nodiscard]] std::vector<RequestId> take_prefilled() {
    return std::exchange(prefilled_ids_, {});
  }
  /// Units of a prefilled request's cache.
  [[nodiscard]] std::int64_t leaving_units(RequestId id) const { return kv_.held(id); }
  /// Frees a cache that has been transferred.
  void leave(RequestId id);
  /// Allocates `units` for an arriving cache. Returns false and changes nothing if there is no room
  /// or a preempted request waits for it.
  [[nodiscard]] bool reserve(RequestId id, std::int64_t units);
  /// Accepts a cache that has arrived: its request waits to be admitted.
  void receive(RequestId id);
  /// For an engine with shares_host_link: returns what one GPU transfers for the last formed
  /// iteration before it can run. start() does not include the time of these transfers.
  [[nodiscard]] SwapTraffic take_host_traffic() { return std::exchange(host_traffic_, {}); }

 private:
  // BatchBuilder
  bool open(std::int32_t micro_batch) override;
  std::size_t waiting() const override { return queue_.size(); }
  RequestId next_waiting() const override { return queue_.front(); }
  std::span<const RequestId> first_waiting(std::size_t max) override;
  const std::vector<RequestId>& swapped() const override { return swapped_; }
  RequestId last_in_order() const override;
  std::int64_t pool_units() const override { return kv_.pool(); }
  std::int64_t free_units() const override { return kv_.available(); }
  std::int64_t units_for(std::int32_t prompt, std::int64_t tokens) override {
    return kv_.max_units(prompt, tokens);
  }
  std::int64_t units_held(RequestId id) override {
    if (at(id).is_steady()) count_steady(id);
    return kv_.held(id);
  }
  std::int32_t cached_tokens(RequestId id) override {
    const Sequence& s = sequence(id);
    return s.computed > 0 ? s.computed : kv_.cached_tokens(id, s);  // received: all but the last
  }
  bool admit(RequestId id, std::int32_t tokens, std::int64_t keep_free) override;
  using BatchBuilder::preempt;
  std::int32_t preempt(RequestId id, Preemption how) override;
  bool swap_out(RequestId id) override;
  bool swap_in(RequestId id, std::int64_t keep_free) override;
  bool make_room(RequestId id, std::int32_t tokens) override;
  std::size_t schedule_steady(std::int64_t max, std::int64_t keep_free) override;
  void count_steady(RequestId id) override;
  void stop_steady() override;

  [[nodiscard]] Sequence& at(RequestId id) {
    return state_->sequences[static_cast<std::size_t>(id)];
  }
  /// Returns whether sequences of this engine may be counted together: there is one iteration at a
  /// time, it adds one token to each sequence, every layer holds and reads all tokens, and there is
  /// no observer.
  [[nodiscard]] bool counts_together() const;
  /// Adds a sequence that just got a token to steady_, if it directly follows its members in
  /// running_.
  void join_steady(RequestId id, std::int32_t output);
  void count_steady();  // all members of steady_
  /// Gives members their token; those that end leave running_.
  void end_steady(SimTime delivered);
  /// Completes a sequence that got its last token.
  void complete(RequestId id, SimTime delivered);
  void enter_running(RequestId id);
  void leave_running(RequestId id);
  /// Fills idle_ with the idle sequences of all micro-batches.
  void find_idle();
  struct SwappedCache {
    std::int64_t units = 0;
    bool on_nvme = false;
  };
  /// Frees the memory of a swapped cache outside the GPU.
  void free_outside(const SwappedCache& cache);
  /// Bytes of a swapped cache in its tier.
  [[nodiscard]] Bytes outside_bytes(const SwappedCache& cache) const;
  std::int32_t unplan(RequestId id);
  void refuse(RequestId id, SimTime now);
  void resolve_dead_end(SimTime now);
  /// Moves the requests in unseen_ to the queue.
  void see();
  /// Returns whether requests other than running or swapped ones hold memory, or iterations are in
  /// flight.
  [[nodiscard]] bool others_hold() const {
    return in_flight_ > 0 || !leaving_.empty() || reserved_ + received_ > 0;
  }
  /// Drops the last arrived cache that is not admitted yet; returns false if there is none.
  bool drop_received();
  [[nodiscard]] bool admit_received(RequestId id, std::int32_t tokens, std::int64_t keep_free);
  /// An iteration that has not ended.
  struct Flight {
    std::vector<Planned> plan;  // 0 tokens: counted when it started
    SimTime start{}, due{};
    std::int64_t decodes = 0, prefilled = 0;
    std::int64_t sampled = 0;  // sequences that get a token at its end
    // Members of steady_ are planned before this entry of the plan; nullopt: they are not planned.
    std::optional<std::size_t> steady{};
  };
  /// Passes an iteration through all stages, each after its previous iteration; returns its end.
  [[nodiscard]] SimTime pass(SimTime now);
  /// Counts chunks other than the last of their prompt as computed: the next chunk may follow in
  /// the pipeline. Other sequences must not be planned until they end.
  void send(Flight& flight);
  void compute(const Planned& p, std::int32_t tokens, bool prefill);
  /// Returns the tokens that a decoding sequence gets from an iteration.
  [[nodiscard]] std::int32_t verified(const Planned& p, std::int32_t output);
  void count_work(const MixedCost& cost, SimTime took);
  [[nodiscard]] MixedStep iteration();
  /// Adds a chunk of a prompt. A prompt that grew beyond longest_scored before its preemption is
  /// scored in slices of a few rows: each slice reads the preceding tokens again.
  void add_chunk(const Sequence& s, std::int64_t tokens);
  /// Adds the entries that a decoding sequence of `tokens` tokens reads in layers with a window.
  void add_windows(std::int64_t tokens);
  /// Number of rows whose scores over this many tokens fit simultaneously.
  [[nodiscard]] std::int64_t rows_scored(std::int64_t tokens);
  /// Counts the entries that a sequence's part of the iteration fetches from outside the GPU and
  /// writes there.
  void count_offloads(const Planned& p);
  /// Returns an iteration's time including its transfers.
  [[nodiscard]] Seconds with_transfers(const MixedCost& cost);
  [[nodiscard]] IterationView view(std::span<const Planned> plan, SimTime start, SimTime end) const;
  [[nodiscard]] ServeSample sample_now(SimTime now);

  EngineParts parts_;
  std::unique_ptr<Scheduler> scheduler_;
  ServeObserver* observer_;
  OutsideTier host_, nvme_;
  KvCacheManager kv_;
  WaitingQueue queue_;
  std::vector<RequestId> unseen_;  // arrived after the next iteration was formed
  std::vector<RequestId> swapped_;
  std::vector<SwappedCache> swapped_caches_;  // of swapped_
  std::vector<RequestId> window_;             // of first_waiting
  std::vector<DecodeLoad> loads_;
  bool windows_ = false;  // layers hold more than their attention reads
  std::vector<PrefillChunk> chunks_;
  /// The first sequences of running_. Empty until the scheduler calls schedule_decodes().
  SteadyDecodes steady_;
  bool may_join_ = false;  // schedule_decodes() was called in this iteration, and there is no pause
  // Length of a pause in which no sequence joins, because members left before joining paid off (as
  // with a preemption in every iteration), and its remaining iterations.
  std::int64_t pause_ = 0, pause_left_ = 0;
  std::int64_t steady_since_ = 0;  // iterations() of steady_ when its first member joined
  std::vector<Flight> flights_;    // one per stage, in turn
  std::size_t next_flight_ = 0, in_flight_ = 0;
  std::vector<SimTime> stage_free_;  // when each stage has finished its work
  std::int64_t decodes_ = 0;
  std::int64_t prefilled_ = 0;                   // tokens of the iteration
  std::int64_t sampled_ = 0;                     // sequences that get a token from it
  SimTime now_{};                                // when the iteration was formed
  RequestId refused_ = -1;                       // the request whose last allocation failed
  SwapTraffic moved_{};                          // for this iteration
  SwapTraffic fetched_{};                        // of this iteration: entries outside the GPU
  Seconds coded_{}, coded_fetches_{};            // GPU time of the codec, for this iteration
  SwapTraffic host_traffic_{};                   // not yet taken by the caller
  std::int64_t tokens_ = 0, prompt_tokens_ = 0;  // computed so far
  std::int64_t peak_taken_ = 0;
  std::int64_t swaps_ = 0, swaps_to_nvme_ = 0, no_room_outside_ = 0;
  std::map<std::int64_t, std::int64_t> rows_scored_;  // by tokens of the preempted sequence
  std::int64_t sliced_ = 0;                           // prompts recomputed a few rows at a time
  std::vector<RequestId> prefilled_ids_;              // not yet taken by the caller
  std::vector<RequestId> leaving_;                    // prefilled; their caches are still here
  std::int64_t reserved_ = 0;                         // caches on their way here
  std::int64_t received_ = 0;                         // of these, arrived and waiting for admission
  Bytes resident_{};
};

}  // namespace kvsim
