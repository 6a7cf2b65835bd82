// INT8, round-to-nearest in groups of channels, FP8, and INT8 with SmoothQuant's channel scales.

#include <algorithm>

#include "models/math/quantise.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kScaleBytes = 2;  // fp16

class Int8Format final : public RowFormat {
 public:
  void round_key(std::span<float> key) const override { round_int8_row(key); }
  void round_value(std::span<float> value) const override { round_int8_row(value); }
};

class Int8Rule final : public RowRule {
 public:
  using RowRule::RowRule;
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Int8Format>();
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kInt8; }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override { round_int8_row(row); }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + kScaleBytes};
  }
};

class RtnFormat final : public RowFormat {
 public:
  RtnFormat(std::int32_t group, std::int32_t levels) : group_{group}, levels_{levels} {}
  void round_key(std::span<float> key) const override {
    round_asymmetric_row(key, group_, levels_);
  }
  void round_value(std::span<float> value) const override {
    round_asymmetric_row(value, group_, levels_);
  }

 private:
  std::int32_t group_, levels_;
};

class RtnRule final : public RowRule {
 public:
  RtnRule(std::int32_t bits, std::int32_t group, bool copy)
      : RowRule{copy}, bits_{bits}, group_{group} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<RtnFormat>(group_, (1 << bits_) - 1);
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return bits_ == 8 ? Dtype::kInt8 : bits_ == 4 ? Dtype::kInt4 : Dtype::kInt2;
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    round_asymmetric_row(row, group_, (1 << bits_) - 1);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    const std::int64_t groups = (head_dim + group_ - 1) / group_;
    return Bytes{(static_cast<std::int64_t>(head_dim) * bits_ + 7) / 8 + groups * 2 * kScaleBytes};
  }

 private:
  std::int32_t bits_, group_;
};

enum class Fp8Scale : std::uint8_t { kHead, kToken, kTensor };
/// Scales that do not depend on the prompt.
struct Fp8Given {
  float key = 1, value = 1;
};

class Fp8Format final : public RowFormat {
 public:
  Fp8Format(Fp8 format, Fp8Scale scale, std::optional<Fp8Given> given)
      : format_{format}, scale_{scale}, given_{given.has_value()} {
    if (!given) return;
    key_scale_ = given->key;
    value_scale_ = given->value;
  }
  void calibrate(const EntryTable& entries, PromptScores& scores, std::size_t /*head*/) override {
    if (given_) return;
    if (scale_ == Fp8Scale::kHead) {
      key_scale_ = scale_of(abs_max(entries.keys()));
      value_scale_ = scale_of(abs_max(entries.values()));
    } else if (scale_ == Fp8Scale::kTensor) {
      const PromptMaxima maxima = prompt_maxima(scores);
      key_scale_ = scale_of(maxima.key);
      value_scale_ = scale_of(maxima.value);
    }
  }
  void round_key(std::span<float> key) const override { round(key, key_scale_); }
  void round_value(std::span<float> value) const override { round(value, value_scale_); }

 private:
  [[nodiscard]] float scale_of(float max) const { return max > 0 ? max / fp8_max(format_) : 1.0F; }
  void round(std::span<float> row, float scale) const {
    if (scale_ == Fp8Scale::kToken) scale = scale_of(abs_max(row));
    round_fp8_row(row, scale, format_);
  }
  Fp8 format_;
  Fp8Scale scale_;
  bool given_;
  float key_scale_ = 1, value_scale_ = 1;
};

class Fp8Rule final : public RowRule {
 public:
  Fp8Rule(Fp8 format, Fp8Scale scale, std::optional<Fp8Given> given)
      : format_{format}, scale_{scale}, given_{given} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Fp8Format>(format_, scale_, given_);
  }
  bool needs_layer() const override { return scale_ == Fp8Scale::kTensor && !given_; }
  Dtype dtype(Dtype /*recorded*/) const override {
    return format_ == Fp8::kE4m3 ? Dtype::kFp8E4m3 : Dtype::kFp8E5m2;
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    const float max = abs_max(row);
    const float scale = max > 0 ? max / fp8_max(format_) : 1.0F;
    round_fp8_row(row, given_ ? given_->key : scale, format_);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + (scale_ == Fp8Scale::kToken ? kFp32Bytes : 0)};
  }
  /// With one scale per tensor, both scales are constants of the layer and not counted.
  Bytes fixed_bytes(std::int32_t /*head_dim*/, Dtype /*recorded*/) const override {
    return Bytes{scale_ == Fp8Scale::kHead ? 2 * kFp32Bytes : 0};
  }
  /// An engine has a head's scales before its first token.
  bool fixed_rows() const override { return true; }

 private:
  static constexpr std::int64_t kFp32Bytes = 4;
  Fp8 format_;
  Fp8Scale scale_;
  std::optional<Fp8Given> given_;
};

