#include <algorithm>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

void add(std::vector<LayerMatrix>& out, std::string_view module, std::string_view operation,
         std::int64_t in, std::int64_t width, WeightPart part = WeightPart::kLinear) {
  out.push_back({.module = module,
                 .operation = operation,
                 .result = "projection",
                 .in = in,
                 .out = width,
                 .part = part});
}

/// Returns the state of one layer, and the columns of its convolution's window in 16 bits.
CacheItem state_item(const StateSpec& s, std::int64_t channels) {
  const double matrix = double{1} * s.n_heads * s.value_dim * s.key_dim;
  const double window = static_cast<double>((s.conv_kernel - 1) * channels);
  return {.role = CacheRole::kState,
          .entry_bytes = bytes_in(matrix, s.dtype) + bytes_in(window, Dtype::kBf16)};
}

/// Mamba 2 (Nemotron-H, Granite-4-H, Falcon-H1): heads of value_dim channels with key_dim states
/// per channel; B and C are shared by the heads of a group.
class Mamba2 final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "mamba2"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return name(); }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    const StateSpec& s = layer.state;
    return fmt::format("mamba2: {} states of {} x {} ({}) in {} groups, a convolution of {} taps",
                       s.n_heads, s.value_dim, s.key_dim, name_of(s.dtype), s.n_groups,
                       s.conv_kernel);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const StateSpec& s = layer.state;
    const std::int64_t inner = std::int64_t{s.n_heads} * s.value_dim;
    add(out, "mamba.in_proj", "input projection", d_model, inner + channels(s) + s.n_heads);
    add_convolution(out, "mamba.conv1d", s.conv_kernel, channels(s));
    add_state_output(out, "mamba.out_proj", inner, d_model);
  }
  void add_cache(const LayerSpec& layer, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& out) const override {
    out.push_back(state_item(layer.state, channels(layer.state)));
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    StateSpec& s = layer.state;
    s.n_heads = divided(s.n_heads, ranks, "heads with a state", model);
    // If ranks do not divide the groups, there is one group per rank (vLLM mamba_utils.py).
    s.n_groups = s.n_groups % ranks == 0 ? s.n_groups / ranks : 1;
  }
  /// A decode step computes the decay, B x, their sum and C h: 6 operations per element of a state.
  /// A prompt is scanned in chunks: products with the state and, within a chunk, C B of a group and
  /// their product with x below the diagonal (Dao and Gu 2024, section 6).
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    constexpr double kChunk = 256;  // mamba_ssm, ssd_combined: default chunk_size
    const StateSpec& s = layer.state;
    const double state = double{1} * s.value_dim * s.key_dim;
    const double shared = double{1} * s.key_dim * s.n_groups / s.n_heads;
    const double scanned = 4 * state + kChunk * (shared + s.value_dim);
    const double inner = double{1} * s.n_heads * s.value_dim;
    add_recurrence(layer, span, kChunk,
                   {.name = "state space scan",
                    .flops = span.tokens * s.n_heads * (span.decodes ? 6 * state : scanned),
                    .read = span.tokens * (static_cast<double>(channels(s)) + inner + s.n_heads),
                    .written = span.tokens * inner},
                   out);
  }

 private:
  [[nodiscard]] static std::int64_t channels(const StateSpec& s) {
    return std::int64_t{s.n_heads} * s.value_dim + 2 * std::int64_t{s.n_groups} * s.key_dim;
  }
};

/// Mamba 1 (Jamba): key_dim states per channel, n_heads channels.
class Mamba1 final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "mamba1"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return name(); }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    const StateSpec& s = layer.state;
    return fmt::format("mamba1: {} channels of {} states ({}), a convolution of {} taps", s.n_heads,
                       s.key_dim, name_of(s.dtype), s.conv_kernel);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const StateSpec& s = layer.state;
    add(out, "mamba.in_proj", "input projection", d_model, 2 * std::int64_t{s.n_heads});
    add_convolution(out, "mamba.conv1d", s.conv_kernel, s.n_heads);
    add(out, "mamba.x_proj", "step, B and C projection", s.n_heads,
        s.gate_rank + 2 * std::int64_t{s.key_dim});
    add(out, "mamba.dt_proj", "step up projection", s.gate_rank, s.n_heads);
    add_state_output(out, "mamba.out_proj", s.n_heads, d_model);
  }
  void add_cache(const LayerSpec& layer, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& out) const override {
    out.push_back(state_item(layer.state, layer.state.n_heads));
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    layer.state.n_heads = divided(layer.state.n_heads, ranks, "channels with a state", model);
  }
  /// Token by token in both phases: 6 operations per element of a state, which a prompt's kernel
  /// reads and writes once (Gu and Dao 2023, section 3.3.2).
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    const StateSpec& s = layer.state;
    const double channels = s.n_heads;
    add_recurrence(layer, span, span.tokens,
                   {.name = "selective scan",
                    .flops = span.tokens * channels * 6 * s.key_dim,
                    .read = span.tokens * (3 * channels + 2.0 * s.key_dim),
                    .written = span.tokens * channels},
                   out);
  }
};

}  // namespace

const LayerKind& mamba1_kind() {
  static const Mamba1 kind;
  return kind;
}

const LayerKind& mamba2_kind() {
  static const Mamba2 kind;
  return kind;
}

}  // namespace kvsim
