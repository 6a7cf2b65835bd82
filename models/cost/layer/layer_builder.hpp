#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/step.hpp"
#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {

/// Returns an operator of a layer's mixer over `sequences` equal sequences, with activations in
/// `dtype`.
[[nodiscard]] Op mixer_operator(const MixerOp& one, Dtype dtype, double sequences);
/// Adds the operators of `span` to those of other spans of the same layer, one by one.
void add_mixer_operators(const LayerSpec& layer, const NewTokens& span, Dtype dtype,
                         double sequences, std::vector<Op>& out);
/// Replaces the kernels of the operators of several spans by `times` calls over their mean.
void use_mean_kernels(const LayerSpec& layer, const NewTokens& mean, double sequences, double times,
                      std::vector<Op>& ops);
/// Whether scans of the layer copy states, and whether a prompt's scan also processes the states of
/// decoding sequences; the operator that gathers these states and writes them back.
[[nodiscard]] bool scans_copies(const Stack& stack, const LayerSpec& layer);
[[nodiscard]] bool scans_decodes(const Stack& stack, const LayerSpec& layer);
[[nodiscard]] Op state_copies(const LayerSpec& layer, double sequences);
/// Bytes per entry in `items`, which all have the same entry size, and the number of entries that a
/// sequence of `tokens` tokens holds.
[[nodiscard]] double entry_bytes(std::span<const CacheItem> items);
[[nodiscard]] double entries_held(std::span<const CacheItem> items, std::int64_t tokens);

