// KVTC (KV cache transform coding) as in SGLang: python/sglang/srt/mem_cache/kvtc_quant.py
// (5f7391ca) and the calibration scripts of jfckm/sglang-kvtc (7a4de209, 36786ad9).
// A token's features are projected onto principal directions; groups of consecutive coefficients
// are stored as fp32, bf16, int8 or int4, in an allocation that minimises the error for a number of
// bits. Keys are coded before RoPE.
//
// Two decisions differ from that code. A feature vector covers all heads of one layer (there: of
// all layers of a worker), because a replay processes one layer at a time. The calibration set is
// the trace's prompt: directions come from its first half, the allocation from its second.

#include <algorithm>

#include "models/math/low_rank/principal.hpp"
#include "models/methods/tier/kvtc_layout.hpp"
#include "models/methods/tier/tier.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {
namespace {

class KvtcTier final : public TierRule {
 public:
  struct Settings {
    double ratio = 1;
    std::int64_t rank = 1, sinks = 0, recent = 0;
  };
  KvtcTier(double returned, const Settings& settings) : TierRule{returned}, settings_{settings} {}

  double link_bytes(const TierPage& page) const override {
    return static_cast<double>(page.tokens) *
           static_cast<double>(budget_bits(page.keys) + budget_bits(page.values)) / 8;
  }
  TierWork encode(const TierPage& page) const override { return work(page, false); }
  TierWork decode(const TierPage& page) const override { return work(page, true); }
  bool needs_layer() const override { return true; }
  double pass(TierRows& rows) const override {
    // Sinks and recent tokens keep their rows and are excluded from the calibration.
    const std::int64_t first = std::min(settings_.sinks, rows.prompt);
    const std::int64_t last = std::max(first, rows.prompt - settings_.recent);
    const std::int64_t coded = std::max<std::int64_t>(0, std::min(rows.tokens, last) - first);
    const double whole =
        static_cast<double>((rows.tokens - coded) * rows.width) * bits_of(rows.stored) / 8;
    if (coded == 0 || last - first < 2) return whole * 2;
    std::vector<float> keys = rows.keys;
    turn(rows, keys, first, last, -1);
    const double bits = static_cast<double>(pass_side(rows, keys, first, last) +
                                            pass_side(rows, rows.values, first, last));
    turn(rows, keys, first, first + coded, 1);
    const auto from = static_cast<std::size_t>(first * rows.width);
    const auto count = static_cast<std::size_t>(coded * rows.width);
    const auto coded_keys = std::span{keys}.subspan(from, count);
    std::copy(coded_keys.begin(), coded_keys.end(), rows.keys.begin() + std::ptrdiff_t(from));
    for (std::vector<float>* side : {&rows.keys, &rows.values}) {
      for (float& x : std::span{*side}.subspan(from, count)) x = as_returned(x, rows.stored);
    }
    return 2 * whole + bits * static_cast<double>(coded) / 8;
  }

 private:
  [[nodiscard]] std::int64_t budget_bits(std::int64_t width) const {
    return static_cast<std::int64_t>(16.0 * static_cast<double>(width) / settings_.ratio);
  }
  [[nodiscard]] TierWork work(const TierPage& page, bool decodes) const {
    const auto rank = [&](std::int64_t width) {
      return static_cast<double>(std::min(settings_.rank, width));
    };
    const double tokens = static_cast<double>(page.tokens);
    const double keys = static_cast<double>(page.keys), values = static_cast<double>(page.values);
    // The coefficients go through memory in fp32.
    constexpr double kFp32Bytes = 4;
    const double coefficients = tokens * (rank(page.keys) + rank(page.values)) * kFp32Bytes;
    const double basis = (keys * rank(page.keys) + values * rank(page.values)) * kFp32Bytes;
    TierWork out{.flops = 2 * tokens * (keys * rank(page.keys) + values * rank(page.values))};
    out.read = basis + coefficients + (decodes ? link_bytes(page) : page.bytes());
    out.written = coefficients + (decodes ? page.bytes() : link_bytes(page));
    return out;
  }

  /// Applies RoPE to the keys of tokens first … last - 1 (sign 1) or reverses it (-1). Does nothing
  /// without RoPE.
  static void turn(const TierRows& rows, std::vector<float>& keys, std::int64_t first,
                   std::int64_t last, int sign) {
    if (rows.rope == nullptr) return;
    const auto d = static_cast<std::size_t>(rows.head_dim);
    const auto heads = static_cast<std::size_t>(rows.width) / d;
    for (std::int64_t t = first; t < last; ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t at = (static_cast<std::size_t>(t) * heads + h) * d;
        rows.rope->rotate(std::span{keys}.subspan(at, d), sign * t);
      }
    }
  }

  /// Returns the bits of a token's coefficients of one side.
  [[nodiscard]] std::int64_t pass_side(const TierRows& rows, std::vector<float>& side,
                                       std::int64_t first, std::int64_t last) const {
    const auto width = static_cast<std::size_t>(rows.width);
    const std::int64_t half = first + (last - first) / 2;
    const auto part = [&](std::int64_t from, std::int64_t to) {
      return std::span<const float>{side}.subspan(static_cast<std::size_t>(from) * width,
                                                  static_cast<std::size_t>(to - from) * width);
    };
    const PrincipalBasis basis =
        principal_basis(part(first, half), half - first, rows.width, settings_.rank);
    std::vector<double> held_out;
    for (std::int64_t t = half; t < last; ++t) {
      const auto c = basis.coefficients(part(t, t + 1));
      held_out.insert(held_out.end(), c.begin(), c.end());
    }
    const KvtcLayout layout = kvtc_layout(held_out, basis.rank, budget_bits(rows.width));
    for (std::int64_t t = first; t < std::min(rows.tokens, last); ++t) {
      std::vector<double> c = basis.coefficients(part(t, t + 1));
      kvtc_round(c, layout);
      basis.restore(c, std::span{side}.subspan(static_cast<std::size_t>(t) * width, width));
    }
    return layout.bits;
  }

  Settings settings_;
};

std::shared_ptr<const TierRule> make_kvtc(MethodResolver& resolver) {
  return std::make_shared<KvtcTier>(resolve_returned(resolver),
                                    KvtcTier::Settings{.ratio = resolver.number("tier_ratio"),
                                                       .rank = resolver.integer("tier_rank"),
                                                       .sinks = resolver.integer("tier_sinks"),
                                                       .recent = resolver.integer("tier_recent")});
}

}  // namespace

AxisChoice tier_kvtc() {
  return {.axis = "tier",
          .name = "kvtc",
          .params = {returned_param(),
                     number_param("tier_ratio", "R", 20, 1, 1024, ">= 1",
                                  "ratio of a 16-bit page's bytes to its bytes in the tier",
                                  "the paper's abstract: 20 with a small loss"),
                     integer_param("tier_rank", "r", 1024, 1, 65536, ">= 1",
                                   "principal directions of a layer's keys, and of its values",
                                   "basis of F r 4 B per side in GPU memory"),
                     integer_param("tier_sinks", "", 4, 0, 65536, ">= 0",
                                   "first tokens that stay exact", "the calibration scripts: 4"),
                     integer_param("tier_recent", "", 128, 0, 65536, ">= 0",
                                   "last tokens of the prompt that stay exact",
                                   "the calibration scripts: 128")},
          .make = &make_kvtc,
          .takes_budget = false};
}

}  // namespace kvsim
