#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// How a stack's cache grows by a new token.
enum class CacheGrowth : std::uint8_t {
  kStatic,       // allocated for its final length at the start
  kExact,        // grows in place by the stored bytes (ideal)
  kConcatLayer,  // each layer's K, then its V, is copied into a longer tensor; both are live then
  /// As kConcatLayer, but the caller holds every layer's old cache until the step ends.
  kConcatAll,
  kPaged  // blocks of a preallocated pool
};
/// The base of an engine's memory fraction, i.e. how the engine sizes its cache's pool.
enum class FractionOf : std::uint8_t {
  kAll,            // all memory, including weights, activations and the rest (vLLM)
  kBeforeWeights,  // free memory before loading weights; activations are extra (SGLang)
  kAfterWeights,   // free memory after loading weights; activations are extra (TurboMind)
  kFree            // free memory after weights and the profiling run's peak (TensorRT-LLM)
};
/// The name in profiles.
[[nodiscard]] std::string_view word_of(FractionOf what);
enum class AttentionExec : std::uint8_t {
  kFused,  // no score matrix in memory
  kEager,  // score matrices, returned by the model
  kMath    // fused for prompts; decode steps use the math backend of scaled_dot_product_attention,
           // which converts 16-bit rows to fp32 and returns no scores
};
enum class LogitPositions : std::uint8_t { kLast, kAll };
/// How an operator's arithmetic and memory traffic overlap.
enum class Overlap : std::uint8_t {
  kMax,  // the longer of both: the other is hidden
  kAdd   // one after the other
};

/// Fraction of the data sheet's rates that a stack's kernels reach, used without a calibration.
struct ReachedRates {
  double flops = 1;
  double bandwidth = 1;
  /// For kernels that process one element per thread and are limited by their SMs: elements that
  /// one SM moves per clock, each read and written once, capped by `bandwidth`. 0: no such limit.
  double elements_per_clock = 0;
};

/// A software stack: the difference between the roofline and a real run. A profile is data
/// (models/stack/data), and each constant has a source.
struct Stack {
  std::string name;
  std::string summary;
  CacheGrowth growth = CacheGrowth::kExact;
  AttentionExec attention = AttentionExec::kFused;
  LogitPositions logits = LogitPositions::kLast;
  bool logits_fp32 = false;  // logits are upcast to fp32, next to the originals
  /// K and V are repeated to all query heads before attention (GQA)
  bool expands_kv_heads = false;
  bool rounds_allocations = false;  // PyTorch's block rounding applies
  bool needs_cuda = false;          // runs on NVIDIA GPUs only
  /// Callers hold the embeddings and the input of the running layer.
  bool keeps_inputs = false;
  /// Scans of delta rules copy the states. Iterations with prompt tokens also scan the states of
  /// decoding sequences, each as a chunk of one token: always for Kimi's rule, with rescans_decodes
  /// for the gated rule. Otherwise the decode kernel processes those states.
  bool rescans_states = false, rescans_decodes = false;
  /// Attention is FlashAttention 2's. An iteration with prompts runs all attention in one call
  /// without a tile scheduler: a decoding sequence fills one row of a tile in each of its query
  /// heads, and its keys are not split (has_lone_heads in models/cost/rates).
  bool joint_attention = false;
  /// Prompts up to the index's number of selected tokens attend to all tokens, in the kernel of
  /// dense latent attention.
  bool attends_short_densely = false;
  bool splits_keys = true;  // decode attention splits the keys so that few heads still fill the GPU
  /// With several GPUs, each holds whole layers and one computes at a time. False: tensor
  /// parallelism splits every layer.
  bool splits_layers = false;
  /// Fraction of the layers' weights that is kept in host memory and read over the link in every
  /// pass. `overlaps_weights`: the next layer's weights are read while the current layer computes.
  double host_weights = 0;
  bool overlaps_weights = false;
  std::int32_t norm_launches = 1;  // kernels per RMSNorm; above 1: not fused
  std::int32_t rope_launches = 1;  // kernels for the rotation of Q and K
  Bytes context;                   // CUDA context and libraries, per GPU
  double usable_fraction = 1.0;    // of usable HBM; for a paged engine, of fraction_of
  FractionOf fraction_of = FractionOf::kAll;
  Seconds launch_overhead;  // device-side gap per kernel
  /// Host time per layer and step; a step takes the larger of host and GPU time.
  Seconds host_per_layer;
  Seconds host_per_step;
  Seconds host_per_launch;  // host time per operator of a method's own code
  /// The stack whose measured kernels time an operator family ("gemm": "vllm"); "*": any stack.
  /// Families without an entry are timed by the roofline.
  std::map<std::string, std::string, std::less<>> kernels;

