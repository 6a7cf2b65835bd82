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

/// An operator of a layer's mixer over so many equal sequences, activations in `dtype`.
[[nodiscard]] Op mixer_operator(const MixerOp& one, Dtype dtype, double sequences);
/// Adds the operators of `span` to those of other spans of the same layer, one by one.
void add_mixer_operators(const LayerSpec& layer, const NewTokens& span, Dtype dtype,
                         double sequences, std::vector<Op>& out);
/// Times the operators of several spans as `times` calls over their mean.
void use_mean_kernels(const LayerSpec& layer, const NewTokens& mean, double sequences, double times,
                      std::vector<Op>& ops);
/// Whether scans of the layer take copies of states, and whether one of prompts takes the states of
/// decoding sequences too; gathering them and writing them back.
[[nodiscard]] bool scans_copies(const Stack& stack, const LayerSpec& layer);
[[nodiscard]] bool scans_decodes(const Stack& stack, const LayerSpec& layer);
[[nodiscard]] Op state_copies(const LayerSpec& layer, double sequences);
/// Bytes of an entry among `items`, all of which have the same size, and of those that a sequence
/// of `tokens` tokens holds.
[[nodiscard]] double entry_bytes(std::span<const CacheItem> items);
[[nodiscard]] double entries_held(std::span<const CacheItem> items, std::int64_t tokens);

