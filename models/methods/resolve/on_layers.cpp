#include "models/methods/resolve/on_layers.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

class MethodOnLayers final : public Method {
 public:
  MethodOnLayers(std::shared_ptr<const Method> method, std::vector<std::int32_t> ordinals)
      : method_{std::move(method)}, ordinals_{std::move(ordinals)} {
    KVSIM_CHECK(method_ != nullptr, "no method for some layers");
  }

  const std::string& name() const override { return method_->name(); }
  const Params& params() const override { return method_->params(); }
  MethodNeeds needs() const override { return method_->needs(); }
  PrefillPeak prefill_peak() const override { return method_->prefill_peak(); }
  Compaction compaction() const override { return method_->compaction(); }
  std::int32_t extra_launches() const override { return method_->extra_launches(); }
  std::int32_t eager_operators(bool has_rows) const override {
    return method_->eager_operators(has_rows);
  }
  bool merges() const override { return method_->merges(); }
  std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t prompt,
                                           std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? tokens : method_->entries_held(l, prompt, tokens);
  }
  std::optional<std::int64_t> entries_attended(std::int32_t layer, std::int64_t prompt,
                                               std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? tokens : method_->entries_attended(l, prompt, tokens);
  }
  std::optional<StepEntries> step_entries(std::int32_t layer, std::int64_t prompt,
                                          std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) return StepEntries{.held = tokens, .attended = tokens};
    return method_->step_entries(l, prompt, tokens);
  }
  bool ragged() const override { return method_->ragged(); }
  void heads_held(std::int32_t layer, std::int64_t prompt, std::int64_t tokens,
                  std::span<std::int64_t> held) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) {
      std::fill(held.begin(), held.end(), tokens);
    } else {
      method_->heads_held(l, prompt, tokens, held);
    }
  }
  bool layers_alike() const override { return method_->layers_alike(); }
  std::int32_t stored_heads(const LayerShape& shape) const override {
    return method_->stored_heads(shape);
  }
  Dtype store_dtype(Dtype recorded) const override { return method_->store_dtype(recorded); }
  StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             double attended, bool evicts) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? StepTraffic{} : method_->decode_traffic(l, shape, recorded, attended, evicts);
  }
  std::optional<CacheBytes> layer_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                                        std::int64_t prompt, std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    if (l < 0) return CacheBytes{};
    return method_->layer_bytes(l, shape, recorded, prompt, tokens);
  }
  CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                        std::int64_t prompt_entries, std::int64_t entries) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? CacheBytes{} : method_->rows_bytes(l, shape, recorded, prompt_entries, entries);
  }
  Bytes side_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                   std::int64_t prompt_entries, std::int64_t entries) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? Bytes{} : method_->side_bytes(l, shape, recorded, prompt_entries, entries);
  }
  bool plain_rows() const override { return method_->plain_rows(); }
  std::int32_t layer_kind(std::int32_t layer) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? -1 : method_->layer_kind(l);
  }
  PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? PrefillExtra{} : method_->prefill_extra(l, shape, recorded, prompt);
  }
  PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                           std::int64_t tokens) const override {
    const std::int32_t l = ordinal(layer);
    return l < 0 ? PrefillExtra{} : method_->masked_step(l, shape, recorded, tokens);
  }

 private:
  [[nodiscard]] std::int32_t ordinal(std::int32_t layer) const {
    KVSIM_CHECK(layer >= 0 && layer < std::ssize(ordinals_), "layer {} of {}", layer,
                ordinals_.size());
    return ordinals_[static_cast<std::size_t>(layer)];
  }

  std::shared_ptr<const Method> method_;
  std::vector<std::int32_t> ordinals_;
};

}  // namespace

std::shared_ptr<const Method> on_layers(std::shared_ptr<const Method> method,
                                        std::vector<std::int32_t> ordinals) {
  return std::make_shared<MethodOnLayers>(std::move(method), std::move(ordinals));
}

}  // namespace kvsim