  std::int64_t block_tokens = 1;  // per block of a paged cache
  /// A block of a paged cache holds the entries of one head, and attention takes one length per
  /// head. False: a block holds a layer's entries of all heads, and each head is read up to the
  /// longest length.
  bool per_head_blocks = false;
  /// True: an evicted entry leaves a hole, and a layer is rewritten when holes exceed a quarter of
  /// its blocks' contents. False: entries are compacted after every eviction.
  bool lazy_compaction = false;
  std::int64_t prefill_chunk = 0;  // tokens per prefill pass of the whole batch; 0: all
  /// For a stack that does not chunk prompts: tokens per pass if the model supports more than
  /// 32,768 positions, above which vLLM's V0 engine chunks prompts. 0: never chunked.
  std::int64_t long_prefill_chunk = 0;
  std::int64_t max_num_seqs = 0;   // sequences in a batch; 0: unlimited
  std::int64_t max_model_len = 0;  // longest supported sequence, tokens; 0: the run's
  bool fused_projections = false;  // Q, K and V are one GEMM; gate and up are another
  bool attends_allocated = false;  // decode attention reads all of a static cache, with a mask
  bool softmax_fp32 = true;  // eager attention computes its softmax in fp32, in a second tensor
  /// Eager attention: operators that read and write the score matrix between the product of queries
  /// and keys and the softmax (scaling, adding a mask).
  std::int32_t score_passes = 0;
  /// Host time to launch a layer without CUDA graphs (enforce_eager); it then replaces
  /// host_per_layer.
  Seconds eager_per_layer;
  Seconds inter_step_overhead;      // scheduling, input preparation and output on the host
  Seconds inter_step_per_sequence;  // additional host time per sequence
  /// The host schedules a step while the GPU computes the previous one: the two times above are
  /// hidden by the GPU's time, and an arriving request waits for one more step.
  bool schedules_ahead = false;
  /// A prompt is admitted only if the cache has room for all of it, not only for its first chunk.
  bool reserves_full_prompt = false;
  /// Groups that divide the engine's limits; prefill_chunk and max_num_seqs are per group.
  std::int32_t attention_groups = 1;
  std::optional<bool> prefix_caching;  // default; absent: the scheduler's default
  /// Layers with a window store only the window. False: one pool serves all layers (SGLang), so
  /// that each stores every token, and its attention reads the window.
  bool window_pools = true;
  /// State slots that a running request may own, in a pool of slots (SGLang); 0: no such pool.
  /// state_sequences: slots of that pool; 0: sized by the engine's share of memory.
  std::int64_t state_slots = 0;
  std::int64_t state_sequences = 0;
  /// Largest number of sequences with a captured CUDA graph for decoding; the host launches the
  /// layers of larger steps (eager_per_layer). 0: unlimited. Without graph_padding a step also
  /// needs a graph of exactly its size.
  std::int64_t graph_sequences = 0;
  bool graph_padding = true;
  bool eager_prompts = false;   // the host launches the layers of iterations with prompts
  FrontEndTimes front_end{};    // for services
  CutoffTimes cutoff{};         // of its sampler
  bool samples_cutoff = false;  // requests use top-k or top-p
  /// Decode attention limited by its instructions: FLOP per SM and clock, with one head of one
  /// sequence per thread block. 0: `kernels` and `reached` apply.
  double attention_per_clock = 0;
  /// The same for prompt attention, for any head size.
  double prompt_attention_per_clock = 0;
  bool full_causal_mask = false;     // a boolean mask of the full length squared is always held
  bool masks_evicted = false;        // evicted entries stay cached and are masked
  double sampler_bytes = 0;          // bytes per logit of the start-up's dummy sampling
  bool loads_vision = false;         // the model's vision encoder, if any
  Bytes graphs;                      // CUDA graph pools
  bool counts_graphs = false;        // with FractionOf::kAll: the pool leaves room for them
  Bytes communication;               // buffers of collectives, per GPU if there are several
  Seconds collective_latency;        // per collective
  std::int32_t expert_parallel = 1;  // GPUs that share a layer's routed experts
  /// GPUs of a tensor-parallel group that a sequence's entries are distributed over (decode context
  /// parallelism); a block holds this many times as many tokens.
  std::int32_t context_parallel = 1;
  /// Groups that each compute a part of a prompt's tokens and hold all entries (prefill context
  /// parallelism). The number of GPUs is this times the size of a tensor-parallel group.
  std::int32_t prefill_context = 1;
  double expert_imbalance = 1;  // tokens of the most loaded GPU over the mean
  /// Bandwidth of one GPU's network link between nodes, one direction, and the end-to-end latency;
  /// 0: not specified.
  BytesPerSecond expert_link{0.0};
  Seconds expert_link_latency{};
  /// Token exchanges between experts on several nodes: bytes sent per GPU over the time without
  /// latency, and the latency. 0: exchanges use the GPUs' own links, like collectives.
  BytesPerSecond exchange_rate{0.0};
  Seconds exchange_latency{};
  Overlap overlap = Overlap::kMax;              // of arithmetic and traffic
  std::map<std::string, ReachedRates> reached;  // by operator family ("gemm", …)

