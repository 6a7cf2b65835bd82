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

/// What a step's graph depends on. Nothing of the GPU: its rates come in when the graph is
/// evaluated. Pointers are not owned.
struct CostInput {
  const Llm* llm = nullptr;
  const Method* method = nullptr;
  const Stack* stack = nullptr;
  Dtype weight_dtype = Dtype::kFp16;
  Dtype kv_dtype = Dtype::kFp16;
  std::int64_t batch = 1;
  std::int64_t prompt = 0;  // of a sequence, for formats that treat its entries apart; 0: unknown
  const WeightFormat* weight_format = nullptr;  // packs part of the weights; null: all weight_dtype
  // Where the model is spread over several GPUs, `llm` is the part of one of them (tensor_shard).
  std::int32_t tensor_parallel = 1;
  std::int32_t vocab_size = 0;  // of the whole model; 0: of `llm`
  /// Times that a step's hidden states go on to another GPU, where each holds whole layers.
  std::int32_t hand_overs = 0;
  std::int64_t allocated = 0;  // tokens a static cache has room for; attended where a stack does so
  std::optional<Bytes> measured_weights{};  // replaces the format's value
  bool exact_sizes = false;                 // tensors as they are, before the allocator's rounding

  [[nodiscard]] WeightStore weights() const { return {weight_dtype, weight_format}; }
};

/// What the stack's allocator takes for `n` bytes, or `n` where sizes are exact.
[[nodiscard]] inline Bytes allocator_rounded(const CostInput& in, Bytes n) {
  return in.exact_sizes ? n : allocator_rounded(*in.stack, n);
}

/// Which tokens of a prompt one GPU computes in `layer`: those that the method says, or its part of
/// them where prompts are split over GPUs.
[[nodiscard]] PromptPart prompt_part(const CostInput& in, std::int32_t layer);
/// A GPU's part of all tokens of a prompt where prompts are split over GPUs.
[[nodiscard]] PromptPart split_part(const CostInput& in);

/// Format of activations: fp32 and 16-bit weights compute in their own, narrower ones in bf16.
[[nodiscard]] Dtype activation_dtype(Dtype weight_dtype);

/// A layer's routed experts on one of the GPUs that share them out: whole ones, or slices where the
/// tensor-parallel group has more GPUs than that.
struct ExpertShare {
  std::int64_t experts = 0;  // of which it holds a part; of an uneven number the most
  std::int64_t width = 0;    // columns that it holds of each
  std::int64_t rows = 0;     // (token, expert) pairs that it computes, of the GPU with most
  std::int64_t own = 0;      // tokens for which it sums the outputs of experts
  double tokens = 0;         // of all GPUs that share them
  double exchanged = 0;      // vectors that it sends, and receives, in each of both exchanges
};
/// `mlp` is of a tensor-parallel shard and has experts; each GPU of the group has `rows` tokens.
/// Where prompts are split over groups, `are_repeated` says that all of these have the same tokens.
/// Tokens choose their experts evenly; the GPU with most of them gets stack.expert_imbalance times
/// the mean, and the others wait for it.
[[nodiscard]] ExpertShare expert_share(const CostInput& in, const MlpSpec& mlp, std::int64_t rows,
                                       bool are_repeated = false);
/// Whether a GPU holds less of the routed experts than of other matrices.
[[nodiscard]] bool shares_experts(const Stack& stack);
/// Experts of `n_experts` that GPU `rank` of `ranks` holds: the first hold one more.
[[nodiscard]] std::int64_t experts_on(std::int64_t n_experts, std::int64_t ranks,
                                      std::int64_t rank);
/// The model as one GPU holds it: of the routed experts its share.
[[nodiscard]] Llm held_model(const CostInput& in);
/// Bytes of weights on the GPU, of an uneven number of experts on one with most.
[[nodiscard]] Bytes weights_held(const CostInput& in);
/// Of these, one GPU's part of the vision encoder; 0 where the stack does not load it.
[[nodiscard]] Bytes vision_weights(const CostInput& in);
/// Bytes of a layer's matrices that are read from host memory at every pass.
[[nodiscard]] Bytes host_weights(const CostInput& in, std::int32_t layer);
/// What a process holds on the GPU outside its framework's tensors, by name.
struct OffloadedBytes {
  std::string_view name;  // a literal
  std::string_view key;   // of the stack's profile
  Bytes bytes;
};
[[nodiscard]] std::vector<OffloadedBytes> offloaded_bytes(const CostInput& in);
/// A boolean mask over all pairs of `tokens` positions, which serves every sequence.
[[nodiscard]] Bytes full_mask_bytes(const CostInput& in, std::int64_t tokens);
/// Token rows that are alive at once in a step of `tokens` tokens a sequence: all of the batch, or
/// one chunk of a prefill.
[[nodiscard]] std::int64_t rows_at_once(const CostInput& in, std::int64_t tokens);
/// rows_at_once as a product: "batch 2 x 100 tokens", or "512 tokens at once".
[[nodiscard]] Product rows_product(const CostInput& in, std::int64_t tokens);

