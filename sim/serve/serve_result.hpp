#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/units/units.hpp"
#include "sim/batch/account/intervals.hpp"
#include "sim/memory/hbm.hpp"
#include "sim/memory/step_allocations.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "sim/metrics/distribution.hpp"

namespace kvsim {

enum class RequestStatus : std::uint8_t {
  kCompleted,
  kRejected,   // it can never be served: longer than the engine's longest sequence, or its cache
  kUnfinished  // the run ended before it did
};

/// The outcome of one request, by its index in the workload. Times are absolute; -1: never.
struct RequestOutcome {
  SimTime arrival{-1};    // of one that waits for another: when it really came
  SimTime scheduled{-1};  // first time in a batch
  SimTime first_token{-1};
  SimTime finish{-1};
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  // generated
  std::int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache when first scheduled
  std::int32_t preemptions = 0;
  std::int16_t replica = 0;  // that decoded it
  RequestStatus status = RequestStatus::kUnfinished;
};

/// Inter-token gaps are kept as spans of iterations: iteration i of a replica ended at ends[i].
/// Token k of a span was made at the end of iteration first + k x stride: one in every iteration,
/// in every second where two batches go through a pipeline by turns, all in one where stride is 0.
struct TokenSpan {
  std::int32_t request = 0;
  std::int32_t first = 0;  // iteration of the span's first token
  std::int32_t count = 0;  // tokens
  std::int16_t replica = 0;
  std::int16_t stride = 1;  // iterations from one to the next

  [[nodiscard]] std::int32_t iteration(std::int32_t token) const { return first + token * stride; }
  [[nodiscard]] std::int32_t last() const { return iteration(count - 1); }
};

/// What a scheduler lets one iteration have; 0: no limit.
struct BatchLimits {
  std::int64_t seqs = 0;       // running at once
  std::int64_t tokens = 0;     // computed
  bool prompts_alone = false;  // `tokens` are of prompts; decodes come in addition
};

/// What replicas did with their time: shares of the makespan, means over replicas.
struct PhaseShares {
  double prompts = 0;  // iterations of prompts only
  double mixed = 0;    // of prompts and decodes
  double decodes = 0;  // of decodes only
};

/// A moment of one replica, after an iteration. Thinned; first, last and extremes of memory kept.
struct ServeSample {
  SimTime at{};
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int64_t tokens = 0;         // output tokens since the sample before
  std::int64_t prompt_tokens = 0;  // computed since the sample before
  Bytes held{};                    // HBM, of one GPU
  Bytes reserved{};  // likewise, where allocations are made one by one: context and segments
  /// Entries that sequences hold, by the size law; those of a prefix that several read count once,
  /// so that it is never more than kv_blocks.
  Bytes kv_logical{};
  Bytes kv_blocks{};  // blocks that are taken for them: logical + slack + what cannot be reclaimed
  Bytes kv_cached{};  // blocks without a reference, kept for their prefix
  /// Tokens computed so far of the requests that hold blocks, prompts and outputs, whether or not
  /// the method still holds their entries.
  std::int64_t in_service = 0;
};

struct ServeIteration {  // thinned like the samples, for timelines
  SimTime start{}, end{};
  std::int32_t replica = 0;
  std::int32_t decodes = 0;
  std::int32_t prefill_tokens = 0;
};

struct ServeOom {
  SimTime at{};
  std::int32_t request = -1;  // -1: load or start-up
  std::string what;
  Bytes requested{}, free{};
  Owners owners;
  std::string message{};  // PyTorch's own words, where its allocator refused; else empty
};

/// Memory outside the GPUs, as one GPU has its share of it.
struct TierResult {
  std::string name;               // "host memory", "NVMe"
  std::optional<Bytes> capacity;  // nullopt: none was said
  Bytes peak{};                   // of the replica that took most
  Owners peak_owners;             // "kv_swapped", "kv_offloaded"
};

enum class ReplicaRole : std::uint8_t { kWhole, kPrefill, kDecode };

/// One replica's share of a service.
struct ReplicaResult {
  ReplicaRole role = ReplicaRole::kWhole;
  std::int64_t requests = 0;  // sent to it
  std::int64_t completed = 0;
  std::int64_t output_tokens = 0;  // made there
  std::int64_t prompt_tokens = 0;  // computed there, those of preempted sequences again
  std::int64_t preemptions = 0;
  std::int64_t prefix_hit_tokens = 0, prefix_query_tokens = 0;
  std::int64_t iterations = 0;
  std::int64_t blocks = 0, peak_blocks = 0;
  double busy = 0;                      // share of the whole service's makespan
  Distribution ttft, tpot, e2e, queue;  // seconds, of the requests that it completed
};

struct ServeResult {
  std::vector<RequestOutcome> outcomes;              // [requests], in the workload's order
  std::vector<std::vector<SimTime>> iteration_ends;  // [replicas][iterations]
  std::vector<TokenSpan> spans;

