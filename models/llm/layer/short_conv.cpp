#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

/// A gated short convolution (LFM2): one projection to two gates and a value per channel, the first
/// gate on the value, a convolution over the last tokens, the second gate on its result. The state
/// is the columns before the newest.
class ShortConv final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "short-conv"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return name(); }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    return fmt::format("short-conv: {} channels, a convolution of {} taps", layer.state.n_heads,
                       layer.state.conv_kernel);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const std::int64_t channels = layer.state.n_heads;
    out.push_back({.module = "conv.in_proj",
                   .operation = "gates and value projection",
                   .result = "projection",
                   .in = d_model,
                   .out = 3 * channels});
    add_convolution(out, "conv.conv", layer.state.conv_kernel, channels);
    add_state_output(out, "conv.out_proj", channels, d_model);
  }
  void add_cache(const LayerSpec& layer, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& out) const override {
    const StateSpec& s = layer.state;
    out.push_back({.role = CacheRole::kState,
                   .entry_bytes = bytes_in(double{1} * (s.conv_kernel - 1) * s.n_heads, s.dtype)});
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    layer.state.n_heads = divided(layer.state.n_heads, ranks, "channels of convolutions", model);
  }
  /// Both gates: one product per channel each. The convolution itself is one of the matrices.
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    const double channels = span.tokens * layer.state.n_heads;
    add_recurrence(
        layer, span, span.tokens,
        {.name = "gates", .flops = 2 * channels, .read = 3 * channels, .written = channels}, out);
  }
};

}  // namespace

const LayerKind& short_conv_kind() {
  static const ShortConv kind;
  return kind;
}

}  // namespace kvsim
