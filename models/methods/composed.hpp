#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// What a composition is made of, every axis settled.
struct Composition {
  std::string name;
  Params params;
  std::shared_ptr<const SelectRule> select;
  std::shared_ptr<const BudgetRule> budget;
  std::shared_ptr<const MergeRule> merge;
  std::shared_ptr<const StoreRule> store;
  bool query_head = false;  // every query head keeps its own set: K and V stored n_heads times
  bool rerotate =
      false;            // keys take the positions of their cache index (StreamingLLM, section 3.2)
  bool bounded = true;  // false: nothing is ever dropped
};

/// A method that is a composition of axis choices. Its size law is min(tokens, budget) per layer.
class ComposedMethod final : public Method {
 public:
  explicit ComposedMethod(Composition parts) : parts_{std::move(parts)} {}

  [[nodiscard]] const Composition& parts() const { return parts_; }

  [[nodiscard]] const std::string& name() const override { return parts_.name; }
  [[nodiscard]] const Params& params() const override { return parts_.params; }
  [[nodiscard]] MethodNeeds needs() const override { return parts_.select->needs(); }
  [[nodiscard]] PrefillPeak prefill_peak() const override { return PrefillPeak::kPerLayer; }
  [[nodiscard]] Compaction compaction() const override;
  [[nodiscard]] std::int32_t extra_launches() const override;
  [[nodiscard]] bool merges() const override { return parts_.merge->merges(); }
  [[nodiscard]] std::optional<std::int64_t> entries_held(std::int32_t layer, std::int64_t prompt,
                                                         std::int64_t tokens) const override;
  [[nodiscard]] std::optional<std::int64_t> entries_attended(std::int32_t layer,
                                                             std::int64_t prompt,
                                                             std::int64_t tokens) const override;
  [[nodiscard]] bool layers_alike() const override { return parts_.budget->layers_alike(); }
  [[nodiscard]] std::int32_t stored_heads(const LayerShape& shape) const override;
  [[nodiscard]] Dtype store_dtype(Dtype recorded) const override;
  [[nodiscard]] Bytes side_bytes(std::int64_t entries, Dtype recorded) const override;
  [[nodiscard]] StepTraffic decode_traffic(const LayerShape& shape, Dtype recorded, double attended,
                                           bool evicts) const override;

 private:
  Composition parts_;
};

/// `method` as the composition it is. Errors: ContractError if it is none (a test's stand-in).
[[nodiscard]] const ComposedMethod& as_composed(const Method& method);

}  // namespace kvsim
