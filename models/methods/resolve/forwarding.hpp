#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "models/methods/method.hpp"
#include "models/units/check.hpp"

namespace kvsim {

/// A method that forwards to another one. Derived classes override its entries, and with them
/// layer_bytes, ragged heads and has_equal_layers.
class ForwardingMethod : public Method {
 public:
  /// Errors: ContractError if `method` is null.
  explicit ForwardingMethod(std::shared_ptr<const Method> method) : method_{std::move(method)} {
    KVSIM_CHECK(method_ != nullptr, "no method to forward to");
  }

  [[nodiscard]] const Method& forwarded() const { return *method_; }
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
  std::int32_t stored_heads(const LayerShape& shape) const override {
    return method_->stored_heads(shape);
  }
  Dtype store_dtype(Dtype recorded) const override { return method_->store_dtype(recorded); }
  StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             double attended, bool evicts) const override {
    return method_->decode_traffic(layer, shape, recorded, attended, evicts);
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
  bool fixed_rows() const override { return method_->fixed_rows(); }
  std::int32_t layer_kind(std::int32_t layer) const override { return method_->layer_kind(layer); }
  PrefillExtra prefill_extra(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    return method_->prefill_extra(layer, shape, recorded, prompt);
  }
  PromptPart prompt_part(std::int32_t layer) const override { return method_->prompt_part(layer); }
  PrefillExtra masked_step(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                           std::int64_t tokens) const override {
    return method_->masked_step(layer, shape, recorded, tokens);
  }

 protected:
  [[nodiscard]] const Method& inner() const { return *method_; }

 private:
  std::shared_ptr<const Method> method_;
};

}  // namespace kvsim
