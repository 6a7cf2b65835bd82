#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

/// Returns the bytes of a convolution's window, whose columns are in the model's 16-bit format.
double window_bytes(const StateSpec& s, std::int64_t channels) {
  return bytes_in(static_cast<double>((s.conv_kernel - 1) * channels), Dtype::kBf16);
}

/// Delta rules: a matrix of value_dim x key_dim per head with a rank-one update per token.
class DeltaKind : public LayerKind {
 public:
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return name(); }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    const StateSpec& s = layer.state;
    return fmt::format("{}: {} states of {} x {} ({}), a convolution of {} taps", name(), s.n_heads,
                       s.value_dim, s.key_dim, name_of(s.dtype), s.conv_kernel);
  }
  void add_cache(const LayerSpec& layer, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& out) const override {
    const StateSpec& s = layer.state;
    const double matrices = double{1} * s.n_heads * s.value_dim * s.key_dim;
    out.push_back({.role = CacheRole::kState,
                   .entry_bytes = bytes_in(matrices, s.dtype) + window_bytes(s, channels(s))});
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    StateSpec& s = layer.state;
    s.n_heads = divided(s.n_heads, ranks, "heads with a state", model);
    s.n_groups = divided(s.n_groups, ranks, "key heads of recurrent layers", model);
  }
  /// A decode step computes S k, the decay, the rank-one update and S q: 7 operations per element
  /// of a state. A prompt is scanned in chunks as in flash-linear-attention: within a chunk its
  /// scores, a triangular solve and the products W and U; between chunks three products with the
  /// state.
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    constexpr double kChunk = 64;  // flash-linear-attention, chunk_gated_delta_rule
    const StateSpec& s = layer.state;
    const double state = double{1} * s.key_dim * s.value_dim;
    const double scanned =
        6 * state + kChunk * (6.0 * s.key_dim + 4.0 * s.value_dim) + kChunk * kChunk / 3;
    const double values = double{1} * s.n_heads * s.value_dim;
    add_recurrence(layer, span, kChunk,
                   {.name = "delta rule",
                    .flops = span.tokens * s.n_heads * (span.decodes ? 7 * state : scanned),
                    .read = span.tokens * (static_cast<double>(channels(s)) + values),
                    .written = span.tokens * values},
                   out);
  }

 protected:
  /// Channels of the convolution: queries, keys and values.
  [[nodiscard]] static std::int64_t channels(const StateSpec& s) {
    return 2 * std::int64_t{s.n_groups} * s.key_dim + std::int64_t{s.n_heads} * s.value_dim;
  }
  static void add(std::vector<LayerMatrix>& out, std::string_view module,
                  std::string_view operation, std::int64_t in, std::int64_t width,
                  WeightPart part = WeightPart::kLinear) {
    out.push_back({.module = module,
                   .operation = operation,
                   .result = "projection",
                   .in = in,
                   .out = width,
                   .part = part});
  }
};

/// Gated delta net (Qwen3-Next, Qwen3.5).
class GatedDelta final : public DeltaKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "gated-delta"; }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const StateSpec& s = layer.state;
    const std::int64_t values = std::int64_t{s.n_heads} * s.value_dim;
    add(out, "linear_attn.in_proj_qkv", "query, key and value projection", d_model, channels(s));
    add(out, "linear_attn.in_proj_z", "gate projection", d_model, values);
    add(out, "linear_attn.in_proj_b", "step projection", d_model, s.n_heads);
    add(out, "linear_attn.in_proj_a", "decay projection", d_model, s.n_heads);
    add_convolution(out, "linear_attn.conv1d", s.conv_kernel, channels(s));
    add_state_output(out, "linear_attn.out_proj", values, d_model);
  }
};

/// Kimi delta attention: as many key heads as value heads, and a decay per channel of a key.
class KimiDelta final : public DeltaKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "kimi-delta"; }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const StateSpec& s = layer.state;
    const std::int64_t width = std::int64_t{s.n_heads} * s.value_dim;
    add(out, "self_attn.q_proj", "query projection", d_model, width);
    add(out, "self_attn.k_proj", "key projection", d_model, width);
    add(out, "self_attn.v_proj", "value projection", d_model, width);
    add(out, "self_attn.f_a_proj", "decay down projection", d_model, s.value_dim);
    add(out, "self_attn.f_b_proj", "decay up projection", s.value_dim, width);
    add(out, "self_attn.b_proj", "step projection", d_model, s.n_heads);
    if (s.gate_rank > 0) {
      add(out, "self_attn.g_a_proj", "gate down projection", d_model, s.gate_rank);
      add(out, "self_attn.g_b_proj", "gate up projection", s.gate_rank, width);
    } else {
      add(out, "self_attn.g_proj", "gate projection", d_model, width);
    }
    add_convolution(out, "self_attn.qkv_conv1d", s.conv_kernel, channels(s));
    add_state_output(out, "self_attn.o_proj", width, d_model);
  }
};

}  // namespace

const LayerKind& gated_delta_kind() {
  static const GatedDelta kind;
  return kind;
}

const LayerKind& kimi_delta_kind() {
  static const KimiDelta kind;
  return kind;
}

}  // namespace kvsim