/// Builds the operators and tensors of one layer. Tensors follow Hugging Face's decoder layer if
/// the stack keeps its inputs; other stacks free each tensor after its last use.
///
/// Not modelled: the layout of weights, attention sinks, the loop over experts (the tokens of all
/// experts are held simultaneously, as in a grouped GEMM), prefill of a latent cache under weight
/// absorption.
class LayerBuilder {
 public:
  LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens);

  [[nodiscard]] OpGraph prefill(const PrefillState& moment);
  /// The same in two parts: the operators before the layer evicts entries, and the rest, which
  /// copies of the builder can generate for different numbers of kept entries.
  struct CacheTensors {
    std::optional<std::size_t> keys, values, other;
  };
  struct Prefilled {
    CacheTensors cache;
    OpIndex at = 0;
  };
  [[nodiscard]] Prefilled prefill_whole(const PrefillState& moment);
  [[nodiscard]] OpGraph prefill_kept(Prefilled before, std::int64_t prompt, std::int64_t kept);
  /// If `whole` is false, one operator replaces all operators that do not depend on the state: the
  /// projections and those outside them.
  [[nodiscard]] OpGraph decode(const DecodeState& moment, bool whole = true);
  [[nodiscard]] OpGraph compress(std::int64_t prompt, std::int64_t kept);
  /// Returns a pass over all rows of the layer, with `middle` between the projections instead of
  /// attention. It only has tensors of the rows. Of the rows with Q, K and V projections, only
  /// `chosen` continue. `with_prompts`: the rows include prompt tokens.
  [[nodiscard]] OpGraph around(std::span<const Op> middle, std::int64_t chosen, bool with_prompts);
  /// Returns a method's work at the end of a prompt: scores, its own work, compression layer by
  /// layer.
  [[nodiscard]] OpGraph finish(const PrefillState& moment);

 private:
  struct Projected {  // Q, K, V of the step, as read by attention
    std::optional<std::size_t> q{}, k{}, v{};
    OpIndex op = 0;
  };
  /// Keys or values of a cache: the names of their tensors, and of the operators that copy them.
  struct CachePart {
    std::optional<std::size_t> CacheTensors::*tensor;
    Bytes (CacheRows::*payload)(std::int64_t entries) const;
    Product (CacheRows::*size)(std::int64_t entries, Product start) const;
    std::string_view name;
    std::string_view concat, concatenated, older;
    std::string_view keep, kept;
    std::string_view gather, gathered;
    std::string_view compact, compacted;
  };
  static const std::array<CachePart, 2> kParts;
  struct BlockSpec {
    std::int64_t rows = 0;
    std::int64_t width = 0;
    std::int64_t model = 0;                // columns of its input and output
    std::optional<double> experts{};       // distinct routed experts that are read; absent: dense
    const WeightFormat* format = nullptr;  // of the checkpoint
  };
  static constexpr double kFp32Bytes = 4;

  // Shared by all states, and the common start and end of a layer: layer_builder.cpp.
  [[nodiscard]] static double size(std::int64_t elements, Dtype dtype);  // bytes
  /// Sets the number of tokens per sequence for the layer's operators.
  void take(std::int64_t tokens);
  /// Holds a tensor with the allocator's rounding.
  std::size_t hold(std::string_view name, Owner owner, const Product& size, OpIndex first);
  /// Holds a tensor only during operator `at`.
  void hold_during(std::string_view name, Owner owner, const Product& size, OpIndex at);
  /// Holds a tensor in the dtype of activations.
  std::size_t activation(std::string_view name, Product size, OpIndex first);
  /// Returns the simultaneously alive rows as a product, to be multiplied by a row's elements.
  [[nodiscard]] Product rows() const;
  /// rows() with `width` elements; with `heads` heads if they divide it.
  [[nodiscard]] Product rows(std::int64_t width, std::int64_t heads, const char* unit) const;
  /// `width` elements for each of a block's `n` rows: rows(), or rows routed to experts.
  [[nodiscard]] Product block_rows(std::int64_t n, std::int64_t width) const;
  /// Attention scores per head and row for `columns` tokens or entries.
  [[nodiscard]] Product score_rows(std::int64_t columns, const char* unit) const;
  /// Size of a projection's output, by head if it has heads.
  [[nodiscard]] Product output_of(const LayerMatrix& matrix) const;
  /// Keys and values; only keys for a latent cache, neither if the layer holds no rows.
  [[nodiscard]] std::span<const CachePart> parts() const;
  [[nodiscard]] Bytes payload(const CachePart& part, std::int64_t entries) const;
  [[nodiscard]] Product part_size(const CachePart& part, std::int64_t entries) const;
  /// Holds CacheRows::other.
  void hold_other(CacheTensors& cache, std::int64_t entries, OpIndex first);
  void hold_cache(CacheTensors& cache, const CachePart& part, std::int64_t entries, OpIndex first);
  void drop(const std::optional<std::size_t>& tensor, OpIndex last);
  /// Replaces a tensor by its copy: both are alive at operator `at`, then only the copy.
  void replace(CacheTensors& cache, const CachePart& part, std::string_view copy,
               Owner while_copied, std::int64_t entries, OpIndex at);
  /// Adds a product with `copies` matrices of `in` x `out`; each row is multiplied with one of
  /// them.
  OpIndex gemm(std::string_view name, std::int64_t rows, std::int64_t in, std::int64_t out,
               OpIndex after, const MatrixPlace& place, double copies = 1);
  /// Sums partial results of `elements` over all GPUs, if there are several.
  OpIndex all_reduce(std::int64_t elements, OpIndex after);
  OpIndex stream(std::string_view name, OpFamily family, std::int64_t read, std::int64_t written,
                 OpIndex after, std::int32_t launches = 1);
  OpIndex norm(std::string_view name, OpIndex after);
  /// Adds the operators from the layer's input to Q, K and V, and to the inputs of its index or
  /// state.
  Projected open();
  Projected project(OpIndex after);
  /// Adds the matrices of indexes, gates and recurrent states.
  OpIndex project_sides(OpIndex after);
  [[nodiscard]] bool has_mixers() const { return !matrices_.empty(); }
  [[nodiscard]] bool has_attention() const { return attention_.n_heads > 0; }
  /// Adds the operators of indexes and states: for a step that extends sequences to `tokens`
  /// tokens, and for a prompt in pieces.
  OpIndex mix_step(OpIndex after, std::int64_t tokens);
  OpIndex mix_prompt(OpIndex after, std::int64_t prompt);
  /// Adds attention of layers without rows.
  OpIndex attend_items(const Projected& qkv, const DecodeState& moment);
  OpIndex attend_prompt_items(const Projected& qkv, std::int64_t prompt);
  /// Returns the place of matrix `i` of the layer, or of the matrix with a role. Throws
  /// ContractError if there is none.
  [[nodiscard]] MatrixPlace place_of(std::size_t i) const {
    return {matrices_[i].part, spec_.formats[i]};
  }
  [[nodiscard]] std::size_t matrix_of(MatrixRole role) const;
  OpIndex concat_apart(std::string_view name, double bytes, Dtype element, std::int32_t launches,
                       OpIndex after);
  /// Adds eager attention between its two products: `n` logits of `element` (`matrix` of them held
  /// from `after`, the product's operator) become fp32 probabilities, which are cast back if
  /// `element` is narrower. `mask` bytes are read in addition. `weights` is the resulting tensor of
  /// probabilities. Returns the last operator.
  OpIndex eager_softmax(std::int64_t n, const Product& matrix, double mask, Dtype element,
                        OpIndex after, std::size_t& weights);
  /// Releases Q, K and V after use, unless the caller holds them until the block's end.
  void release_inputs(const Projected& qkv, OpIndex last);
  /// Adds the attention block's output projection, and releases the block's tensors.
  OpIndex project_out(const Projected& qkv, OpIndex after);
  OpIndex close(OpIndex attention);

  // in layer_prefill.cpp, with prefill
  /// Continues with `chosen` tokens of each sequence, whose rows are copied together.
  OpIndex choose(Projected& qkv, std::int64_t chosen);
  void load_reused(std::int64_t prompt);
  OpIndex attend_prompt(const Projected& qkv, std::int64_t prompt);
  [[nodiscard]] std::optional<KernelUse> prefill_use(std::int64_t prompt) const;
  /// Returns the number of prompt tokens covered by one pass.
  [[nodiscard]] std::int64_t piece_of(std::int64_t prompt) const {
    return std::min(prompt, held_ * prompt / tokens_);
  }
  [[nodiscard]] std::int64_t cached_before(std::int64_t prompt) const;
  struct Pieces {
    double pairs = 0;         // (query, key) pairs
    std::int64_t cached = 0;  // cached earlier tokens that they read, in total
    std::int64_t count = 0;
  };
  [[nodiscard]] Pieces streamed(std::int64_t prompt, std::int64_t entries) const;
  [[nodiscard]] Op attend_streamed(const Op& all, double share, std::int64_t prompt,
                                   const Pieces& pieces) const;
  OpIndex score_prompt(OpIndex after, const PrefillState& moment);
  OpIndex prepare_method(OpIndex after, std::int64_t prompt);
  OpIndex add_after(OpIndex after, const Op& op);  // `after` below 0: no predecessor

  // in layer_decode.cpp, with decode
  [[nodiscard]] std::optional<KernelUse> decode_use(const DecodeState& moment,
                                                    const StepTraffic& traffic) const;
  OpIndex attend_cache(const Projected& qkv, const DecodeState& moment, const StepTraffic& traffic);

  // in layer_compress.cpp, with compress
  OpIndex compact(CacheTensors& cache, std::int64_t from, std::int64_t to, OpIndex after);

  // layer_feed_forward.cpp
  OpIndex dense_block(const BlockSpec& block, OpIndex after);
  /// Returns the kernel that runs all operators of the routed experts; it is attached to the first
  /// one added.
  std::optional<KernelUse> routed_use();
  OpIndex feed_forward(OpIndex after);
  /// Adds the transfer of tokens to the GPUs of their experts, or back.
  OpIndex exchange(std::string_view name, const ExpertShare& share, OpIndex after);

  const CostInput& in_;
  const Llm& llm_;
  const LayerSpec& spec_;
  const AttentionSpec& attention_;
  AttentionWork work_;
  std::vector<LayerMatrix> matrices_;  // of attention and state
  std::vector<std::size_t> sides_;     // tensors of an index, a gate or a state, until their use
  const MlpSpec& mlp_;
  CacheRows rows_;
  std::int32_t layer_;
  std::int64_t tokens_ = 0;          // per sequence in this step
  std::int64_t m_ = 0;               // tokens of the batch
  std::int64_t held_ = 0;            // of these, simultaneously alive
  std::int32_t passes_ = 0;          // passes over them
  bool repeated_ = false;            // tokens are the same on all GPUs that share prompts
  Dtype dtype_;                      // of activations
  std::optional<KernelUse> routed_;  // set while the operators of routed experts are added
  OpGraph graph_;
  std::optional<std::size_t> input_;      // the layer's hidden states
  std::optional<std::size_t> normed_;     // input of the attention block
  std::optional<std::size_t> attended_;   // output of attention, then of its projection
  std::optional<std::size_t> recurrent_;  // output of a recurrent state
  std::optional<std::size_t> block_out_;  // output of the feed-forward block
};

}  // namespace kvsim
