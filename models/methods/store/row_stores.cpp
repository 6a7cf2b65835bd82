// Formats that store every row separately: INT8, round-to-nearest in groups of channels, FP8, and
// INT8 with SmoothQuant's channel scales. No row waits in full precision: even the newest one is
// attended over as it is stored.

#include <algorithm>

#include "models/math/quantise.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kScaleBytes = 2;  // fp16

/// The rounding of one stored head's rows.
class RowFormat {
 public:
  virtual ~RowFormat() = default;
  /// The kept entries of the prompt are in the table, unrounded; `head` indexes scores.heads().
  virtual void calibrate(const EntryTable& /*entries*/, PromptScores& /*scores*/,
                         std::size_t /*head*/) {}
  virtual void round_key(std::span<float> key) const = 0;
  virtual void round_value(std::span<float> value) const = 0;
};

class RowRule : public StoreRule {
 public:
  explicit RowRule(bool copy) : copy_{copy} {}
  [[nodiscard]] virtual std::unique_ptr<RowFormat> format(const SessionPlace& place) const = 0;
  /// Bytes per head that do not depend on its entries.
  [[nodiscard]] virtual Bytes fixed_bytes(std::int32_t /*head_dim*/, Dtype /*recorded*/) const {
    return Bytes{0};
  }
  std::unique_ptr<Store> start(const SessionPlace& place, Dtype recorded) const override;
  bool rounds() const override { return true; }
  bool keeps_values() const override { return false; }
  Bytes kv_bytes(std::int64_t /*prompt_entries*/, std::int64_t entries, std::int32_t head_dim,
                 Dtype recorded) const override {
    return row_bytes(head_dim, recorded) * (2 * entries) + fixed_bytes(head_dim, recorded);
  }
  double bits_per_element(std::int32_t head_dim, Dtype recorded) const override {
    return 8.0 * static_cast<double>(row_bytes(head_dim, recorded).count()) / head_dim;
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    add_dequant(traffic, events, shape, copy_);
  }
  std::int32_t operators() const override {
    // For keys and values each: magnitude, its maximum and the step; codes divided, rounded,
    // clamped, cast; code and step written; the product of all codes, and the new row in it.
    constexpr std::int32_t kTensor = 3 + 4 + 2 + 2;
    return copy_ ? 2 * kTensor : 0;  // otherwise part of the attention kernel
  }

 private:
  bool copy_;
};

class RowStore final : public Store {
 public:
  RowStore(const RowRule& rule, const SessionPlace& place, Dtype recorded)
      : rule_{rule}, recorded_{recorded}, head_dim_{place.head_dim}, format_{rule.format(place)} {}
  void prompt_written(EntryTable& entries, PromptScores& scores, std::size_t head) override {
    format_->calibrate(entries, scores, head);
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) rewritten(entries, slot);
  }
  void appended(EntryTable& entries, std::int32_t slot) override { rewritten(entries, slot); }
  void rewritten(EntryTable& entries, std::int32_t slot) override {
    format_->round_key(entries.mutable_key(slot));
    format_->round_value(entries.mutable_value(slot));
  }
  Bytes kv_bytes(const EntryTable& entries) const override {
    return rule_.kv_bytes(entries.size(), entries.size(), head_dim_, recorded_);
  }

 private:
  const RowRule& rule_;
  Dtype recorded_;
  std::int32_t head_dim_;
  std::unique_ptr<RowFormat> format_;
};

std::unique_ptr<Store> RowRule::start(const SessionPlace& place, Dtype recorded) const {
  return std::make_unique<RowStore>(*this, place, recorded);
}

class Int8Format final : public RowFormat {
 public:
  void round_key(std::span<float> key) const override { round_int8_row(key); }
  void round_value(std::span<float> value) const override { round_int8_row(value); }
};

