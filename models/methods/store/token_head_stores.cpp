// Formats of engines with one scale per token and KV head: vLLM's fp8, int8 and int4 per
// token-head, and LMDeploy's int8 and int4. Each row has separate scales, so calibration is not
// needed.

#include <algorithm>
#include <cmath>

#include "models/math/half.hpp"
#include "models/math/low_int.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kFp32Bytes = 4;

class Int8TokenFormat final : public RowFormat {
 public:
  explicit Int8TokenFormat(bool truncates) : truncates_{truncates} {}
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }
  void round(std::span<float> row) const {
    const float step = int8_token_step(row);
    for (float& x : row) x = static_cast<float>(int8_token_code(x, step, truncates_)) * step;
  }

 private:
  bool truncates_;
};

class Int8TokenRule final : public RowRule {
 public:
  explicit Int8TokenRule(bool truncates) : format_{truncates} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Int8TokenFormat>(format_);
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kInt8; }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override { format_.round(row); }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + kFp32Bytes};
  }

 private:
  Int8TokenFormat format_;
};

class Fp8TokenFormat final : public RowFormat {
 public:
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }
  static void round(std::span<float> row) {
    const float scale = std::max(abs_max(row) / fp8_max(Fp8::kE4m3), 1e-6F);
    const float inverse = 1 / scale;
    for (float& x : row) x = round_to_fp8(x * inverse, Fp8::kE4m3) * scale;
  }
};

class Fp8TokenRule final : public RowRule {
 public:
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<Fp8TokenFormat>();
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kFp8E4m3; }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    Fp8TokenFormat::round(row);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim + kFp32Bytes};
  }
};

class Int4RotatedFormat final : public RowFormat {
 public:
  explicit Int4RotatedFormat(Dtype recorded) : recorded_{recorded} {}
  void round_key(std::span<float> key) const override { round(key, recorded_); }
  void round_value(std::span<float> value) const override { round(value, recorded_); }
  static void round(std::span<float> row, Dtype recorded) {
    hadamard(row);
    for (float& x : row) x = as_stored(x, recorded);
    const Int4Rotated step = int4_rotated_step(row);
    const auto d = static_cast<float>(row.size());
    for (float& x : row) {
      x = static_cast<float>(int4_rotated_code(x, step) - step.zero) * step.stored();
    }
    hadamard(row);
    for (float& x : row) x /= d;
  }

 private:
  Dtype recorded_;
};

class Int4RotatedRule final : public RowRule {
 public:
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/, Dtype recorded) const override {
    return std::make_unique<Int4RotatedFormat>(recorded);
  }
  Dtype dtype(Dtype /*recorded*/) const override { return Dtype::kInt4; }
  void round_row(std::span<float> row, Dtype recorded) const override {
    Int4RotatedFormat::round(row, recorded);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    return Bytes{head_dim / 2 + kFp32Bytes};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    // The new key and value, and each query head's query and output, are rotated.
    traffic.extra_flops += rotation_flops(shape.head_dim) * (2 + 2 * shape.group);
  }
};

class LmdeployFormat final : public RowFormat {
 public:
  LmdeployFormat(std::int32_t levels, bool pytorch, Dtype recorded)
      : levels_{levels}, pytorch_{pytorch}, recorded_{recorded} {}
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }

 private:
  void round(std::span<float> row) const {
    const LmdeployRow scale = lmdeploy_row(row, levels_, pytorch_, recorded_);
    for (float& x : row) x = lmdeploy_value(lmdeploy_code(x, scale), scale);
  }
  std::int32_t levels_;
  bool pytorch_;
  Dtype recorded_;
};

class LmdeployRule final : public RowRule {
 public:
  LmdeployRule(std::int32_t bits, bool pytorch) : bits_{bits}, pytorch_{pytorch} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/, Dtype recorded) const override {
    return std::make_unique<LmdeployFormat>((1 << bits_) - 1, pytorch_, recorded);
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return bits_ == 8 ? Dtype::kInt8 : Dtype::kInt4;
  }
  void round_row(std::span<float> row, Dtype recorded) const override {
    LmdeployFormat{(1 << bits_) - 1, pytorch_, recorded}.round_key(row);
  }
  /// Step and minimum have the model's dtype.
  Bytes row_bytes(std::int32_t head_dim, Dtype recorded) const override {
    return Bytes{static_cast<std::int64_t>(head_dim) * bits_ / 8} + bytes_of(2, recorded);
  }

 private:
  std::int32_t bits_;
  bool pytorch_;
};

std::shared_ptr<const StoreRule> make_int8_token(MethodResolver& resolver) {
  return std::make_shared<Int8TokenRule>(resolver.word("rounding") == "trunc");
}

std::shared_ptr<const StoreRule> make_fp8_token(MethodResolver& /*resolver*/) {
  return std::make_shared<Fp8TokenRule>();
}

std::shared_ptr<const StoreRule> make_int4_rotated(MethodResolver& resolver) {
  check_rotation(resolver);
  return std::make_shared<Int4RotatedRule>();
}

std::shared_ptr<const StoreRule> make_lmdeploy(MethodResolver& resolver) {
  const std::int32_t bits = resolved_code_bits(resolver);
  if (bits == 2) resolver.refuse("bits: expected 4 or 8, got 2");
  return std::make_shared<LmdeployRule>(bits, resolver.word("engine") == "pytorch");
}

}  // namespace

AxisChoice store_int8_token() {
  return {.axis = "store",
          .name = "int8-token",
          .params = with_kept_layers({word_param(
              "rounding", {"nearest", "trunc"},
              "codes are rounded to nearest, or towards zero as vLLM did before June 2026",
              "vLLM pull request 45361")}),
          .make = &make_int8_token};
}
AxisChoice store_fp8_token() {
  return {.axis = "store",
          .name = "fp8-token",
          .params = with_kept_layers({}),
          .make = &make_fp8_token};
}
AxisChoice store_int4_rotated() {
  return {.axis = "store",
          .name = "int4-rht",
          .params = with_kept_layers({}),
          .make = &make_int4_rotated};
}
AxisChoice store_lmdeploy() {
  return {.axis = "store",
          .name = "lmdeploy",
          .params = with_kept_layers(
              {code_bits_param(8, "LMDeploy: --quant-policy 4 or 8"),
               word_param("engine", {"turbomind", "pytorch"},
                          "TurboMind stores the minimum and computes in the model's type; the "
                          "PyTorch engine stores a zero point and does not clamp",
                          "LMDeploy src/turbomind/kernels/attention/quantization.h; "
                          "pytorch/kernels/cuda/fill_kv_cache.py")}),
          .make = &make_lmdeploy};
}

}  // namespace kvsim
