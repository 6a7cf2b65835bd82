#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The inputs of a step's graph. They exclude the GPU, whose rates are used when the graph is
/// evaluated. Pointers are not owned.
struct CostInput {
  const Llm* llm = nullptr;
  const Method* method = nullptr;
  const Stack* stack = nullptr;
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  std::int64_t batch = 1;
  std::int64_t prompt = 0;                      // per sequence, for formats that use it; 0: unknown
  const WeightFormat* weight_format = nullptr;  // packs part of the weights; null: all weight_dtype
  // If the model is spread over several GPUs, `llm` is the part on one of them (tensor_shard).
  std::int32_t tensor_parallel = 1;
  std::int32_t vocab_size = 0;  // of the whole model; 0: of `llm`
  /// Transfers of a step's hidden states to another GPU, if each holds whole layers.
  std::int32_t hand_overs = 0;
  std::int64_t allocated = 0;  // token capacity of a static cache; may be attended as a whole
  std::optional<Bytes> measured_weights{};  // replaces the format's value
  bool exact_sizes = false;                 // tensor sizes before the allocator's rounding

  [[nodiscard]] WeightStore weights() const { return {weight_dtype, weight_format}; }
};

/// Returns the stack's allocation for `n` bytes, or `n` if sizes are exact.
[[nodiscard]] inline Bytes allocator_rounded(const CostInput& in, Bytes n) {
  return in.exact_sizes ? n : allocator_rounded(*in.stack, n);
}

/// Returns the tokens of a prompt that one GPU computes in `layer`: those chosen by the method, or
/// its part of them if prompts are split over GPUs.
[[nodiscard]] PromptPart prompt_part(const CostInput& in, std::int32_t layer);
/// Returns a GPU's part of all tokens of a prompt if prompts are split over GPUs.
[[nodiscard]] PromptPart split_part(const CostInput& in);

/// Returns the format of activations: fp32 and 16-bit weights compute in their format, narrower
/// ones in bf16.
[[nodiscard]] Dtype activation_dtype(Dtype weight_dtype);

/// One GPU's share of a layer's routed experts: whole experts, or slices if the tensor-parallel
/// group has more GPUs than share the experts.
struct ExpertShare {
  std::int64_t experts = 0;  // experts held, whole or in part; the maximum over GPUs
  std::int64_t width = 0;    // columns held per expert
  std::int64_t rows = 0;     // (token, expert) pairs computed on the most loaded GPU
  std::int64_t own = 0;      // tokens whose expert outputs it sums
  double tokens = 0;         // of all GPUs that share the experts
  double exchanged = 0;      // vectors sent, and received, in each of both exchanges
};
/// `mlp` is a tensor-parallel shard with experts; each GPU of the group has `rows` tokens. If
/// prompts are split over groups, `are_repeated` means that all groups have the same tokens. Tokens
/// choose their experts evenly; the most loaded GPU has stack.expert_imbalance times the mean, and
/// the others wait for it.
[[nodiscard]] ExpertShare expert_share(const CostInput& in, const MlpSpec& mlp, std::int64_t rows,
                                       bool are_repeated = false);
/// Whether a GPU holds a smaller share of the routed experts than of other matrices.
[[nodiscard]] bool shares_experts(const Stack& stack);
/// Returns the experts of `n_experts` on GPU `rank` of `ranks`: the first GPUs hold one more.
[[nodiscard]] std::int64_t experts_on(std::int64_t n_experts, std::int64_t ranks,
                                      std::int64_t rank);
/// Returns the model as held by one GPU: routed experts are reduced to its share.
[[nodiscard]] Llm held_model(const CostInput& in);
/// Returns the bytes of weights on the GPU; with an uneven number of experts, on a GPU with the
/// most.
[[nodiscard]] Bytes weights_held(const CostInput& in);
/// Of these, one GPU's part of the vision encoder; 0 if the stack does not load it.
[[nodiscard]] Bytes vision_weights(const CostInput& in);
/// Returns the bytes of a layer's matrices that are read from host memory in every pass.
[[nodiscard]] Bytes host_weights(const CostInput& in, std::int32_t layer);
/// Memory of a process on the GPU outside its framework's tensors, by name.
struct OffloadedBytes {
  std::string_view name;  // a literal
  std::string_view key;   // of the stack's profile
  Bytes bytes;
};
[[nodiscard]] std::vector<OffloadedBytes> offloaded_bytes(const CostInput& in);
/// Returns the bytes of a boolean mask over all pairs of `tokens` positions, shared by all
/// sequences.
[[nodiscard]] Bytes full_mask_bytes(const CostInput& in, std::int64_t tokens);
/// Returns the simultaneously alive token rows in a step of `tokens` tokens per sequence: all of
/// the batch, or one chunk of a prefill.
[[nodiscard]] std::int64_t rows_at_once(const CostInput& in, std::int64_t tokens);
/// rows_at_once as a product: "batch 2 x 100 tokens", or "512 tokens at once".
[[nodiscard]] Product rows_product(const CostInput& in, std::int64_t tokens);