  std::map<std::string, std::string> sources;

  /// The profile's own values for host, sampler and attention. The values above are either these or
  /// those of the rules that match the engine's version.
  struct VersionedValues {
    Seconds inter_step_overhead, inter_step_per_sequence, eager_per_layer;
    bool schedules_ahead = false;
    FrontEndTimes front_end{};
    CutoffTimes cutoff{};
    double attention_per_clock = 0;
    double sampler_bytes = 0;
  };
  VersionedValues profile_values{};

  /// Set for an engine whose defaults depend on its version and the GPU; otherwise null. Before
  /// with_options sets the GPU, the values above are those for a GPU that the engine cannot query.
  std::shared_ptr<const EngineDefaults> defaults{};
  std::string version{};  // of `defaults`; the newest known one unless the run sets another
  EngineUsage usage = EngineUsage::kServer;
  std::shared_ptr<const EngineSettings> settings{};  // set by with_options
};
/// Returns the stack's name in scenarios, with "@VERSION" unless it is the newest known version,
/// and ":llm" or ":tensorrt" for a usage other than the server.
[[nodiscard]] std::string label_of(const Stack& stack);

/// Settings of the stack that a run may override; absent settings keep the profile's value.
struct StackOptions {
  std::optional<std::int64_t> max_model_len{};
  /// For a service without max_model_len: use its longest request, not the model's context.
  bool longest_request = false;
  std::optional<std::int64_t> max_num_seqs{};
  std::optional<std::int64_t> prefill_chunk{};  // vLLM: max_num_batched_tokens
  std::optional<std::int64_t> block_tokens{};
  std::optional<bool> per_head_blocks{};
  std::optional<bool> lazy_compaction{};
  std::optional<double> memory_fraction{};  // of fraction_of; vLLM: gpu_memory_utilization
  std::optional<double> host_weights{};
  std::optional<bool> cuda_graphs{};  // false: no graphs are captured (enforce_eager)
  std::optional<std::int64_t> graph_sequences{};
  std::optional<bool> graph_padding{};
  std::optional<bool> async_scheduling{};     // schedules_ahead
  std::optional<bool> cutoff_sampling{};      // samples_cutoff
  std::optional<bool> language_model_only{};  // the vision encoder is not loaded
  std::optional<Dtype> state_dtype{};         // of recurrent states; absent: the model's
  /// Measured host times that replace the stack's.
  std::optional<Seconds> front_end_latency{}, front_end_request{}, front_end_prompt_token{},
      front_end_token{}, front_end_sequence{};
  std::optional<std::int32_t> api_servers{};  // front_end.servers
  std::optional<Seconds> inter_step_overhead{}, inter_step_per_sequence{};
  std::optional<std::int32_t> context_parallel{};
  std::optional<std::int32_t> prefill_context{};
  std::optional<std::int32_t> expert_parallel{};
  std::optional<double> expert_imbalance{};
  std::optional<BytesPerSecond> expert_link{};
  std::optional<Seconds> expert_link_latency{};
  // Measured bytes per GPU that replace predicted ones.
  std::optional<Bytes> weights{};
  std::optional<Bytes> non_torch{};   // CUDA context, libraries and collectives' buffers
  std::optional<Bytes> activation{};  // peak of the start-up's profiling run
  std::optional<Bytes> graphs{};

