#include "models/methods/resolve/masked.hpp"

#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

class MaskedMethod final : public Method {
 public:
  explicit MaskedMethod(std::shared_ptr<const Method> method) : method_{std::move(method)} {
    KVSIM_CHECK(method_ != nullptr, "no method to mask");
  }

  const std::string& name() const override { return method_->name(); }
  const Params& params() const override { return method_->params(); }
  MethodNeeds needs() const override { return method_->needs(); }
  PrefillPeak prefill_peak() const override { return PrefillPeak::kPerLayer; }
  Compaction compaction() const override { return Compaction::kAppend; }
  std::int32_t extra_launches() const override { return method_->extra_launches(); }
  std::int32_t eager_operators(bool has_rows) const override {
    return method_->eager_operators(has_rows);
  }
  bool merges() const override { return method_->merges(); }
  std::optional<std::int64_t> entries_held(std::int32_t /*layer*/, std::int64_t /*prompt*/,
                                           std::int64_t tokens) const override {
    return tokens;
  }
  std::optional<std::int64_t> entries_attended(std::int32_t /*layer*/, std::int64_t /*prompt*/,
                                               std::int64_t tokens) const override {
    return tokens;
  }
  bool layers_alike() const override { return true; }
  std::int32_t stored_heads(const LayerShape& shape) const override {
    return method_->stored_heads(shape);
  }
  Dtype store_dtype(Dtype recorded) const override { return method_->store_dtype(recorded); }
  StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             double attended, bool /*evicts*/) const override {
    return method_->decode_traffic(layer, shape, recorded, attended, false);
  }
  CacheBytes rows_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                        std::int64_t prompt_entries, std::int64_t entries) const override {
    return method_->rows_bytes(layer, shape, recorded, prompt_entries, entries);
  }
  Bytes side_bytes(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                   std::int64_t prompt_entries, std::int64_t entries) const override {
    return method_->side_bytes(layer, shape, recorded, prompt_entries, entries);
  }
  bool plain_rows() const override { return method_->plain_rows(); }
  std::int32_t layer_kind(std::int32_t layer) const override { return method_->layer_kind(layer); }
  PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    return method_->prefill_extra(layer, shape, recorded, prompt);
  }
  PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                           std::int64_t tokens) const override {
    return method_->masked_step(layer, shape, recorded, tokens);
  }

 private:
  std::shared_ptr<const Method> method_;
};

}  // namespace

std::shared_ptr<const Method> masked(std::shared_ptr<const Method> method) {
  return std::make_shared<MaskedMethod>(std::move(method));
}

}  // namespace kvsim
