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

/// How a stack's cache takes a new token.
enum class CacheGrowth : std::uint8_t {
  kStatic,       // allocated for its final length at the start
  kExact,        // grows in place by what is stored (ideal)
  kConcatLayer,  // each layer's K, then its V, is copied into a longer tensor; both live meanwhile
  kConcatAll,    // as kConcatLayer, but the caller holds every layer's old cache to the step's end
  kPaged         // blocks of a pool set aside at the start
};
/// What an engine's memory fraction is a share of: how it finds the bytes of its cache's pool.
enum class FractionOf : std::uint8_t {
  kAll,            // all memory, weights, the rest and activations within (vLLM)
  kBeforeWeights,  // what is free before the weights; activations are outside (SGLang)
  kAfterWeights,   // what they leave free; activations are outside (TurboMind)
  kFree            // what weights and the profiling run's peak leave free (TensorRT-LLM)
};
/// As a profile writes it.
[[nodiscard]] std::string_view word_of(FractionOf what);
enum class AttentionExec : std::uint8_t {
  kFused,  // no score matrix in memory
  kEager,  // score matrices, which the model returns
  kMath    // fused in prompts; decode steps by the reference of scaled_dot_product_attention, which
           // takes 16-bit rows as fp32 and returns no scores
};
enum class LogitPositions : std::uint8_t { kLast, kAll };
/// How an operator's arithmetic and traffic share its time.
enum class Overlap : std::uint8_t {
  kMax,  // the longer of both: each hides behind the other
  kAdd   // one after the other
};

/// Shares of the data sheet's rates that a stack's kernels reach where no calibration says better.
struct ReachedRates {
  double flops = 1;
  double bandwidth = 1;
  /// Of kernels that take an element a thread and are held up by their SMs: elements that one moves
  /// in a clock, each read and written once, up to that share of the bandwidth. 0: no such limit.
  double elements_per_clock = 0;
};

/// A software stack: the difference between the roofline and a real run. A profile is data
/// (models/stack/data), each constant with its source.
struct Stack {
  std::string name;
  std::string summary;
  CacheGrowth growth = CacheGrowth::kExact;
  AttentionExec attention = AttentionExec::kFused;
  LogitPositions logits = LogitPositions::kLast;
  bool logits_fp32 = false;         // logits upcast to fp32, in addition to those in the model's
                                    // dtype
  bool expands_kv_heads = false;    // K, V repeated to the query heads before attention (GQA)
  bool rounds_allocations = false;  // PyTorch's block rounding applies
  bool needs_cuda = false;          // runs on NVIDIA's GPUs only
  bool keeps_inputs = false;        // callers hold the embeddings and a layer's input while it runs
  /// Scans of delta rules take copies of the states. An iteration with tokens of prompts scans the
  /// states of decoding sequences too, each a chunk of one token: of Kimi's rule always, of the
  /// gated rule with rescans_decodes; else the kernel of decode takes these.
  bool rescans_states = false, rescans_decodes = false;
  /// Attention is FlashAttention 2's. An iteration with prompts takes all of it in one call, which
  /// has no scheduler of tiles: a decoding sequence fills one row of a tile of each of its query
  /// heads, and its keys are not cut (has_lone_heads in models/cost/rates).
  bool joint_attention = false;
  /// Prompts no longer than an index's choice attend to all of themselves in the kernel of dense
  /// latent attention.
  bool attends_short_densely = false;
  bool splits_keys = true;  // decode attention cuts the keys so that few heads still fill the GPU
  /// Of several GPUs each holds whole layers, and one computes at a time; else they share every
  /// layer by tensor parallelism.
  bool splits_layers = false;
  /// Share of the layers' weights that stays in host memory, and is read over the link at every
  /// pass; whether the next layer's are read while one computes.
  double host_weights = 0;
  bool overlaps_weights = false;
  std::int32_t norm_launches = 1;  // kernels one RMSNorm takes; more than 1: it is not fused
  std::int32_t rope_launches = 1;  // kernels the rotation of Q and K takes
  Bytes context;                   // CUDA context and libraries, per GPU
  double usable_fraction = 1.0;    // of the usable HBM, or, of a paged engine, of fraction_of
  FractionOf fraction_of = FractionOf::kAll;
  Seconds launch_overhead;  // device-side gap per kernel
  Seconds host_per_layer;   // host time per layer and step; the step takes the larger of both
  Seconds host_per_step;
  Seconds host_per_launch;  // host time of each operator a method's own code adds
  /// Whose measured kernels time an operator family ("gemm": "vllm"); "*": any stack's. Families
  /// without an entry are timed by the roofline.
  std::map<std::string, std::string, std::less<>> kernels;

