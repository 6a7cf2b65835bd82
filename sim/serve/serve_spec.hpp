#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"
#include "sim/memory/allocator_config.hpp"
#include "sim/serve/time_factors.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Which waiting request is served first; ties go to the earlier arrival. By priority: the lowest.
enum class QueueOrder : std::uint8_t { kFcfs, kPriority, kShortestDeclared };
inline constexpr std::array kQueueOrders{QueueOrder::kFcfs, QueueOrder::kPriority,
                                         QueueOrder::kShortestDeclared};

/// How an engine forms its batches. What is absent is as the scheduler's own program has it.
struct SchedulerSpec {
  std::string name;  // "static", "vllm-v1", "vllm-v0", "sglang", "trtllm"; empty: the stack's own
  QueueOrder order = QueueOrder::kFcfs;
  std::optional<std::int64_t> max_num_batched_tokens{};        // of one iteration
  std::optional<std::int64_t> max_num_seqs{};                  // running at once
  std::optional<std::int64_t> long_prefill_token_threshold{};  // most of one prompt in an iteration
  std::optional<bool> chunked_prefill{};
  std::optional<bool> prefix_caching{};
  std::optional<std::int64_t> batch{};  // static: sequences of a batch
  std::optional<double> watermark{};    // share of blocks kept free when requests are admitted
  std::optional<bool> swap{};           // vllm-v0: preempted caches go to host memory
  /// sglang: "fcfs", "lpm"; trtllm: "guaranteed-no-evict", "max-utilization".
  std::optional<std::string> policy{};
  std::optional<double> conservativeness{};          // sglang: of its estimate of outputs to come
  std::optional<std::int64_t> max_prefill_tokens{};  // sglang: of the prompts of one iteration
  std::optional<bool> mixed_chunk{};                 // sglang: decodes join the prompts' iteration
  std::optional<bool> reserve_full_isl{};            // vllm-v1: admits prompts that fit as a whole
};

/// Bounds that a request has to keep to count as good.
struct SloSpec {
  std::optional<Seconds> ttft{}, tpot{}, e2e{};
  std::optional<int> percentile{};  // of latencies that summaries and figures show: 50, 90, 95, 99
  [[nodiscard]] bool empty() const { return !ttft && !tpot && !e2e; }
};

/// Which replica a request goes to.
enum class RouterPolicy : std::uint8_t { kRoundRobin, kLeastLoaded, kPrefixAware };

/// Several engines behind one door.
struct ClusterSpec {
  std::int32_t replicas = 1;
  RouterPolicy router = RouterPolicy::kRoundRobin;
  /// Prefix-aware: requests that the engine with the prefix may have more than the least loaded.
  std::int64_t prefix_margin = 32;    // SGLang's router: balance_abs_threshold
  std::int32_t prefill_replicas = 0;  // above 0: these prefill, `replicas` decode, the cache moves
  /// One replica's link to the others, one direction; 0: the GPU's own NVLink or PCIe.
  BytesPerSecond link{0.0};
  Seconds link_latency{};                // of one way
  bool compress_before_transfer = true;  // the method's survivors move, not the prompt's cache
};

/// What proposes tokens: a model, a head on the served model's hidden states (DraftHead), or
/// earlier occurrences of the last tokens in the text.
enum class Proposer : std::uint8_t { kModel, kMtp, kEagle, kEagle3, kNgram };

/// Tokens that are proposed and verified together.
struct SpeculationSpec {
  const Llm* draft = nullptr;  // of kModel; null: no speculation
  Proposer proposer = Proposer::kModel;
  std::int32_t tokens = 4;  // proposed a step
  // Passes of the draft, each a level of a tree of proposals of `topk` tokens: of the `tokens` at
  // most so many are accepted. 0: a chain, one pass for each token.
  std::int32_t steps = 0;
  std::int32_t topk = 1;
  double acceptance = 0.7;  // of each level, given that those before it were accepted

  [[nodiscard]] bool is_on() const { return draft != nullptr || proposer != Proposer::kModel; }
  [[nodiscard]] bool has_draft() const { return is_on() && proposer != Proposer::kNgram; }
  [[nodiscard]] std::int32_t levels() const { return steps > 0 ? steps : tokens; }
};

/// NVMe of one replica, where its caches go that host memory has no room for.
struct NvmeSpec {
  Bytes capacity{0};  // 0: none
  BytesPerSecond read{0.0}, write{0.0};
};

enum class OffloadTier : std::uint8_t { kNone, kHost, kNvme };

/// Where entries are stored that a method keeps but does not read in every step. HBM holds those of
/// the previous step.
struct OffloadSpec {
  OffloadTier to = OffloadTier::kNone;
  bool prefetch = true;  // transfers overlap with the arithmetic of the same step; else they
                         // precede it
  double reuse = 0;      // share of what a step reads that the step before had read
};

/// One service: an engine, or several, under a workload. Pointers are not owned and outlive it.
struct ServeSpec {
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  const Stack* stack = nullptr;
  MethodSpec method{"full", {}, {}};              // resolved for each prompt length
  std::shared_ptr<const MeasuredLaw> measured{};  // the size law of a method that has no closed one
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  const Calibration* calibration = nullptr;
  const WeightFormat* weight_format = nullptr;
  std::int32_t tensor_parallel = 1;
  std::int32_t pipeline_parallel = 1;
  StackOptions options{};
  /// Set: every allocation of static batches is made one by one through PyTorch's caching allocator
  /// with these settings, one a replica for the whole run; what it refuses is lost.
  std::optional<AllocatorConfig> allocator{};
  std::shared_ptr<const RequestTrace> requests;
  SchedulerSpec scheduler{};
  SloSpec slo{};
  ClusterSpec cluster{};
  SpeculationSpec speculation{};
  Bytes host_memory{0};  // for swapped and offloaded caches; 0: none
  NvmeSpec nvme{};
  OffloadSpec offload{};
  /// The format of pages in host memory and NVMe, a choice of the axis tier; empty: the method's,
  /// or as on the GPU.
  std::string tier_codec{};
  /// Of a benchmark of this service: replaces what is known of services like it.
  std::optional<ServiceCalibration> calibrated{};
  std::uint64_t seed = 0;
  /// False: settings that decide times are assumed, not known (runs that others published);
  /// intervals are wider.
  bool settings_stated = true;
};

/// Word of `proposer` in scenarios; empty for kModel, whose draft has a name.
[[nodiscard]] std::string_view word_of(Proposer proposer);
/// nullopt: no proposer but a model has that word.
[[nodiscard]] std::optional<Proposer> find_proposer(std::string_view word);
/// The draft's name or the proposer's word; `speculation` is on.
[[nodiscard]] std::string name_of(const SpeculationSpec& speculation);

/// GPUs that hold one stage of a pipeline, of one replica, and of all.
[[nodiscard]] std::int32_t stage_gpus(const ServeSpec& spec);
[[nodiscard]] std::int32_t gpus_per_replica(const ServeSpec& spec);
[[nodiscard]] std::int32_t service_gpus(const ServeSpec& spec);

/// What the defaults of the service's engine depend on.
[[nodiscard]] EngineSite engine_site(const ServeSpec& spec);

/// Whether one node has so many of the service's GPUs, joined: 8, or as many as an NVLink joins.
[[nodiscard]] bool is_in_one_node(const ServeSpec& spec, std::int32_t gpus);

}  // namespace kvsim
