// QuaRot's cache (Ashkboos et al. 2024, arXiv 2404.00456; fake_quant/quant_utils.py): each row
// times a Hadamard matrix, then asymmetric codes with a step and a zero point per row.
//
//   low = clip min(min x, 0), high = clip max(max x, 0), step = (high - low) / (2^bits - 1)
//   zero = round(-low / step);  code = clamp(round(x / step) + zero, 0, 2^bits - 1)
//
// SpinQuant (Liu et al. 2024, arXiv 2405.16406; eval_utils/) has the same arithmetic in groups of
// 128 channels. It rotates keys by a Hadamard matrix and values by a learned rotation per layer
// (R2), which is part of the model's weights and not contained in traces. Here R2 is the Hadamard
// matrix that initialises the learning. A trace of a model whose weights contain R2 already has
// rotated values.
//
// The released code only simulates rounding, in fp32. Step and zero point are counted as fp16. The
// rotation of values is part of the model's weights and has no cost.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/math/low_int.hpp"
#include "models/methods/store/row_store.hpp"

namespace kvsim {
namespace {

class QuarotFormat final : public RowFormat {
 public:
  QuarotFormat(std::int32_t levels, float clip, std::int32_t group)
      : levels_{levels}, clip_{clip}, group_{static_cast<std::size_t>(group)} {}
  void round_key(std::span<float> key) const override { round(key); }
  void round_value(std::span<float> value) const override { round(value); }

 private:
  void round(std::span<float> row) const {
    const float norm = std::sqrt(static_cast<float>(row.size()));
    hadamard(row);
    for (float& x : row) x /= norm;
    const std::size_t group = group_ > 0 ? std::min(group_, row.size()) : row.size();
    for (std::size_t at = 0; at < row.size(); at += group) {
      const std::span<float> part = row.subspan(at, group);
      const QuarotRow scale = quarot_row(part, levels_, clip_);
      for (float& x : part) x = quarot_value(quarot_code(x, scale), scale);
    }
    hadamard(row);
    for (float& x : row) x /= norm;
  }
  std::int32_t levels_;
  float clip_;
  std::size_t group_;  // channels; 0: the whole row
};

class QuarotRule final : public RowRule {
 public:
  QuarotRule(std::int32_t bits, double clip, std::int32_t group)
      : bits_{bits}, clip_{static_cast<float>(clip)}, group_{group} {}
  std::unique_ptr<RowFormat> format(const SessionPlace& /*place*/,
                                    Dtype /*recorded*/) const override {
    return std::make_unique<QuarotFormat>((1 << bits_) - 1, clip_, group_);
  }
  Dtype dtype(Dtype /*recorded*/) const override {
    return bits_ == 8 ? Dtype::kInt8 : bits_ == 4 ? Dtype::kInt4 : Dtype::kInt2;
  }
  void round_row(std::span<float> row, Dtype /*recorded*/) const override {
    QuarotFormat{(1 << bits_) - 1, clip_, group_}.round_key(row);
  }
  Bytes row_bytes(std::int32_t head_dim, Dtype /*recorded*/) const override {
    constexpr std::int64_t kScaleBytes = 2 * 2;  // step and zero point in fp16
    const std::int64_t groups = group_ > 0 && group_ < head_dim ? head_dim / group_ : 1;
    return Bytes{static_cast<std::int64_t>(head_dim) * bits_ / 8 + groups * kScaleBytes};
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    RowRule::add_step(traffic, events, shape);
    traffic.extra_flops += rotation_flops(shape.head_dim) * (1 + shape.group);  // key and queries
  }

 private:
  std::int32_t bits_;
  float clip_;
  std::int32_t group_;
};

std::shared_ptr<const StoreRule> make_quarot(MethodResolver& resolver) {
  check_rotation(resolver);
  const std::int32_t bits = resolved_code_bits(resolver);
  const std::int64_t group = resolver.integer("quant_group");
  const std::int32_t d = resolver.site().shape.head_dim;
  if (group > 0 && group < d && d % group != 0) {
    resolver.refuse(fmt::format(
        "quant_group: expected a divisor of the head dimension {}, or no less than it, got {}", d,
        group));
  }
  return std::make_shared<QuarotRule>(bits, resolver.number("clip"),
                                      static_cast<std::int32_t>(std::min<std::int64_t>(group, d)));
}

}  // namespace

AxisChoice store_quarot() {
  return {.axis = "store",
          .name = "quarot",
          .params = with_kept_layers(
              {code_bits_param(4, "QuaRot's tables: --k_bits 4 --v_bits 4"),
               number_param("clip", "", 1, 0.01, 1, "a number in [0.01, 1]",
                            "share of a row's range that codes cover",
                            "QuaRot fake_quant/utils.py, k_clip_ratio and v_clip_ratio"),
               integer_param("quant_group", "g", 0, 0, 65536, "an integer >= 0",
                             "channels under a step and a zero point; 0: the whole row",
                             "SpinQuant: --k_groupsize 128 --v_groupsize 128")}),
          .make = &make_quarot};
}

}  // namespace kvsim