  std::int64_t block_tokens = 1;  // of a paged cache's block
  /// A block of a paged cache holds one head's entries, and attention takes a length a head; else a
  /// block holds a layer's entries of all heads, and each is read as far as the longest reaches.
  bool per_head_blocks = false;
  /// True: a dropped entry leaves a hole, and a layer is rewritten when holes exceed a quarter of
  /// its blocks' contents. False: entries are compacted whenever some are dropped.
  bool lazy_compaction = false;
  std::int64_t prefill_chunk = 0;  // tokens of the whole batch one prefill pass takes; 0: all
  /// Of a stack that takes prompts whole: tokens of a pass where the model takes more than 32,768
  /// positions, beyond which vLLM's V0 engine cuts prompts. 0: prompts stay whole.
  std::int64_t long_prefill_chunk = 0;
  std::int64_t max_num_seqs = 0;   // sequences served at once; 0: no bound
  std::int64_t max_model_len = 0;  // tokens of the longest sequence it is set up for; 0: the run's
  bool fused_projections = false;  // Q, K and V are one GEMM; so are gate and up
  bool attends_allocated = false;  // decode attention reads all of a static cache, masked
  bool softmax_fp32 = true;  // eager attention computes its softmax in fp32, in a second tensor
  /// Of eager attention: operators that read and write the score matrix between the product of
  /// queries and keys and the softmax (scaling, adding a mask).
  std::int32_t score_passes = 0;
  /// What the host takes to launch a layer where the engine captures no graphs on demand
  /// (enforce_eager); then it is host_per_layer.
  Seconds eager_per_layer;
  Seconds inter_step_overhead;      // scheduling, input preparation and output on the host,
  Seconds inter_step_per_sequence;  // and what they take more for each sequence
  /// The host schedules a step while the GPU computes the one before it: the two times above are
  /// hidden behind the GPU's, and a request that arrives waits for one step more.
  bool schedules_ahead = false;
  /// A prompt is admitted only where the cache has room for all of it, not for its first chunk.
  bool reserves_full_prompt = false;
  /// That divide the engine's limits; prefill_chunk and max_num_seqs are of one of them.
  std::int32_t attention_groups = 1;
  std::optional<bool> prefix_caching;  // by default; absent: as the scheduler's
  /// Layers with a window hold only what it sees. False: one pool for all layers (SGLang), so that
  /// each holds every token, of which its attention reads the window.
  bool window_pools = true;
  /// States that a running request may own, of a pool with a slot for each (SGLang); 0: no such
  /// pool. State_sequences: slots of that pool; 0: the engine's share of memory.
  std::int64_t state_slots = 0;
  std::int64_t state_sequences = 0;
  /// Most sequences of a decode step that a CUDA graph was captured for; the host launches the
  /// layers of larger steps (eager_per_layer). 0: any number. Without graph_padding a step also
  /// needs a graph of exactly its size.
  std::int64_t graph_sequences = 0;
  bool graph_padding = true;
  bool eager_prompts = false;   // the host launches the layers of iterations with prompts
  FrontEndTimes front_end{};    // of a service
  CutoffTimes cutoff{};         // of its sampler,
  bool samples_cutoff = false;  // where requests ask for top-k or top-p
  /// Decode attention held up by its instructions: flops of an SM in a clock, one sequence's head
  /// in one block. 0: as `kernels` and `reached` say.
  double attention_per_clock = 0;
  /// Likewise of prompts' attention, whichever its heads.
  double prompt_attention_per_clock = 0;
  bool full_causal_mask = false;     // a boolean mask of the full length squared is held throughout
  bool masks_evicted = false;        // what a method lets go stays cached, and is masked out
  double sampler_bytes = 0;          // that a start-up's dummy sampling takes per logit
  bool loads_vision = false;         // the vision encoder of a model that has one
  Bytes graphs;                      // CUDA graph pools
  bool counts_graphs = false;        // of FractionOf::kAll: the pool leaves room for them
  Bytes communication;               // buffers of collectives, per GPU where there are several
  Seconds collective_latency;        // of one collective
  std::int32_t expert_parallel = 1;  // GPUs that a layer's routed experts are shared out over
  /// GPUs of a tensor-parallel group that a sequence's entries are dealt over (decode context
  /// parallelism); a block then has so many times as many tokens.
  std::int32_t context_parallel = 1;
  /// GPUs that each compute a part of a prompt's tokens and hold all entries (prefill context
  /// parallelism), times those of a tensor-parallel group.
  std::int32_t prefill_context = 1;
  double expert_imbalance = 1;  // tokens routed to the GPU with most of them, over the mean
  /// One GPU's link to the network between nodes, one direction, and the latency of its whole way;
  /// 0: none is said.
  BytesPerSecond expert_link{0.0};
  Seconds expert_link_latency{};
  /// Exchanges of tokens between experts on several nodes: bytes that a GPU sends over their time
  /// without latency, and the latency. 0: they use the GPUs' own links, as collectives do.
  BytesPerSecond exchange_rate{0.0};
  Seconds exchange_latency{};
  Overlap overlap = Overlap::kMax;              // of arithmetic and traffic
  std::map<std::string, ReachedRates> reached;  // by operator family ("gemm", …)

