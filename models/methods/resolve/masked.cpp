#include "models/methods/resolve/masked.hpp"

#include <utility>

#include "models/methods/resolve/forwarding.hpp"

namespace kvsim {
namespace {

class MaskedMethod final : public ForwardingMethod {
 public:
  using ForwardingMethod::ForwardingMethod;

  PrefillPeak prefill_peak() const override { return PrefillPeak::kPerLayer; }
  Compaction compaction() const override { return Compaction::kAppend; }
  std::optional<std::int64_t> entries_held(std::int32_t /*layer*/, std::int64_t /*prompt*/,
                                           std::int64_t tokens) const override {
    return tokens;
  }
  std::optional<std::int64_t> entries_attended(std::int32_t /*layer*/, std::int64_t /*prompt*/,
                                               std::int64_t tokens) const override {
    return tokens;
  }
  bool has_equal_layers() const override { return true; }
  /// Tokens that a layer would drop are still passed on to the next layer.
  PromptPart prompt_part(std::int32_t layer) const override {
    const PromptPart part = inner().prompt_part(layer);
    return part.attended < 1 ? PromptPart{} : part;
  }
  StepTraffic decode_traffic(std::int32_t layer, const LayerShape& shape, Dtype recorded,
                             double attended, bool /*evicts*/) const override {
    return inner().decode_traffic(layer, shape, recorded, attended, false);
  }
};

}  // namespace

std::shared_ptr<const Method> masked(std::shared_ptr<const Method> method) {
  return std::make_shared<MaskedMethod>(std::move(method));
}

}  // namespace kvsim