/// Consecutive layers with equal specification and method kind.
struct LayerGroup {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t first_equal = 0;  // index of the first group with equal layers: this one or an
                                 // earlier one
};
[[nodiscard]] std::vector<LayerGroup> layer_groups(const Llm& llm, const Method& method);

/// Allocated bytes of one layer's cache at `entries` entries per stored head, for the whole batch,
/// as charged by the stack's allocator. A latent cache is one tensor, counted as keys.
struct LayerCache {
  Bytes keys{};
  Bytes values{};
  Bytes side{};
  Bytes other{};  // states, windows, index keys, compressed entries
  [[nodiscard]] Bytes kv() const { return keys + values + other; }
  [[nodiscard]] Bytes total() const { return kv() + side; }
};
[[nodiscard]] LayerCache layer_cache(const CostInput& in, std::int32_t layer, std::int64_t entries);

/// Returns the maximum number of entries of a layer in the pool of `stack`; 0: all tokens.
[[nodiscard]] std::int64_t held_limit(const Stack& stack, const AttentionSpec& attention);
/// Returns the entries per stored head that `layer` holds after token `tokens`: the method's,
/// limited by the layer's window; tokens for layers without rows that a method can compress. Throws
/// InputError if the method's size depends on data.
[[nodiscard]] std::int64_t held_entries(const CostInput& in, std::int32_t layer,
                                        std::int64_t prompt, std::int64_t tokens);

/// Change of a layer's cache by a decode step.
enum class CacheChange : std::uint8_t {
  kGrow,       // one more entry; the stack determines the cost
  kOverwrite,  // full: the new entry takes the slot of the evicted one
  kRewrite     // the new entry is appended, then the kept entries are rewritten
};

/// The state that determines a layer's graph for the decode step that appends one token.
struct DecodeState {
  std::int64_t attended = 0;  // entries per stored head read by attention, including the new one
  std::int64_t before = 0;    // held before the step
  std::int64_t after = 0;     // held after it
  CacheChange change = CacheChange::kGrow;
  bool evicts = false;  // the method compresses in this step

  friend bool operator==(const DecodeState&, const DecodeState&) = default;
};
/// Returns the number of operators that the method adds to a layer's decode step: special kernels
/// if the stack fuses operators, else plain PyTorch operators (Method::eager_operators).
[[nodiscard]] std::int32_t method_operators(const Method& method, const Stack& stack);

/// Returns the state of the step that extends the sequence to `tokens` tokens with `before` held
/// entries.
[[nodiscard]] DecodeState decode_moment(const CostInput& in, std::int32_t layer,
                                        std::int64_t prompt, std::int64_t tokens,
                                        std::int64_t before);

/// Returns CacheRows::cache_after_step of that layer.
[[nodiscard]] LayerCache cache_after_step(const CostInput& in, std::int32_t layer,
                                          const DecodeState& moment);

/// The state that determines a layer's prefill graph.
struct PrefillState {
  std::int64_t prompt = 0;
  std::int64_t kept = 0;        // entries per stored head after compression
  std::int64_t score_rows = 0;  // query rows of score matrices at once; at least 1

  friend bool operator==(const PrefillState&, const PrefillState&) = default;
};
/// Returns the tensors that are alive in all layers of a step after the first: the embeddings held
/// by the caller (in the first layer they are its input) and the causal mask of eager attention.
[[nodiscard]] std::vector<Tensor> resident_tensors(const CostInput& in, std::int64_t tokens);

/// A step as a sequence of graphs; equal layers share one graph and a repeat count.
struct Segment {
  std::shared_ptr<const OpGraph> graph{};
  std::int32_t repeat = 1;
  std::int32_t first_layer = -1;  // -1: no layer
  double passes = 1;              // number of runs, in addition to `repeat`; explain() reports one
                                  // of them
};
struct Step {
  std::vector<Segment> segments{};
  Seconds host{};     // the host's time for the whole step
  Seconds between{};  // scheduling that the GPU waits for
  double passes = 1;  // runs of the segments: more if a method makes further passes over the prompt
};
/// Returns the number of passes over the prompt: the first, and further passes of the method.
[[nodiscard]] double prefill_passes(const CostInput& in, std::int64_t prompt);
/// The same with the model's precomputed layer_groups.
[[nodiscard]] double prefill_passes(const CostInput& in, std::int64_t prompt,
                                    std::span<const LayerGroup> groups);

/// Returns the scheduling time of a step of `in.batch` sequences that the GPU waits for; 0 for an
/// engine that schedules ahead.
[[nodiscard]] Seconds inter_step_overhead(const CostInput& in);
/// The same for an engine that schedules ahead, in parallel with the GPU; 0 for others.
[[nodiscard]] Seconds hidden_scheduling(const CostInput& in);
/// Returns the host time of a step, parallel to the GPU's: the stack's per layer and step, the
/// method's own operators, and hidden_scheduling.
[[nodiscard]] Seconds host_time(const CostInput& in, bool decode);

}  // namespace kvsim
