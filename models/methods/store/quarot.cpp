// QuaRot's cache (Ashkboos et al. 2024, arXiv 2404.00456; fake_quant/quant_utils.py): each row
// times a Hadamard matrix, then asymmetric codes with a step and a zero point of the row.
//
//   low = clip min(min x, 0), high = clip max(max x, 0), step = (high - low) / (2^bits - 1)
//   zero = round(-low / step);  code = clamp(round(x / step) + zero, 0, 2^bits - 1)
//
// The released code only simulates rounding, in fp32. Step and zero point are counted as fp16. The
// rotation of values is part of the model's weights and takes no time.

#include <cmath>

#include "models/math/low_int.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

class QuarotFormat final : public RowFormat {
 public:
  QuarotFormat(std::int32_t levels, float clip) : levels_{levels}, clip_{clip} {}
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }

 private:
  void round(std::span<float> row) const {
    const float norm = std::sqrt(static_cast<float>(row.size()));
    hadamard(row);
    for (float& x : row) x /= norm;
    const QuarotRow scale = quarot_row(row, levels_, clip_);
    for (float& x : row) x = quarot_value(quarot_code(x, scale), scale);
    hadamard(row);
    for (float& x : row) x /= norm;
  }
  std::int32_t levels_;
  float clip_;
};

class QuarotRule final : public RowRule {
 public:
  QuarotRule(std::int32_t bits, double clip) : bits_{bits}, clip_{static_cast<float>(clip)} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<QuarotFormat>((1 << bits_) - 1, clip_);
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return bits_ == 8 ? Dtype::kInt8 : bits_ == 4 ? Dtype::kInt4 : Dtype::kInt2;
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    QuarotFormat{(1 << bits_) - 1, clip_}.round_key(row);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    constexpr std::int64_t kScaleBytes = 2 * 2;  // step and zero point in fp16
    return Bytes{static_cast<std::int64_t>(head_dim) * bits_ / 8 + kScaleBytes};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    traffic.extra_flops += rotation_flops(shape.head_dim) * (1 + shape.group);  // key and queries
  }

 private:
  std::int32_t bits_;
  float clip_;
};

std::shared_ptr<const StoreRule> make_quarot(MethodResolver& resolver) {
  check_rotation(resolver);
  const std::int32_t bits = resolved_code_bits(resolver);
  return std::make_shared<QuarotRule>(bits, resolver.number("clip"));
}

}  // namespace

AxisChoice store_quarot() {
  return {.axis = "store",
          .name = "quarot",
          .params = with_kept_layers(
              {code_bits_param(4, "QuaRot's tables: --k_bits 4 --v_bits 4"),
               number_param("clip", "", 1, 0.01, 1, "a number in [0.01, 1]",
                            "share of a row's range that codes cover",
                            "QuaRot fake_quant/utils.py, k_clip_ratio and v_clip_ratio")}),
          .make = &make_quarot};
}

}  // namespace kvsim