  std::map<std::string, std::string> sources;

  /// What the profile itself says of host, sampler and attention; the values above are these, or
  /// those of the rules that fit the engine's version.
  struct VersionedValues {
    Seconds inter_step_overhead, inter_step_per_sequence, eager_per_layer;
    bool schedules_ahead = false;
    FrontEndTimes front_end{};
    CutoffTimes cutoff{};
    double attention_per_clock = 0;
    double sampler_bytes = 0;
  };
  VersionedValues profile_values{};

  /// Of an engine whose defaults depend on its version and on the GPU; null: they do not. Until
  /// with_options knows the GPU, the values above are those for a GPU that the engine cannot query.
  std::shared_ptr<const EngineDefaults> defaults{};
  std::string version{};  // of `defaults`; the newest known one unless the run names another
  EngineUsage usage = EngineUsage::kServer;
  std::shared_ptr<const EngineSettings> settings{};  // set by with_options
};
/// What scenarios call a stack: its name, with "@VERSION" unless it is the newest known one, and
/// ":llm" or ":tensorrt" for another usage than the server.
[[nodiscard]] std::string label_of(const Stack& stack);

/// Settings of the stack that a run may override; an absent one is the profile's.
struct StackOptions {
  std::optional<std::int64_t> max_model_len{};
  /// Of a service that names no max_model_len: its longest request, not the model's context.
  bool longest_request = false;
  std::optional<std::int64_t> max_num_seqs{};
  std::optional<std::int64_t> prefill_chunk{};  // vLLM: max_num_batched_tokens
  std::optional<std::int64_t> block_tokens{};
  std::optional<bool> per_head_blocks{};
  std::optional<bool> lazy_compaction{};
  std::optional<double> memory_fraction{};  // of fraction_of; vLLM: gpu_memory_utilization
  std::optional<double> host_weights{};
  std::optional<bool> cuda_graphs{};  // false: none are captured (enforce_eager)
  std::optional<std::int64_t> graph_sequences{};
  std::optional<bool> graph_padding{};
  std::optional<bool> async_scheduling{};     // schedules_ahead
  std::optional<bool> cutoff_sampling{};      // samples_cutoff
  std::optional<bool> language_model_only{};  // no vision encoder is loaded
  std::optional<Dtype> state_dtype{};         // of recurrent states; none: the model's
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
/// Whether entries can be dealt over GPUs of a tensor-parallel group (Stack::context_parallel).
[[nodiscard]] bool has_context_parallel(const Stack& stack);
/// Whether the stack's release splits prompts over GPUs (Stack::prefill_context).
[[nodiscard]] bool has_prefill_context(const Stack& stack);

/// `stack` as it runs at `site`: the engine's defaults for its version, GPU and usage, then what
/// `options` sets, which always wins. `settings` says which value comes from where. Errors:
/// InputError if the engine reserves more memory than the GPU has, or has no context parallelism.
[[nodiscard]] Stack with_options(const Stack& stack, const StackOptions& options,
                                 const EngineSite& site);

/// `stack`, which takes prompts whole, as it runs a model beyond 32,768 positions: prompts are cut
/// into passes of long_prefill_chunk tokens, or `otherwise` where the stack names none.
[[nodiscard]] Stack with_cut_prompts(Stack stack, std::int64_t otherwise);

/// Rotations, and what methods add to a step, run as PyTorch's operators, which each read and write
/// their tensors; else a kernel does what one operator after the other would.
[[nodiscard]] inline bool runs_by_operators(const Stack& stack) { return stack.rope_launches > 1; }
/// How often a rotation reads and writes its tensor: of the operators of Q and K together, half are
/// of either.
[[nodiscard]] inline std::int32_t rotation_passes(const Stack& stack) {
  return runs_by_operators(stack) ? stack.rope_launches / 2 : 1;
}

/// Whether a CUDA graph was captured for decode steps of `sequences`.
[[nodiscard]] bool is_captured(const Stack& stack, std::int64_t sequences);
/// What the host takes to launch a layer of an iteration of `decodes` sequences that decode, and
/// prompts.
[[nodiscard]] inline Seconds host_per_layer(const Stack& stack, std::int64_t decodes,
                                            bool has_prompts) {
  const bool eager = has_prompts ? stack.eager_prompts : !is_captured(stack, decodes);
  return eager ? std::max(stack.host_per_layer, stack.eager_per_layer) : stack.host_per_layer;
}

/// GPUs of `gpus` that share every layer.
[[nodiscard]] inline std::int32_t tensor_ranks(const Stack& stack, std::int32_t gpus) {
  return stack.splits_layers ? 1 : gpus;
}

/// Whether the cache's memory is set aside at the start, whatever it grows to.
[[nodiscard]] inline bool is_preallocated(const Stack& stack) {
  return stack.growth == CacheGrowth::kStatic || stack.growth == CacheGrowth::kPaged;
}

/// What a stack whose cache is not paged may use of a GPU's `total` bytes.
[[nodiscard]] Bytes fraction_bytes(const Stack& stack, Bytes total);

/// What the stack's allocator takes for a tensor of `n` bytes: PyTorch rounds to blocks of 512 B
/// (kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp). Segments are the allocator's own matter.
[[nodiscard]] inline Bytes allocator_rounded(const Stack& stack, Bytes n) {
  constexpr Bytes kPyTorchBlock{512};
  return stack.rounds_allocations ? round_up(n, kPyTorchBlock) : n;
}

/// Reads one profile; `name` is what scenarios call it. A profile may extend one of `known`: what
/// it does not say is that one's, with its source. Errors: InputError.
[[nodiscard]] Stack read_stack(const Field& profile, std::string name,
                               std::span<const Stack> known = {});

/// The stack that `label` names: "vllm", "vllm@0.19", "vllm:llm" or "vllm@0.19:llm". Without a
/// version it is the newest known one, without a usage the server. The reference stays valid.
/// Errors: InputError naming the nearest known stack, or the versions that are known.
[[nodiscard]] const Stack& find_stack(std::string_view label);
[[nodiscard]] const std::vector<Stack>& builtin_stacks();

}  // namespace kvsim