class Int8Rule final : public RowRule {
 public:
  using RowRule::RowRule;
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/) const override {
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
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/) const override {
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

class Fp8Format final : public RowFormat {
 public:
  Fp8Format(Fp8 format, Fp8Scale scale) : format_{format}, scale_{scale} {}
  void calibrate(const EntryTable& entries, PromptScores& scores, std::size_t head) override {
    static_cast<void>(head);
    if (scale_ == Fp8Scale::kHead) {
      key_scale_ = scale_of(abs_max(entries.keys()));
      value_scale_ = scale_of(abs_max(entries.values()));
    } else if (scale_ == Fp8Scale::kTensor) {
      const std::span<const HeadVectors> heads =
          scores.knows_layer() ? std::span<const HeadVectors>{scores.layer().heads}
                               : scores.heads();
      float max_key = 0;
      float max_value = 0;
      for (const HeadVectors& each : heads) {
        const auto rows = static_cast<std::size_t>(each.prompt * each.head_dim);
        max_key = std::max(max_key, abs_max(each.keys.first(rows)));
        max_value = std::max(max_value, abs_max(each.values.first(rows)));
      }
      key_scale_ = scale_of(max_key);
      value_scale_ = scale_of(max_value);
    }
  }
  void round_key(std::span<float> key) const override { round(key, key_scale_); }
  void round_value(std::span<float> value) const override { round(value, value_scale_); }

 private:
  [[nodiscard]] float scale_of(float most) const {
    return most > 0 ? most / fp8_max(format_) : 1.0F;
  }
  void round(std::span<float> row, float scale) const {
    if (scale_ == Fp8Scale::kToken) scale = scale_of(abs_max(row));
    round_fp8_row(row, scale, format_);
  }
  Fp8 format_;
  Fp8Scale scale_;
  float key_scale_ = 1, value_scale_ = 1;
};

class Fp8Rule final : public RowRule {
 public:
  Fp8Rule(Fp8 format, Fp8Scale scale) : RowRule{false}, format_{format}, scale_{scale} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/) const override {
    return std::make_unique<Fp8Format>(format_, scale_);
  }
  bool needs_layer() const override { return scale_ == Fp8Scale::kTensor; }
  Dtype dtype(Dtype /*recorded*/) const override {
    return format_ == Fp8::kE4m3 ? Dtype::kFp8E4m3 : Dtype::kFp8E5m2;
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    const float most = abs_max(row);
    round_fp8_row(row, most > 0 ? most / fp8_max(format_) : 1.0F, format_);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + (scale_ == Fp8Scale::kToken ? kFp32Bytes : 0)};
  }
  /// With one scale per tensor, both scales are constants of the layer, not of a head: not counted.
  Bytes fixed_bytes(std::int32_t /*head_dim*/, Dtype /*recorded*/) const override {
    return Bytes{scale_ == Fp8Scale::kHead ? 2 * kFp32Bytes : 0};
  }

 private:
  static constexpr std::int64_t kFp32Bytes = 4;
  Fp8 format_;
  Fp8Scale scale_;
};

class SmoothFormat final : public RowFormat {
 public:
  SmoothFormat(std::int32_t head_dim, double strength)
      : scales_(static_cast<std::size_t>(head_dim), 1.0F), strength_{strength} {}
  void calibrate(const EntryTable& /*entries*/, PromptScores& scores, std::size_t head) override {
    const HeadVectors& vectors = scores.heads()[head];
    std::vector<float> key_max(scales_.size(), 0.0F);
    std::vector<float> query_max(scales_.size(), 0.0F);
    const auto widen = [](std::vector<float>& most, std::span<const float> row) {
      for (std::size_t j = 0; j < most.size(); ++j) most[j] = std::max(most[j], std::abs(row[j]));
    };
    for (std::int64_t t = 0; t < vectors.prompt; ++t) {
      widen(key_max, vectors.key(t));
      for (std::int32_t g = 0; g < vectors.group; ++g) widen(query_max, vectors.query(g, t));
    }
    smoothing_scales(key_max, query_max, strength_, scales_);
  }
  /// (q s) . round(k / s) = q . (s round(k / s)): the row that unscaled queries see.
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
  std::unique_ptr<RowFormat> format(const SessionPlace& place) const override {
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
    PrefillExtra extra;  // maxima of queries and keys: one scan
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
  const std::string& scale = resolver.word("scale");
  return std::make_shared<Fp8Rule>(kFormat, scale == "head"    ? Fp8Scale::kHead
                                            : scale == "token" ? Fp8Scale::kToken
                                                               : Fp8Scale::kTensor);
}

std::shared_ptr<const StoreRule> make_smooth(MethodResolver& resolver) {
  return std::make_shared<SmoothRule>(resolver.number("smoothing"), copies(resolver));
}

std::vector<ParamInfo> fp8_params() {
  return {word_param("scale", {"head", "token", "tensor"},
                     "what shares an fp32 scale: a head's prompt (later tokens saturate), one row, "
                     "or the layer's prompt",
                     "OCP FP8; a serving engine's usual choice is tensor")};
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
