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

/// Order in which waiting requests are served; ties go to the earlier arrival. By priority: the
/// lowest.
enum class QueueOrder : std::uint8_t { kFcfs, kPriority, kShortestDeclared };
inline constexpr std::array kQueueOrders{QueueOrder::kFcfs, QueueOrder::kPriority,
                                         QueueOrder::kShortestDeclared};

/// How an engine forms its batches. Absent settings have the default of the modelled engine.
struct SchedulerSpec {
  std::string name;  // "static", "vllm-v1", "vllm-v0", "sglang", "trtllm"; empty: the stack's
  QueueOrder order = QueueOrder::kFcfs;
  std::optional<std::int64_t> max_num_batched_tokens{};        // of one iteration
  std::optional<std::int64_t> max_num_seqs{};                  // running simultaneously
  std::optional<std::int64_t> long_prefill_token_threshold{};  // limit per prompt and iteration
  std::optional<bool> chunked_prefill{};
  std::optional<bool> prefix_caching{};
  std::optional<std::int64_t> batch{};  // static: sequences of a batch
  std::optional<double> watermark{};    // share of blocks kept free when requests are admitted
  std::optional<bool> swap{};           // vllm-v0: swaps preempted caches to host memory
  /// sglang: "fcfs", "lpm"; trtllm: "guaranteed-no-evict", "max-utilization".
  std::optional<std::string> policy{};
  std::optional<double> conservativeness{};          // sglang: of its estimate of future outputs
  std::optional<std::int64_t> max_prefill_tokens{};  // sglang: prompt tokens per iteration
  std::optional<bool> mixed_chunk{};                 // sglang: decodes join the prompts' iteration
  std::optional<bool> reserve_full_isl{};            // vllm-v1: admits only prompts that fit fully
};

/// Latency bounds that a request must meet to count towards goodput.
struct SloSpec {
  std::optional<Seconds> ttft{}, tpot{}, e2e{};
  std::optional<int> percentile{};  // of latencies that summaries and figures show: 50, 90, 95, 99
  [[nodiscard]] bool empty() const { return !ttft && !tpot && !e2e; }
};

/// Policy for assigning a request to a replica.
enum class RouterPolicy : std::uint8_t { kRoundRobin, kLeastLoaded, kPrefixAware };

/// Several engines behind one router.
struct ClusterSpec {
  std::int32_t replicas = 1;
  RouterPolicy router = RouterPolicy::kRoundRobin;
  /// Prefix-aware: how many more requests than the least loaded engine the one with the prefix may
  /// have.
  std::int64_t prefix_margin = 32;    // SGLang's router: balance_abs_threshold
  std::int32_t prefill_replicas = 0;  // above 0: these prefill, `replicas` decode, the cache moves
  /// One replica's link to the others, one direction; 0: the GPU's own NVLink or PCIe.
  BytesPerSecond link{0.0};
  Seconds link_latency{};                // one way
  bool compress_before_transfer = true;  // sends the kept entries instead of the prompt's cache
};

/// Source of proposed tokens: a model, a head on the served model's hidden states (DraftHead), or
/// earlier occurrences of the last tokens in the text.
enum class Proposer : std::uint8_t { kModel, kMtp, kEagle, kEagle3, kNgram };

/// Settings of speculative decoding: proposed tokens that are verified together.
struct SpeculationSpec {
  const Llm* draft = nullptr;  // of kModel; null: no speculation
  Proposer proposer = Proposer::kModel;
  std::int32_t tokens = 4;  // proposed per step
  // Draft passes; each adds a level of `topk` tokens to the tree of proposals. At most this many of
  // the `tokens` are accepted. 0: a chain with one pass per token.
  std::int32_t steps = 0;
  std::int32_t topk = 1;
  double acceptance = 0.7;  // of each level, given that the previous levels were accepted

  [[nodiscard]] bool is_on() const { return draft != nullptr || proposer != Proposer::kModel; }
  [[nodiscard]] bool has_draft() const { return is_on() && proposer != Proposer::kNgram; }
  [[nodiscard]] std::int32_t levels() const { return steps > 0 ? steps : tokens; }
};

/// NVMe of one replica, for caches that do not fit into host memory.
struct NvmeSpec {
  Bytes capacity{0};  // 0: none
  BytesPerSecond read{0.0}, write{0.0};
};

enum class OffloadTier : std::uint8_t { kNone, kHost, kNvme };

/// Storage of entries that a method keeps but does not read in every step. HBM holds the entries
/// that the previous step read.
struct OffloadSpec {
  OffloadTier to = OffloadTier::kNone;
  bool prefetch = true;  // transfers overlap with the arithmetic of the same step; else they
                         // precede it
  double reuse = 0;      // share of a step's reads that the previous step also read
};

/// One service: one or more engines under a workload. Pointers are not owned and must outlive it.
struct ServeSpec {
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  const Stack* stack = nullptr;
  MethodSpec method{"full", {}, {}};              // resolved for each prompt length
  std::shared_ptr<const MeasuredLaw> measured{};  // size law of a method without a closed form
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  const Calibration* calibration = nullptr;
  const WeightFormat* weight_format = nullptr;
  std::int32_t tensor_parallel = 1;
  std::int32_t pipeline_parallel = 1;
  StackOptions options{};
  /// If set, each allocation of static batches is simulated in PyTorch's caching allocator with
  /// these settings, one allocator per replica for the whole run. A refused batch is lost.
  std::optional<AllocatorConfig> allocator{};
  std::shared_ptr<const RequestTrace> requests;
  SchedulerSpec scheduler{};
  SloSpec slo{};
  ClusterSpec cluster{};
  SpeculationSpec speculation{};
  Bytes host_memory{0};  // for swapped and offloaded caches; 0: none
  NvmeSpec nvme{};
  OffloadSpec offload{};
  /// Format of pages in host memory and NVMe, a choice of the tier axis; empty: the method's
  /// format, or the format on the GPU.
  std::string tier_codec{};
  /// Calibration by a benchmark of this service; used instead of data of similar services.
  std::optional<ServiceCalibration> calibrated{};
  std::uint64_t seed = 0;
  /// False if settings that affect times are assumed, not known (runs published by others);
  /// intervals are wider then.
  bool settings_stated = true;
};

/// Returns the name of `proposer` in scenarios; empty for kModel, which is named by its draft.
[[nodiscard]] std::string_view word_of(Proposer proposer);
/// Returns the proposer other than kModel with that name; nullopt if there is none.
[[nodiscard]] std::optional<Proposer> find_proposer(std::string_view word);
/// Returns the name of the draft or of the proposer; `speculation` must be on.
[[nodiscard]] std::string name_of(const SpeculationSpec& speculation);

/// Number of GPUs of one pipeline stage, of one replica, and of all replicas.
[[nodiscard]] std::int32_t stage_gpus(const ServeSpec& spec);
[[nodiscard]] std::int32_t gpus_per_replica(const ServeSpec& spec);
[[nodiscard]] std::int32_t service_gpus(const ServeSpec& spec);

/// Inputs of the defaults of the service's engine.
[[nodiscard]] EngineSite engine_site(const ServeSpec& spec);

/// Returns whether one node has this many connected GPUs of the service's type: 8, or the size of
/// an NVLink domain.
[[nodiscard]] bool is_in_one_node(const ServeSpec& spec, std::int32_t gpus);

}  // namespace kvsim