class SmoothFormat final : public RowFormat {
 public:
  SmoothFormat(std::int32_t head_dim, double strength)
      : scales_(static_cast<std::size_t>(head_dim), 1.0F), strength_{strength} {}
  void calibrate(const EntryTable& /*entries*/, PromptScores& scores, std::size_t head) override {
    const HeadVectors& vectors = scores.heads()[head];
    std::vector<float> key_max(scales_.size(), 0.0F);
    std::vector<float> query_max(scales_.size(), 0.0F);
    const auto widen = [](std::vector<float>& max, std::span<const float> row) {
      for (std::size_t j = 0; j < max.size(); ++j) max[j] = std::max(max[j], std::abs(row[j]));
    };
    for (std::int64_t t = 0; t < vectors.prompt; ++t) {
      widen(key_max, vectors.key(t));
      for (std::int32_t g = 0; g < vectors.group; ++g) widen(query_max, vectors.query(g, t));
    }
    smoothing_scales(key_max, query_max, strength_, scales_);
  }
  /// (q s) . round(k / s) = q . (s round(k / s)): the row that unscaled queries attend to.
  void round_key(std::span<float> key) const override {
    for (std::size_t j = 0; j < key.size(); ++j) key[j] /= scales_[j];
    round_int8_row(key);
    for (std::size_t j = 0; j < key.size(); ++j) key[j] *= scales_[j];
  }
  void round_value(std::span<float> value) const override { round_int8_row(value); }

 private:
  std::vector<float> scales_;
  double strength_;
};

class SmoothRule final : public RowRule {
 public:
  SmoothRule(double strength, bool copy) : RowRule{copy}, strength_{strength} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& place, Dtype /*recorded*/) const override {
    return std::make_unique<SmoothFormat>(place.head_dim, strength_);
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kInt8; }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + kScaleBytes};
  }
  /// The channel scales, in fp16.
  Bytes fixed_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{2 * head_dim};
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;  // one scan for the maxima of queries and keys
    const double elements =
        static_cast<double>(prompt) * shape.head_dim * (shape.n_heads + shape.n_kv_heads);
    extra.flops = elements;
    extra.read = elements * bits_of(recorded) / 8.0;
    extra.launches = 3;
    return extra;
  }

 private:
  double strength_;
};

bool copies(MethodResolver& resolver) { return resolver.word("dequant") == "copy"; }

std::shared_ptr<const StoreRule> make_int8(MethodResolver& resolver) {
  return std::make_shared<Int8Rule>(copies(resolver));
}

std::shared_ptr<const StoreRule> make_rtn(MethodResolver& resolver) {
  return std::make_shared<RtnRule>(resolved_code_bits(resolver),
                                   static_cast<std::int32_t>(resolver.integer("quant_group")),
                                   copies(resolver));
}

template <Fp8 kFormat>
std::shared_ptr<const StoreRule> make_fp8(MethodResolver& resolver) {
  const std::string& word = resolver.word("scale");
  const Fp8Scale scale = word == "head"    ? Fp8Scale::kHead
                         : word == "token" ? Fp8Scale::kToken
                                           : Fp8Scale::kTensor;
  std::optional<Fp8Given> given;
  if (scale != Fp8Scale::kToken) {
    const std::string& source = resolver.word("source");
    if (source != "amax") given.emplace();
    if (source == "given") {
      given = Fp8Given{.key = static_cast<float>(resolver.number("key_scale")),
                       .value = static_cast<float>(resolver.number("value_scale"))};
    }
  }
  return std::make_shared<Fp8Rule>(kFormat, scale, given);
}

std::shared_ptr<const StoreRule> make_smooth(MethodResolver& resolver) {
  return std::make_shared<SmoothRule>(resolver.number("smoothing"), copies(resolver));
}

std::vector<ParamInfo> fp8_params() {
  return with_kept_layers(
      {word_param(
           "scale", {"head", "token", "tensor"},
           "rows with a common fp32 scale: a head's prompt (later tokens saturate), one row, "
           "or the layer's prompt",
           "OCP FP8; a serving engine's usual choice is tensor"),
       word_param("source", {"amax", "one", "given"},
                  "scales of a head or tensor: the prompt's maximum over the largest value, 1 (an "
                  "engine without scales in the checkpoint), or key_scale and value_scale",
                  "vLLM and LMDeploy: 1 if the checkpoint has none"),
       static_scale_param("key_scale", "keys"), static_scale_param("value_scale", "values")});
}

}  // namespace

AxisChoice store_int8() {
  return {.axis = "store", .name = "int8", .params = {dequant_param()}, .make = &make_int8};
}
AxisChoice store_rtn() {
  return {.axis = "store",
          .name = "rtn",
          .params = {code_bits_param(4, "KIVI's and MiniCache's baseline: 4 bits"),
                     integer_param("quant_group", "g", 32, 1, 65536, ">= 1",
                                   "channels of a row that share a step and a zero (fp16)",
                                   "KIVI's and MiniCache's baseline: 32"),
                     dequant_param()},
          .make = &make_rtn};
}
AxisChoice store_fp8_e4m3() {
  return {
      .axis = "store", .name = "fp8-e4m3", .params = fp8_params(), .make = &make_fp8<Fp8::kE4m3>};
}
AxisChoice store_fp8_e5m2() {
  return {
      .axis = "store", .name = "fp8-e5m2", .params = fp8_params(), .make = &make_fp8<Fp8::kE5m2>};
}
AxisChoice store_smoothquant() {
  return {.axis = "store",
          .name = "smoothquant-kv",
          .params = {number_param("smoothing", "a", 0.5, 0, 1, "[0, 1]",
                                  "how much of a channel's range moves from keys to queries, by "
                                  "the prompt's maxima",
                                  "SmoothQuant section 4.2: 0.5"),
                     dequant_param()},
          .make = &make_smooth};
}

}  // namespace kvsim
