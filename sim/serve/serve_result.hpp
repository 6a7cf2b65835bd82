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
  kRejected,   // can never be served: longer than the longest sequence or than the cache
  kUnfinished  // the run ended before the request
};

/// The outcome of one request, by its index in the workload. Times are absolute; -1: never.
struct RequestOutcome {
  SimTime arrival{-1};    // if it depends on another request: its actual arrival
  SimTime scheduled{-1};  // first time in a batch
  SimTime first_token{-1};
  SimTime finish{-1};
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  // generated
  std::int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache when first scheduled
  std::int32_t preemptions = 0;
  std::int16_t replica = 0;  // the one that decoded it
  RequestStatus status = RequestStatus::kUnfinished;
};

/// Inter-token gaps are stored as spans of iterations; iteration i of a replica ended at ends[i].
/// Token k of a span was generated at the end of iteration first + k x stride. The stride is 1 for
/// one token per iteration, 2 if two batches alternate in a pipeline, and 0 if all tokens come from
/// one iteration.
struct TokenSpan {
  std::int32_t request = 0;
  std::int32_t first = 0;  // iteration of the span's first token
  std::int32_t count = 0;  // tokens
  std::int16_t replica = 0;
  std::int16_t stride = 1;  // between consecutive tokens

  [[nodiscard]] std::int32_t iteration(std::int32_t token) const { return first + token * stride; }
  [[nodiscard]] std::int32_t last() const { return iteration(count - 1); }
};

/// A scheduler's limits of one iteration; 0: no limit.
struct BatchLimits {
  std::int64_t seqs = 0;       // running simultaneously
  std::int64_t tokens = 0;     // computed
  bool prompts_alone = false;  // `tokens` counts only prompt tokens; decodes are extra
};

/// How replicas spent their time: shares of the makespan, averaged over replicas.
struct PhaseShares {
  double prompts = 0;  // iterations of prompts only
  double mixed = 0;    // of prompts and decodes
  double decodes = 0;  // of decodes only
};

/// State of one replica after an iteration. Samples are thinned, but the first, the last and the
/// extremes of memory are kept.
struct ServeSample {
  SimTime at{};
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int64_t tokens = 0;         // output tokens since the previous sample
  std::int64_t prompt_tokens = 0;  // computed since the previous sample
  Bytes held{};                    // HBM, of one GPU
  Bytes reserved{};  // same, if single allocations are simulated: context and segments
  /// Bytes of the entries that sequences hold, by the size law. Entries of a shared prefix count
  /// once, so that the sum never exceeds kv_blocks.
  Bytes kv_logical{};
  Bytes kv_blocks{};  // their blocks: logical + slack + bytes that cannot be reclaimed
  Bytes kv_cached{};  // blocks without a reference, kept for their prefix
  /// Prompt and output tokens computed so far for the requests that hold blocks, whether or not the
  /// method still holds their entries.
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
  std::string message{};  // PyTorch's message if its allocator refused; else empty
};

/// One GPU's share of a memory tier outside the GPUs.
struct TierResult {
  std::string name;               // "host memory", "NVMe"
  std::optional<Bytes> capacity;  // nullopt: not specified
  Bytes peak{};                   // of the replica with the highest use
  Owners peak_owners;             // "kv_swapped", "kv_offloaded"
};

enum class ReplicaRole : std::uint8_t { kWhole, kPrefill, kDecode };

/// One replica's share of a service.
struct ReplicaResult {
  ReplicaRole role = ReplicaRole::kWhole;
  std::int64_t requests = 0;  // sent to it
  std::int64_t completed = 0;
  std::int64_t output_tokens = 0;  // generated there
  std::int64_t prompt_tokens = 0;  // computed there, including recomputation after preemption
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
  /// The run ended before its workload because too few requests could still meet their bounds
  /// (ServeOptions::attained).
  bool stopped_early = false;
  std::int64_t truncated_requests = 0;  // requests cut at the engine's longest sequence
  std::int64_t preemptions = 0, oom_events = 0;
  std::int64_t iterations = 0;
  std::int64_t output_tokens = 0, prompt_tokens = 0;  // of completed requests
  std::int64_t recomputed_tokens = 0;                 // prefilled again after preemption
  std::int64_t prefix_hit_tokens = 0, prefix_query_tokens = 0;
  /// Speculation: numbers of proposed and accepted tokens, and of sequence steps that verified
  /// proposals.
  std::int64_t drafted_tokens = 0, accepted_tokens = 0, verifications = 0;
  SimTime makespan{};  // from the first arrival to the last finish

  Distribution ttft, tpot, itl, e2e, queue;                 // seconds, of completed requests
  double request_s = 0, output_tok_s = 0, total_tok_s = 0;  // over the makespan
  /// Requests per second that met all bounds, and their share; nullopt without bounds.
  std::optional<double> goodput, slo_attained;
  /// Averages over the makespan. mfu: share of the makespan that the arithmetic takes at the
  /// data-sheet rate of each operator's compute format; mbu: share of the data sheet's bandwidth.
  double mfu = 0, mbu = 0;
  double busy = 0;  // share of the makespan in which an iteration ran
  /// Share of the makespan in which a request waited for free memory that the scheduler reserved
  /// for future tokens of running sequences.
  double reservation_wait_share = 0;
  PhaseShares phases;  // parts of `busy`
  BatchLimits limits;  // of the replica that decodes
  /// Shares of the makespan in iterations that used all of limits.tokens (to within a block), and
  /// in iterations that ran limits.seqs sequences while others waited.
  double tokens_full = 0, seqs_full = 0;

  std::vector<ReplicaResult> replicas;  // decoding ones, then those that only prefill
  std::int32_t gpus = 1;                // of all replicas
  /// Caches transferred from prefilling replicas: their number, their bytes on all GPUs of a
  /// replica, seconds from the first byte sent to the last byte received, and seconds of waiting
  /// for memory before that.
  std::int64_t transfers = 0;
  Bytes transferred{};
  Distribution transfer, transfer_wait;

  std::int64_t kv_capacity_tokens = 0;  // of one replica, in tokens of the full cache
  Bytes peak_hbm{}, usable_hbm{};       // of one GPU
  Owners peak_owners;
  /// If allocations were simulated: the report of the replica with the most reserved memory, and
  /// its reserved bytes including the CUDA context.
  std::optional<AllocationReport> allocator;
  Bytes reserved_hbm{};
  Bytes kv_pool{};
  /// Summed over completed requests at their ends, on the GPUs of one tensor-parallel rank: bytes
  /// of the entries that the method had dropped, and of the blocks that this had freed.
  Bytes kv_dropped{}, kv_reclaimed{};
  std::vector<TierResult> tiers;  // if caches were stored outside the GPUs
  /// Over all steps, for one GPU of each replica: bytes of entries fetched from the offload tier
  /// and written to it.
  Bytes offload_fetched{}, offload_written{};
  /// Share of the makespan that iterations spent waiting for transfers of entries.
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
      no_hits;  // why no prefix was found in an engine with groups; empty: some were, or no groups
  std::int64_t undeclared = 0;  // requests without declared_tokens, for which the longest sequence
                                // is reserved
  std::vector<std::string> notes;
};

}  // namespace kvsim
