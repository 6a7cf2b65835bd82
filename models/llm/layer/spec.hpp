#pragma once

#include <array>
#include <cstdint>

#include "models/units/dtype.hpp"

namespace kvsim {

struct WeightFormat;  // models/llm/weight_format.hpp

/// The part of a model that a matrix belongs to: formats quantize some parts and exclude others.
enum class WeightPart : std::uint8_t {
  kEmbedding,
  kHead,     // the output projection
  kLinear,   // attention and dense feed-forward
  kExperts,  // routed experts
  kPlain     // routers, norms, biases, position tables: never quantised
};

/// An index, which selects the entries that a layer's queries attend to: a cache of index keys next
/// to the layer's own cache, and query heads that score them.
struct IndexSpec {
  std::int32_t n_heads = 0;   // query heads of the index; 0: no index, all entries are visible
  std::int32_t head_dim = 0;  // of an index key
  std::int32_t top_k = 0;     // maximum number of entries per query
  bool is_borrowed = false;   // reuses the selection of an earlier layer; has no index keys

  friend bool operator==(const IndexSpec&, const IndexSpec&) = default;
};

/// Attention and cache of one layer. Counts are for the whole model (before tensor parallelism).
/// models/llm/layer/layer_kind.hpp derives the layer's kind from these numbers; other code queries
/// the kind.
struct AttentionSpec {
  std::int32_t n_heads = 0;     // query heads; 0: the layer has no attention
  std::int32_t n_kv_heads = 0;  // KV heads; divides n_heads
  std::int32_t head_dim = 0;    // of Q and K; derived only if the configuration does not state it
  std::int32_t v_head_dim = 0;  // of V
  std::int32_t window = 0;      // sliding window in tokens; 0: full attention
  std::int32_t chunk = 0;       // tokens attend only within chunks of this many tokens; 0: all

  // Multi-head latent attention (DeepSeek): kv_lora_rank > 0. The cache then holds one latent of
  // kv_lora_rank elements and one shared RoPE key of rope_head_dim elements per token, independent
  // of n_kv_heads.
  std::int32_t kv_lora_rank = 0;
  std::int32_t q_lora_rank = 0;
  std::int32_t rope_head_dim = 0;

  IndexSpec index{};

  // Compressed entries (DeepSeek-V4): o_groups > 0. In addition to the window the layer holds one
  // entry per `ratio` tokens; 0: only the window.
  std::int32_t ratio = 0;
  std::int32_t o_groups = 0;     // groups of heads with separate low-rank output projections
  std::int32_t o_lora_rank = 0;  // width of each output projection

  // For a shard: ranks of its group that a sequence's entries are distributed over round-robin
  // (decode context parallelism).
  std::int32_t context_ranks = 1;

  std::int32_t gate_dim = 0;   // columns of the output gate per query head; 0: no gate
  bool shares_cache = false;   // reads an earlier layer of its kind, and holds no cache
  bool has_kv_weights = true;  // projects keys and values
  bool has_v_weights = true;   // false: values are the keys before rotation

  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

enum class StateKind : std::uint8_t {
  kNone,
  kGatedDelta,  // gated delta net (Qwen3-Next, Qwen3.5)
  kKimiDelta,   // Kimi delta attention
  kMamba1,
  kMamba2,
  kShortConv  // gated convolution over the last tokens (LFM2); no matrix
};

/// A recurrent state of fixed size per sequence: one matrix per head, and the last columns of a
/// short convolution.
struct StateSpec {
  StateKind kind = StateKind::kNone;
  std::int32_t n_heads = 0;      // heads with one matrix each; channels of Mamba 1, convolutions
  std::int32_t n_groups = 0;     // heads of keys (delta nets), groups of B and C (Mamba 2)
  std::int32_t key_dim = 0;      // columns of a head's matrix: key width, or Mamba's state size
  std::int32_t value_dim = 0;    // rows of a head's matrix; 1 for Mamba 1
  std::int32_t conv_kernel = 0;  // taps of the convolution; it holds one column fewer
  std::int32_t gate_rank = 0;    // of low-rank gates (Kimi), of the time step (Mamba 1); 0: full
  Dtype dtype = Dtype::kBf16;    // of the matrix; the convolution's columns are 16-bit

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

/// A layer's feed-forward block: dense, or a mixture of experts if n_experts > 0.
struct MlpSpec {
  std::int32_t d_ff = 0;         // width of the dense block, or of one routed expert; 0: no block
  bool gated = true;             // gate and up projection (SwiGLU, GeGLU); false: only up
  std::int32_t n_experts = 0;    // routed experts
  std::int32_t top_k = 0;        // routed experts per token
  std::int32_t shared_d_ff = 0;  // total width of the shared experts, which every token visits
  std::int32_t latent_dim = 0;   // input and output width of routed experts; 0: d_model
  bool has_shared_gate = false;  // one gate value per token scales the shared experts
  // Formats in a quantised checkpoint of the dense block or the routed experts, of the shared
  // experts, and of the projections to and from the latent width. Null: not packed.
  const WeightFormat* format = nullptr;
  const WeightFormat* shared_format = nullptr;
  const WeightFormat* latent_format = nullptr;

  friend bool operator==(const MlpSpec&, const MlpSpec&) = default;
};

/// Formats in a quantised checkpoint of the matrices of a layer's mixers, in the order of
/// mixer_matrices(). Null: not packed.
inline constexpr std::size_t kMaxMixerMatrices = 16;
using MixerFormats = std::array<const WeightFormat*, kMaxMixerMatrices>;

/// One layer: attention, a recurrent state, both in parallel or neither; then a feed-forward block
/// or none.
struct LayerSpec {
  AttentionSpec attention{};
  MlpSpec mlp{};
  StateSpec state{};
  MixerFormats formats{};

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

}  // namespace kvsim