  bool operator==(const StackOptions&) const = default;
  [[nodiscard]] bool empty() const { return *this == StackOptions{}; }
};
/// Whether entries can be distributed over GPUs of a tensor-parallel group
/// (Stack::context_parallel).
[[nodiscard]] bool has_context_parallel(const Stack& stack);
/// Whether the stack's release splits prompts over GPUs (Stack::prefill_context).
[[nodiscard]] bool has_prefill_context(const Stack& stack);

/// Returns `stack` as it runs at `site`: first the engine's defaults for its version, GPU and
/// usage, then `options`, which always take precedence. `settings` records the origin of each
/// value. Throws InputError if the engine reserves more memory than the GPU has, or does not
/// support context parallelism.
[[nodiscard]] Stack with_options(const Stack& stack, const StackOptions& options,
                                 const EngineSite& site);

/// Returns `stack`, which does not chunk prompts, as it runs a model with more than 32,768
/// positions: with chunks of long_prefill_chunk tokens, or of `otherwise` if the stack sets none.
[[nodiscard]] Stack with_cut_prompts(Stack stack, std::int64_t otherwise);

/// Whether rotations, and the operations that methods add to a step, run as separate PyTorch
/// operators, each of which reads and writes its tensors. False: one fused kernel does the work.
[[nodiscard]] inline bool runs_by_operators(const Stack& stack) { return stack.rope_launches > 1; }
/// Returns how often a rotation reads and writes its tensor. Half of the operators counted for Q
/// and K together belong to each.
[[nodiscard]] inline std::int32_t rotation_passes(const Stack& stack) {
  return runs_by_operators(stack) ? stack.rope_launches / 2 : 1;
}

/// Whether a CUDA graph was captured for decode steps of `sequences`.
[[nodiscard]] bool is_captured(const Stack& stack, std::int64_t sequences);
/// Returns the host time to launch a layer in an iteration with `decodes` decoding sequences and,
/// with `has_prompts`, prompts.
[[nodiscard]] inline Seconds host_per_layer(const Stack& stack, std::int64_t decodes,
                                            bool has_prompts) {
  const bool eager = has_prompts ? stack.eager_prompts : !is_captured(stack, decodes);
  return eager ? std::max(stack.host_per_layer, stack.eager_per_layer) : stack.host_per_layer;
}

/// Returns the number of GPUs that share every layer.
[[nodiscard]] inline std::int32_t tensor_ranks(const Stack& stack, std::int32_t gpus) {
  return stack.splits_layers ? 1 : gpus;
}

/// Whether the cache's memory is preallocated, independent of its final size.
[[nodiscard]] inline bool is_preallocated(const Stack& stack) {
  return stack.growth == CacheGrowth::kStatic || stack.growth == CacheGrowth::kPaged;
}

/// Returns the bytes that a stack without a paged cache may use of a GPU's `total` bytes.
[[nodiscard]] Bytes fraction_bytes(const Stack& stack, Bytes total);

/// Returns the bytes that the stack's allocator reserves for a tensor of `n` bytes: PyTorch rounds
/// to blocks of 512 B (kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp). Segments are not
/// modelled here.
[[nodiscard]] inline Bytes allocator_rounded(const Stack& stack, Bytes n) {
  constexpr Bytes kPyTorchBlock{512};
  return stack.rounds_allocations ? round_up(n, kPyTorchBlock) : n;
}

/// Reads one profile; `name` is its name in scenarios. A profile may extend one of `known`: missing
/// values, with their sources, are taken from it. Throws InputError.
[[nodiscard]] Stack read_stack(const Field& profile, std::string name,
                               std::span<const Stack> known = {});

/// Returns the stack named `label`: "vllm", "vllm@0.19", "vllm:llm" or "vllm@0.19:llm". The default
/// version is the newest known one, the default usage the server. The reference stays valid. Throws
/// InputError with the nearest known stack, or with the known versions.
[[nodiscard]] const Stack& find_stack(std::string_view label);
[[nodiscard]] const std::vector<Stack>& builtin_stacks();

}  // namespace kvsim