  std::int64_t completed = 0, rejected = 0, unfinished = 0;
  /// The run ended before its workload did: too few requests could keep their bounds any more
  /// (ServeOptions::attained).
  bool stopped_early = false;
  std::int64_t truncated_requests = 0;  // requests that ended at the engine's longest sequence
  std::int64_t preemptions = 0, oom_events = 0;
  std::int64_t iterations = 0;
  std::int64_t output_tokens = 0, prompt_tokens = 0;  // of completed requests
  std::int64_t recomputed_tokens = 0;                 // prefilled again after preemption
  std::int64_t prefix_hit_tokens = 0, prefix_query_tokens = 0;
  /// Of a draft model: tokens proposed and accepted, and sequences' steps that verified some.
  std::int64_t drafted_tokens = 0, accepted_tokens = 0, verifications = 0;
  SimTime makespan{};  // from the first arrival to the last finish

  Distribution ttft, tpot, itl, e2e, queue;                 // seconds, of completed requests
  double request_s = 0, output_tok_s = 0, total_tok_s = 0;  // over the makespan
  /// Requests a second that kept all bounds, and their share; nullopt without bounds.
  std::optional<double> goodput, slo_attained;
  /// Over the makespan. mfu: the time that the arithmetic takes at the data sheet's rate of the
  /// format that each operator computes in; mbu: of the data sheet's bandwidth.
  double mfu = 0, mbu = 0;
  double busy = 0;  // share of the makespan in which an iteration ran
  /// Share of the makespan in which a request waited for free memory that the scheduler reserved
  /// for future tokens of running sequences.
  double reservation_wait_share = 0;
  PhaseShares phases;  // of what `busy` sums
  BatchLimits limits;  // of the replica that decodes
  /// Shares of the makespan in which an iteration ran that spent limits.tokens (to within a
  /// block), and in which limits.seqs ran and others waited.
  double tokens_full = 0, seqs_full = 0;

  std::vector<ReplicaResult> replicas;  // those that decode, then those that only prefill
  std::int32_t gpus = 1;                // of all replicas
  /// Caches that moved from the replicas that prefill: how many, their bytes on all GPUs of a
  /// replica, seconds from the first byte sent to the last received, and seconds before that for
  /// which memory was awaited.
  std::int64_t transfers = 0;
  Bytes transferred{};
  Distribution transfer, transfer_wait;

  std::int64_t kv_capacity_tokens = 0;  // of one replica, in tokens of the full cache
  Bytes peak_hbm{}, usable_hbm{};       // of one GPU
  Owners peak_owners;
  /// If allocations were simulated: the result of the replica that reserved most, and its reserved
  /// bytes with the CUDA context.
  std::optional<AllocationReport> allocator;
  Bytes reserved_hbm{};
  Bytes kv_pool{};
  /// At the ends of the requests that completed, on the GPUs of one tensor-parallel rank: entries
  /// that the method had dropped of all their tokens, and the blocks that this had freed.
  Bytes kv_dropped{}, kv_reclaimed{};
  std::vector<TierResult> tiers;  // if caches were stored outside the GPUs
  /// Over all steps, of one GPU of each replica: entries fetched from the offload tier, and written
  /// to it.
  Bytes offload_fetched{}, offload_written{};
  /// Share of the makespan by which iterations took longer because entries were on their way.
  double link_wait = 0;
  std::int64_t blocks = 0, block_tokens = 0, peak_blocks = 0;
  std::optional<EngineStartup> startup;
  /// Upper end of the 90 % interval; nullopt if nothing was stored, or no interval is known.
  std::optional<BytesInterval> peak_interval;
  std::string peak_basis;
  std::optional<PoolInterval> pool_interval;       // of a paged engine
  std::vector<ServeOom> ooms;                      // the first 16
  std::vector<std::vector<ServeSample>> timeline;  // [replicas]
  std::vector<ServeIteration> iteration_samples;
  std::string scheduler;  // with its settings, as run
  std::string calibration_id, calibration;
  std::string
      no_hits;  // why no prefix was found in an engine with groups; empty: some, or no groups
  std::int64_t undeclared = 0;  // requests for which the longest sequence is reserved: they have no
                                // declared_tokens
  std::vector<std::string> notes;
};

}  // namespace kvsim
