#include "models/methods/resolve/on_layers.hpp"

#include <algorithm>
#include <utility>

#include "models/methods/resolve/forwarding.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class MethodOnLayers final : public ForwardingMethod {
 public:
  MethodOnLayers(std::shared_ptr<const Method> method, std::vector<std::int32_t> ordinals)
      : ForwardingMethod{std::move(method)}, ordinals_{std::move(ordinals)} {}

  std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t prompt,
                                           std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? tokens : inner().entries_held(l, prompt, tokens);
  }
  std::optional<std::int64_t> entries_attended(std::int32_t layer, std::int64_t prompt,
                                               std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? tokens : inner().entries_attended(l, prompt, tokens);
  }
  std::optional<StepEntries> step_entries(std::int32_t layer, std::int64_t prompt,
                                          std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) return StepEntries{.held = tokens, .attended = tokens};
    return inner().step_entries(l, prompt, tokens);
  }
  bool ragged() const override { return inner().ragged(); }
  void heads_held(std::int32_t layer, std::int64_t prompt, std::int64_t tokens,
                  std::span<std::int64_t> held) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) {
      std::fill(held.begin(), held.end(), tokens);
    } else {
      inner().heads_held(l, prompt, tokens, held);
    }
  }
  bool has_equal_layers() const override { return inner().has_equal_layers(); }
  StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             double attended, bool evicts) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? StepTraffic{} : inner().decode_traffic(l, shape, recorded, attended, evicts);
  }
  std::optional<CacheBytes> layer_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                        std::int64_t prompt, std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) return CacheBytes{};
    return inner().layer_bytes(l, shape, recorded, prompt, tokens);
  }
  CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                        std::int64_t prompt_entries, std::int64_t entries) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? CacheBytes{} : inner().rows_bytes(l, shape, recorded, prompt_entries, entries);
  }
  Bytes side_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                   std::int64_t prompt_entries, std::int64_t entries) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? Bytes{} : inner().side_bytes(l, shape, recorded, prompt_entries, entries);
  }
  std::int32_t layer_kind(std::int32_t layer) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? -1 : inner().layer_kind(l);
  }
  PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? PrefillExtra{} : inner().prefill_extra(l, shape, recorded, prompt);
  }
  PromptPart prompt_part(std::int32_t layer) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? PromptPart{} : inner().prompt_part(l);
  }
  PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                           std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? PrefillExtra{} : inner().masked_step(l, shape, recorded, tokens);
  }

 private:
  [[nodiscard]] std::int32_t ordinal(std::int32_t layer) const {
    KVSIM_CHECK(layer >= 0 && layer < std::ssize(ordinals_), "layer {} of {}", layer,
                ordinals_.size());
    return ordinals_[static_cast<std::size_t>(layer)];
  }

  std::vector<std::int32_t> ordinals_;
};

}  // namespace

std::shared_ptr<const Method> on_layers(std::shared_ptr<const Method> method,
                                        std::vector<std::int32_t> ordinals) {
  return std::make_shared<MethodOnLayers>(std::move(method), std::move(ordinals));
}

}  // namespace kvsim
