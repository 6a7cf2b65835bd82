// NVFP4 cold pages: TensorRT-LLM, tensorrt_llm/_torch/kv_cache_compression/
// quantization_for_cold_page/nvfp4.py (af8c3bfa), docs/source/developer-guide/
// kv-cache-cold-page-codec.md (4fc41c5e). Each page and layer has one blob: the codes of keys and
// values, then their scales. One kernel reads the GPU's page and writes the blob into mapped host
// memory, another does the reverse.

#include <cmath>

#include <fmt/format.h>

#include "models/math/low_float.hpp"
#include "models/methods/tier/tier.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kGroup = 16;      // channels per scale
constexpr std::int64_t kAlignment = 16;  // of a blob, in bytes
/// Operations per element: magnitude, maximum, division, rounding by comparisons (an upper bound:
/// the documentation states fewer than 10).
constexpr double kEncodeFlops = 10;
constexpr double kDecodeFlops = 1;

class Nvfp4Tier final : public TierRule {
 public:
  Nvfp4Tier(double returned, Nvfp4Search search, float key_scale, float value_scale)
      : TierRule{returned}, search_{search}, key_scale_{key_scale}, value_scale_{value_scale} {}

  double link_bytes(const TierPage& page) const override {
    const std::int64_t elements = page.tokens * (page.keys + page.values);
    const std::int64_t blob = elements / 2 + elements / kGroup;
    return static_cast<double>((blob + kAlignment - 1) / kAlignment * kAlignment);
  }
  TierWork encode(const TierPage& page) const override {
    return {.flops = kEncodeFlops * page.elements(), .read = page.bytes()};
  }
  TierWork decode(const TierPage& page) const override {
    return {.flops = kDecodeFlops * page.elements(), .written = page.bytes()};
  }
  double pass(TierRows& rows) const override {
    const auto sent = static_cast<std::size_t>(rows.tokens * rows.width);
    pass_side(std::span{rows.keys}.first(sent), key_scale_, rows.stored);
    pass_side(std::span{rows.values}.first(sent), value_scale_, rows.stored);
    return link_bytes(rows.page());
  }

 private:
  /// A head consists of whole groups, so rows of one head and of all heads have the same groups.
  void pass_side(std::span<float> values, float global, Dtype stored) const {
    for (std::size_t at = 0; at + kGroup <= values.size(); at += kGroup) {
      const std::span<float> channels = values.subspan(at, kGroup);
      const Nvfp4Group group = nvfp4_group(channels, global, search_);
      // The two scales are multiplied first, in fp32.
      const float scale = e4m3_value(group.scale) * global;
      for (std::size_t i = 0; i < channels.size(); ++i) {
        channels[i] = as_returned(e2m1_value(group.codes[i]) * scale, stored);
      }
    }
  }

  Nvfp4Search search_;
  float key_scale_, value_scale_;
};

std::shared_ptr<const TierRule> make_nvfp4(MethodResolver& resolver) {
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d % kGroup != 0) {
    resolver.refuse(
        fmt::format("tier=nvfp4: expected a head size divisible by 16 (channels under one scale), "
                    "got {}",
                    d));
  }
  return std::make_shared<Nvfp4Tier>(resolve_returned(resolver), Nvfp4Search::kMax6,
                                     static_cast<float>(resolver.number("tier_key_scale")),
                                     static_cast<float>(resolver.number("tier_value_scale")));
}

}  // namespace

AxisChoice tier_nvfp4() {
  const auto scale = [](std::string name, const char* side) {
    return number_param(std::move(name), "s", 1, 1e-12, 1e12, "> 0",
                        fmt::format("fp32 scale of a layer's {} in the tier", side),
                        "1; a ModelOpt NVFP4 checkpoint contains one (scale_checkpoint_path)");
  };
  return {.axis = "tier",
          .name = "nvfp4",
          .params = {returned_param(), scale("tier_key_scale", "keys"),
                     scale("tier_value_scale", "values")},
          .make = &make_nvfp4,
          .takes_budget = false};
}

}  // namespace kvsim
