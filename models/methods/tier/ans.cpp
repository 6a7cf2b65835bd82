// Lossless compression by nvCOMP's ANS, as in FlexKV (taco-project/FlexKV, pull request 183): slots
// of host memory stay reserved at the full size, so only the bytes on link and disk decrease.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "models/math/half.hpp"
#include "models/math/low_float.hpp"
#include "models/methods/tier/tier.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {
namespace {

/// Returns the bits of a byte stream at its entropy.
double entropy_bits(const std::array<std::int64_t, 256>& counts) {
  double total = 0;
  for (const std::int64_t n : counts) total += static_cast<double>(n);
  double bits = 0;
  for (const std::int64_t n : counts) {
    if (n > 0) bits -= static_cast<double>(n) * std::log2(static_cast<double>(n) / total);
  }
  return bits;
}

class AnsTier final : public TierRule {
 public:
  AnsTier(double returned, double ratio) : TierRule{returned}, ratio_{ratio} {}

  double link_bytes(const TierPage& page) const override { return page.bytes() / ratio_; }
  double held_bytes(const TierPage& page) const override { return page.bytes(); }
  bool fixed_bytes() const override { return false; }
  /// One pass over the page's bytes and one over the coded bytes; table arithmetic is not counted.
  TierWork encode(const TierPage& page) const override {
    return {.flops = 0, .read = page.bytes(), .written = link_bytes(page)};
  }
  TierWork decode(const TierPage& page) const override {
    return {.flops = 0, .read = link_bytes(page), .written = page.bytes()};
  }
  bool lossless() const override { return true; }
  /// Returns the entropy of high and of low bytes, the lower bound of a coder of single bytes.
  double pass(TierRows& rows) const override {
    std::array<std::int64_t, 256> high{}, low{};
    const auto sent = static_cast<std::size_t>(rows.tokens * rows.width);
    for (const std::vector<float>* side : {&rows.keys, &rows.values}) {
      for (const float x : std::span{*side}.first(sent)) count(x, rows.stored, high, low);
    }
    return (entropy_bits(high) + entropy_bits(low)) / 8;
  }

 private:
  static void count(float x, Dtype stored, std::array<std::int64_t, 256>& high,
                    std::array<std::int64_t, 256>& low) {
    if (stored == Dtype::kFp8E4m3) {
      ++high[e4m3_byte(x)];
      return;
    }
    std::uint32_t word = 0;
    if (stored == Dtype::kFp16) {
      word = float_to_fp16(x);
    } else if (stored == Dtype::kBf16) {
      word = std::bit_cast<std::uint32_t>(x) >> 16U;
    } else {
      const auto bits = std::bit_cast<std::uint32_t>(x);
      ++high[bits >> 24U & 255U];
      ++low[bits >> 16U & 255U];
      word = bits & 65535U;
    }
    ++high[word >> 8U & 255U];
    ++low[word & 255U];
  }

  double ratio_;
};

std::shared_ptr<const TierRule> make_ans(MethodResolver& resolver) {
  return std::make_shared<AnsTier>(resolve_returned(resolver), resolver.number("tier_ratio"));
}

}  // namespace

AxisChoice tier_ans() {
  return {.axis = "tier",
          .name = "ans",
          .params = {returned_param(),
                     number_param("tier_ratio", "", 1.4, 1, 16, ">= 1",
                                  "ratio of a page's bytes to its bytes on the link; a replay "
                                  "reports the entropy of the rows instead",
                                  "FlexKV pull request 183: about 1.4 of bf16, 1.1 of fp8")},
          .make = &make_ans,
          .takes_budget = false};
}

}  // namespace kvsim