/// Writes down the operators and tensors of one layer. Tensors follow Hugging Face's decoder layer
/// where the stack keeps its inputs; other stacks free each tensor after its last use.
///
/// Left out: weights' layout, attention sinks, the loop over experts (the tokens of all experts are
/// held at once, as a grouped GEMM does), prefill of a latent cache under weight absorption.
class LayerBuilder {
 public:
  LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens);

  [[nodiscard]] OpGraph prefill(const PrefillState& moment);
  /// The same in two parts: everything before the layer drops entries, and the rest, which copies
  /// of the builder may write for different numbers.
  struct CacheTensors {
    std::optional<std::size_t> keys, values, other;
  };
  struct Prefilled {
    CacheTensors cache;
    OpIndex at = 0;
  };
  [[nodiscard]] Prefilled prefill_whole(const PrefillState& moment);
  [[nodiscard]] OpGraph prefill_kept(Prefilled before, std::int64_t prompt, std::int64_t kept);
  /// Not `whole`: one operator in place of all that do not depend on the state, the projections and
  /// those outside them.
  [[nodiscard]] OpGraph decode(const DecodeState& moment, bool whole = true);
  [[nodiscard]] OpGraph compress(std::int64_t prompt, std::int64_t kept);
  /// All rows of the layer in one pass, `middle` between the projections in place of attention.
  /// Only tensors of the rows. Of the rows that Q, K and V are projected of, only `chosen` go on.
  /// `with_prompts`: rows of prompts are among them.
  [[nodiscard]] OpGraph around(std::span<const Op> middle, std::int64_t chosen, bool with_prompts);
  /// What a method does once the prompt is there: scores, its own work, compression layer by layer.
  [[nodiscard]] OpGraph finish(const PrefillState& moment);

 private:
  struct Projected {  // Q, K, V of the step, as attention takes them
    std::optional<std::size_t> q{}, k{}, v{};
    OpIndex op = 0;
  };
  /// Keys or values of a cache: how their tensors are called, and the operators that copy them.
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
    std::int64_t model = 0;           // columns that it takes and gives back
    std::optional<double> experts{};  // distinct routed ones whose weights are read; none: dense
    const WeightFormat* format = nullptr;  // that a checkpoint packs it into
  };
  static constexpr double kFp32Bytes = 4;

  // What every moment is written with, and the ends they share: layer_builder.cpp.
  [[nodiscard]] static double size(std::int64_t elements, Dtype dtype);  // bytes
  /// Tokens of each sequence that the layer's operators are over.
  void take(std::int64_t tokens);
  /// Holds a tensor as the allocator rounds it.
  std::size_t hold(std::string_view name, Owner owner, const Product& size, OpIndex first);
  /// A tensor that lives only during operator `at`.
  void hold_during(std::string_view name, Owner owner, const Product& size, OpIndex at);
  /// A tensor in the type of activations.
  std::size_t activation(std::string_view name, Product size, OpIndex first);
  /// Rows that are alive at once, as a product, to be multiplied with a row's elements.
  [[nodiscard]] Product rows() const;
  /// rows() of `width` elements; of `heads` heads if they divide it.
  [[nodiscard]] Product rows(std::int64_t width, std::int64_t heads, const char* unit) const;
  /// `width` elements for each of `n` rows that a block takes: rows(), or those routed to experts.
  [[nodiscard]] Product block_rows(std::int64_t n, std::int64_t width) const;
  /// Attention scores of a head and row for `columns` tokens or entries.
  [[nodiscard]] Product score_rows(std::int64_t columns, const char* unit) const;
  /// The output of a projection, by head where it has heads.
  [[nodiscard]] Product output_of(const LayerMatrix& matrix) const;
  /// Keys and values; only keys for a latent cache, neither if the layer holds no rows.
  [[nodiscard]] std::span<const CachePart> parts() const;
  [[nodiscard]] Bytes payload(const CachePart& part, std::int64_t entries) const;
  [[nodiscard]] Product part_size(const CachePart& part, std::int64_t entries) const;
  /// CacheRows::other.
  void hold_other(CacheTensors& cache, std::int64_t entries, OpIndex first);
  void hold_cache(CacheTensors& cache, const CachePart& part, std::int64_t entries, OpIndex first);
  void drop(const std::optional<std::size_t>& tensor, OpIndex last);
  /// The old tensor and its copy live together at operator `at`; after it only the copy does.
  void replace(CacheTensors& cache, const CachePart& part, std::string_view copy,
               Owner while_copied, std::int64_t entries, OpIndex at);
  /// A product with `copies` matrices of `in` x `out`, of which each row meets one.
  OpIndex gemm(std::string_view name, std::int64_t rows, std::int64_t in, std::int64_t out,
               OpIndex after, const MatrixPlace& place, double copies = 1);
  /// Partial sums of `elements` over all GPUs, where there are several.
  OpIndex all_reduce(std::int64_t elements, OpIndex after);
  OpIndex stream(std::string_view name, OpFamily family, std::int64_t read, std::int64_t written,
                 OpIndex after, std::int32_t launches = 1);
  OpIndex norm(std::string_view name, OpIndex after);
  /// From the layer's input to Q, K and V, and to what its index or state takes.
  Projected open();
  Projected project(OpIndex after);
  /// Matrices of indexes, gates and recurrent states.
  OpIndex project_sides(OpIndex after);
  [[nodiscard]] bool has_mixers() const { return !matrices_.empty(); }
  [[nodiscard]] bool has_attention() const { return attention_.n_heads > 0; }
  /// Operators of indexes and states: of a step that brings sequences to `tokens` tokens, and of a
  /// prompt in its pieces.
  OpIndex mix_step(OpIndex after, std::int64_t tokens);
  OpIndex mix_prompt(OpIndex after, std::int64_t prompt);
  /// Attention of layers without rows.
  OpIndex attend_items(const Projected& qkv, const DecodeState& moment);
  OpIndex attend_prompt_items(const Projected& qkv, std::int64_t prompt);
  /// Where matrix `i` of the layer is, and the matrix of a role. Errors: ContractError if there is
  /// none.
  [[nodiscard]] MatrixPlace place_of(std::size_t i) const {
    return {matrices_[i].part, spec_.formats[i]};
  }
  [[nodiscard]] std::size_t matrix_of(MatrixRole role) const;
  OpIndex concat_apart(std::string_view name, double bytes, Dtype element, std::int32_t launches,
                       OpIndex after);
  /// Eager attention between its two products: `n` logits of `element` (`matrix` of them held from
  /// `after` on, the product's operator) become fp32 probabilities, cast back where `element` is
  /// narrower. `mask` bytes are read in addition. `weights` is the resulting tensor of
  /// probabilities. Returns the last operator.
  OpIndex eager_softmax(std::int64_t n, const Product& matrix, double mask, Dtype element,
                        OpIndex after, std::size_t& weights);
  /// Q, K and V have been used: they go, unless the caller holds them to the block's end.
  void release_inputs(const Projected& qkv, OpIndex last);
  /// The attention block's own projection, and the end of what the block held.
  OpIndex project_out(const Projected& qkv, OpIndex after);
  OpIndex close(OpIndex attention);

  // in layer_prefill.cpp, with prefill
  /// Continues with `chosen` of the tokens of each sequence, whose rows are copied together.
  OpIndex choose(Projected& qkv, std::int64_t chosen);
  void load_reused(std::int64_t prompt);
  OpIndex attend_prompt(const Projected& qkv, std::int64_t prompt);
  [[nodiscard]] std::optional<KernelUse> prefill_use(std::int64_t prompt) const;
  /// Tokens of a prompt of which a pass computes as many as it takes.
  [[nodiscard]] std::int64_t piece_of(std::int64_t prompt) const {
    return std::min(prompt, held_ * prompt / tokens_);
  }
  [[nodiscard]] std::int64_t cached_before(std::int64_t prompt) const;
  struct Pieces {
    double pairs = 0;         // of query and key
    std::int64_t cached = 0;  // that they find of earlier ones, together
    std::int64_t count = 0;
  };
  [[nodiscard]] Pieces streamed(std::int64_t prompt, std::int64_t entries) const;
  [[nodiscard]] Op attend_streamed(const Op& all, double share, std::int64_t prompt,
                                   const Pieces& pieces) const;
  OpIndex score_prompt(OpIndex after, const PrefillState& moment);
  OpIndex prepare_method(OpIndex after, std::int64_t prompt);
  OpIndex add_after(OpIndex after, const Op& op);  // below 0: nothing before it

  // in layer_decode.cpp, with decode
  [[nodiscard]] std::optional<KernelUse> decode_use(const DecodeState& moment,
                                                    const StepTraffic& traffic) const;
  OpIndex attend_cache(const Projected& qkv, const DecodeState& moment, const StepTraffic& traffic);

  // in layer_compress.cpp, with compress
  OpIndex compact(CacheTensors& cache, std::int64_t from, std::int64_t to, OpIndex after);

  // layer_feed_forward.cpp
  OpIndex dense_block(const BlockSpec& block, OpIndex after);
  /// One kernel runs all of the routed experts' operators: it is attached to the first that is
  /// added.
  std::optional<KernelUse> routed_use();
  OpIndex feed_forward(OpIndex after);
  /// Tokens to the GPUs of their experts, or back.
  OpIndex exchange(std::string_view name, const ExpertShare& share, OpIndex after);

  const CostInput& in_;
  const Llm& llm_;
  const LayerSpec& spec_;
  const AttentionSpec& attention_;
  AttentionWork work_;
  std::vector<LayerMatrix> matrices_;  // of attention and state
  std::vector<std::size_t> sides_;  // tensors of an index, a gate or a state, until they are used
  const MlpSpec& mlp_;
  CacheRows rows_;
  std::int32_t layer_;
  std::int64_t tokens_ = 0;          // of a sequence in this step
  std::int64_t m_ = 0;               // tokens of the batch
  std::int64_t held_ = 0;            // of these, alive at once
  std::int32_t passes_ = 0;          // that take them
  bool repeated_ = false;            // they are the same on all GPUs that prompts are split over
  Dtype dtype_;                      // of activations
  std::optional<KernelUse> routed_;  // while the operators of routed experts are added
  OpGraph graph_;
  std::optional<std::size_t> input_;      // the layer's hidden states
  std::optional<std::size_t> normed_;     // input of the attention block
  std::optional<std::size_t> attended_;   // output of attention, then of its projection
  std::optional<std::size_t> recurrent_;  // output of a recurrent state
  std::optional<std::size_t> block_out_;  // output of the feed-forward block
};

}  // namespace kvsim