/// Consecutive layers with equal specification and method kind.
struct LayerGroup {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t first_equal = 0;  // index of the first group with equal layers: its own, or that of
                                 // an earlier one
};
[[nodiscard]] std::vector<LayerGroup> layer_groups(const Llm& llm, const Method& method);

/// What one layer's cache takes at `entries` entries per stored head, whole batch, as the stack's
/// allocator charges it. A latent cache is one tensor, counted as keys.
struct LayerCache {
  Bytes keys{};
  Bytes values{};
  Bytes side{};
  Bytes other{};  // states, windows, index keys, compressed entries
  [[nodiscard]] Bytes kv() const { return keys + values + other; }
  [[nodiscard]] Bytes total() const { return kv() + side; }
};
[[nodiscard]] LayerCache layer_cache(const CostInput& in, std::int32_t layer, std::int64_t entries);

/// Most entries that a layer holds in the pool of `stack`; 0: every token's.
[[nodiscard]] std::int64_t held_limit(const Stack& stack, const AttentionSpec& attention);
/// Entries per stored head that `layer` holds after token `tokens`: the method's, and no more than
/// the layer's window; tokens of layers without rows that a method can compress. Errors: InputError
/// where the method's size depends on data.
[[nodiscard]] std::int64_t held_entries(const CostInput& in, std::int32_t layer,
                                        std::int64_t prompt, std::int64_t tokens);

/// How a decode step leaves the cache of a layer.
enum class CacheChange : std::uint8_t {
  kGrow,       // one entry more; the stack says at what price
  kOverwrite,  // full: the new entry takes the slot of the one that leaves
  kRewrite     // the new entry is appended, then the kept entries are rewritten
};

/// One layer at the decode step that appends one token: all that its graph depends on.
struct DecodeState {
  std::int64_t attended = 0;  // entries per stored head that attention reads, the new one included
  std::int64_t before = 0;    // held before the step
  std::int64_t after = 0;     // held after it
  CacheChange change = CacheChange::kGrow;
  bool evicts = false;  // the method compresses in this step

  friend bool operator==(const DecodeState&, const DecodeState&) = default;
};
/// Operators that the method adds to a layer's decode step, as the stack runs them: kernels of its
/// own where others are fused, else plain PyTorch's (Method::eager_operators).
[[nodiscard]] std::int32_t method_operators(const Method& method, const Stack& stack);

/// The step that brings the sequence to `tokens` tokens, where `before` entries are held.
[[nodiscard]] DecodeState decode_moment(const CostInput& in, std::int32_t layer,
                                        std::int64_t prompt, std::int64_t tokens,
                                        std::int64_t before);

/// CacheRows::cache_after_step of that layer.
[[nodiscard]] LayerCache cache_after_step(const CostInput& in, std::int32_t layer,
                                          const DecodeState& moment);

/// One layer's prefill: all that its graph depends on.
struct PrefillState {
  std::int64_t prompt = 0;
  std::int64_t kept = 0;        // entries per stored head after compression
  std::int64_t score_rows = 0;  // query rows of a method's own score matrices at once; at least 1

  friend bool operator==(const PrefillState&, const PrefillState&) = default;
};
/// Tensors that live through all layers of a step from the second on: the embeddings the caller
/// holds (in the first layer they are its input) and the causal mask of eager attention.
[[nodiscard]] std::vector<Tensor> resident_tensors(const CostInput& in, std::int64_t tokens);

/// A step as a sequence of graphs; equal layers share one graph and a repeat count.
struct Segment {
  std::shared_ptr<const OpGraph> graph{};
  std::int32_t repeat = 1;
  std::int32_t first_layer = -1;  // -1: no layer
  double passes = 1;              // times it runs, in addition to `repeat`; explain() reports one
                                  // of them
};
struct Step {
  std::vector<Segment> segments{};
  Seconds host{};     // the host's own time for the whole step
  Seconds between{};  // scheduling that the GPU waits for
  double passes = 1;  // times the segments run: more where a method passes over the prompt again
};
/// Passes over the prompt: the first, and those that the method adds.
[[nodiscard]] double prefill_passes(const CostInput& in, std::int64_t prompt);
/// The same, where the model's layer_groups are at hand.
[[nodiscard]] double prefill_passes(const CostInput& in, std::int64_t prompt,
                                    std::span<const LayerGroup> groups);

/// Scheduling of a step of `in.batch` sequences that the GPU waits for; 0 for an engine that
/// schedules ahead.
[[nodiscard]] Seconds inter_step_overhead(const CostInput& in);
/// The same for an engine that schedules ahead, where it runs next to the GPU; 0 for others.
[[nodiscard]] Seconds hidden_scheduling(const CostInput& in);
/// Host time of a step, next to the GPU's: the stack's per layer and step, the method's own
/// operators, and hidden_scheduling.
[[nodiscard]] Seconds host_time(const CostInput& in, bool decode);

}  // namespace kvsim
