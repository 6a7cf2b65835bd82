// Formats with 4-bit floating-point codes: NVFP4, SGLang's blocks of 16, UltraQuant.

#include <algorithm>

#include <fmt/format.h>

#include "models/math/low_float.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

/// Refuses head sizes that are not a multiple of the channels per scale.
void check_groups(MethodResolver& resolver, std::int32_t group) {
  const std::int32_t d = resolver.site().shape.head_dim;
  if (d % group != 0) {
    resolver.refuse(
        fmt::format("store={}: expected a head size divisible by {} (channels under one scale), "
                    "got {}",
                    resolver.choice("store"), group, d));
  }
}

enum class GlobalScale : std::uint8_t { kGiven, kMax448, kMax2688 };

class Nvfp4Format final : public RowFormat {
 public:
  Nvfp4Format(Nvfp4Search search, GlobalScale global, float key_scale, float value_scale)
      : search_{search}, global_{global}, key_scale_{key_scale}, value_scale_{value_scale} {}
  void calibrate(const EntryTable& /*entries*/, PromptScores& scores,
                 std::size_t /*head*/) override {
    if (global_ == GlobalScale::kGiven) return;
    const PromptMaxima maxima = prompt_maxima(scores);
    const float range = global_ == GlobalScale::kMax448 ? 448.0F : 2688.0F;
    key_scale_ = maxima.key > 0 ? maxima.key / range : 1.0F;
    value_scale_ = maxima.value > 0 ? maxima.value / range : 1.0F;
  }
  void round_key(std::span<float> key) const override { round(key, key_scale_); }
  void round_value(std::span<float> value) const override { round(value, value_scale_); }

 private:
  void round(std::span<float> row, float global) const {
    for (std::size_t at = 0; at + kGroup <= row.size(); at += kGroup) {
      const std::span<float> values = row.subspan(at, kGroup);
      const Nvfp4Group group = nvfp4_group(values, global, search_);
      for (std::size_t i = 0; i < kGroup; ++i) values[i] = nvfp4_value(group, i, global);
    }
  }
  static constexpr std::size_t kGroup = 16;
  Nvfp4Search search_;
  GlobalScale global_;
  float key_scale_, value_scale_;
};

/// Half a byte per channel and one byte per group of channels.
class Fp4Rule : public RowRule {
 public:
  explicit Fp4Rule(std::int32_t group) : group_{group} {}
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kFp4; }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim / 2 + head_dim / group_};
  }

 private:
  std::int32_t group_;
};

class Nvfp4Rule final : public Fp4Rule {
 public:
  Nvfp4Rule(Nvfp4Search search, GlobalScale global, float key_scale, float value_scale)
      : Fp4Rule{16}, format_{search, global, key_scale, value_scale}, global_{global} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Nvfp4Format>(format_);
  }
  bool needs_layer() const override { return global_ != GlobalScale::kGiven; }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    format_.round_key(row);
  }

 private:
  Nvfp4Format format_;
  GlobalScale global_;
};

class Mx16Format final : public RowFormat {
 public:
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }
  static void round(std::span<float> row) {
    constexpr std::size_t kGroup = 16;
    for (std::size_t at = 0; at + kGroup <= row.size(); at += kGroup) {
      const std::span<float> values = row.subspan(at, kGroup);
      const float scale = std::ldexp(1.0F, mx16_group(values).exponent);
      for (float& x : values) x = e2m1_value(e2m1_code(x / scale, E2m1Tie::kAway)) * scale;
    }
  }
};

class Mx16Rule final : public Fp4Rule {
 public:
  Mx16Rule() : Fp4Rule{16} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Mx16Format>();
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    Mx16Format::round(row);
  }
};

class UltraQuantFormat final : public RowFormat {
 public:
  void round_key(std::span<float> key) const override {
    const float scale = 1 / std::sqrt(static_cast<float>(key.size()));
    hadamard(key);
    for (float& x : key) x *= scale;
    round_value(key);
    hadamard(key);
    for (float& x : key) x *= scale;
  }
  void round_value(std::span<float> value) const override {
    constexpr std::size_t kGroup = 32;
    for (std::size_t at = 0; at + kGroup <= value.size(); at += kGroup) {
      const std::span<float> values = value.subspan(at, kGroup);
      const PowerGroup group = ultraquant_group(values);
      const float scale = group.is_zero ? 0.0F : std::ldexp(1.0F, group.exponent);
      for (float& x : values) {
        x = group.is_zero ? 0.0F : e2m1_value(e2m1_code(x / scale, E2m1Tie::kLower)) * scale;
      }
    }
  }
};

class UltraQuantRule final : public Fp4Rule {
 public:
  UltraQuantRule() : Fp4Rule{32} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<UltraQuantFormat>();
  }
  bool rounds_rows_apart() const override { return false; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    // The new key and each query are rotated.
    traffic.extra_flops += rotation_flops(shape.head_dim) * (1 + shape.group);
  }
};

std::shared_ptr<const StoreRule> make_nvfp4(MethodResolver& resolver) {
  check_groups(resolver, 16);
  const std::string& global = resolver.word("global");
  const bool given = global == "given";
  const auto scale = [&](const char* name) {
    return given ? static_cast<float>(resolver.number(name)) : 1.0F;
  };
  return std::make_shared<Nvfp4Rule>(
      resolver.word("scale_search") == "4over6" ? Nvfp4Search::kFourOverSix : Nvfp4Search::kMax6,
      global == "amax448"    ? GlobalScale::kMax448
      : global == "amax2688" ? GlobalScale::kMax2688
                             : GlobalScale::kGiven,
      scale("key_scale"), scale("value_scale"));
}

std::shared_ptr<const StoreRule> make_mx16(MethodResolver& resolver) {
  check_groups(resolver, 16);
  return std::make_shared<Mx16Rule>();
}

std::shared_ptr<const StoreRule> make_ultraquant(MethodResolver& resolver) {
  check_groups(resolver, 32);
  check_rotation(resolver);
  return std::make_shared<UltraQuantRule>();
}

}  // namespace

AxisChoice store_nvfp4() {
  return {
      .axis = "store",
      .name = "nvfp4",
      .params = with_kept_layers(
          {word_param("scale_search", {"max6", "4over6"},
                      "the scale of 16 channels makes their maximum 6, or 6 or 4, whichever "
                      "has the smaller error",
                      "vLLM pull request 45187"),
           word_param("global", {"one", "amax448", "amax2688", "given"},
                      "the fp32 scale of a layer's keys, and of its values: 1, the prompt's "
                      "maximum over 448 or 2688, or key_scale and value_scale",
                      "vLLM: 1 if the checkpoint has none"),
           static_scale_param("key_scale", "keys"), static_scale_param("value_scale", "values")}),
      .make = &make_nvfp4};
}
AxisChoice store_mx16() {
  return {.axis = "store", .name = "mx16", .params = with_kept_layers({}), .make = &make_mx16};
}
AxisChoice store_ultraquant() {
  return {.axis = "store",
          .name = "ultraquant",
          .params = with_kept_layers({}),
          .make = &make_ultraquant};
}

}  // namespace kvsim
