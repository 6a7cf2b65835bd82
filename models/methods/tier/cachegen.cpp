// CacheGen (Liu et al. 2024) as in LMCache: lmcache/storage_backend/serde/cachegen_encoder.py and
// cachegen_basics.py. A token's row over all heads of a layer has one maximum; codes are compressed
// by an adaptive arithmetic coder per layer, side and channel over a chunk of tokens, and its
// frequencies are transferred too.

#include <algorithm>
#include <cmath>

#include "models/math/arithmetic_coder.hpp"
#include "models/math/quantise.hpp"
#include "models/methods/tier/tier.hpp"
#include "models/methods/tier_axis.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kKinds = 33;        // numbers in a channel's table
constexpr std::int64_t kTableBytes = 66;   // 16 bits per number
constexpr std::int64_t kMaximumBytes = 2;  // per row: a value of the recorded format
constexpr double kEnd = 2;                 // maximum number of bytes at a stream's end
/// Magnitude, maximum, product, sum, rounding; the coder: two products, two shifts, comparison and
/// subtraction in integers. Decoding instead searches at most 6 of a table's numbers. These are
/// bounds, because the coder's steps depend on each other.
constexpr double kEncodeFlops = 5 + 6;
constexpr double kDecodeFlops = 6 + 6 + 2;

struct Bins {
  std::int32_t keys = 0, values = 0;
};

class CachegenTier final : public TierRule {
 public:
  struct Settings {
    std::int64_t key_layers = 0, value_layers = 0;  // first layers with the finer codes
    std::int64_t chunk = 256;
    bool shared_table = false;
  };
  CachegenTier(double returned, const Settings& settings)
      : TierRule{returned}, settings_{settings} {}

  double link_bytes(const TierPage& page) const override {
    const Bins bins = bins_of(page.layer);
    const auto chunks = static_cast<double>((page.tokens + settings_.chunk - 1) / settings_.chunk);
    const auto side = [&](std::int64_t channels, std::int32_t levels) {
      const auto n = static_cast<double>(channels);
      const auto tokens = static_cast<double>(page.tokens);
      const double codes = n * tokens * std::log2(2.0 * steps(levels) + 1) / 8;
      return codes + n * chunks * kEnd + tables(channels, chunks) +
             tokens * static_cast<double>(kMaximumBytes);
    };
    return side(page.keys, bins.keys) + side(page.values, bins.values);
  }
  bool fixed_bytes() const override { return false; }
  TierWork encode(const TierPage& page) const override {
    return {.flops = kEncodeFlops * page.elements(),
            .read = page.bytes() + page.elements(),  // one-byte codes go through memory
            .written = page.elements() + link_bytes(page)};
  }
  TierWork decode(const TierPage& page) const override {
    return {.flops = kDecodeFlops * page.elements(),
            .read = link_bytes(page) + page.elements(),
            .written = page.elements() + page.bytes()};
  }
  bool needs_layer() const override { return true; }
  double pass(TierRows& rows) const override {
    const Bins bins = bins_of(rows.layer);
    return pass_side(rows, rows.keys, bins.keys) + pass_side(rows, rows.values, bins.values);
  }

 private:
  [[nodiscard]] Bins bins_of(std::int32_t layer) const {
    constexpr std::int32_t kFine = 32, kCoarse = 16;
    return {.keys = layer < settings_.key_layers ? kFine : kCoarse,
            .values = layer < settings_.value_layers ? kFine : kCoarse};
  }
  /// Number of codes per sign.
  static std::int32_t steps(std::int32_t bins) { return bins / 2 - 1; }
  [[nodiscard]] double tables(std::int64_t channels, double chunks) const {
    return static_cast<double>(kTableBytes * channels) * (settings_.shared_table ? 1 : chunks);
  }

  /// Bytes of one side on the link.
  double pass_side(const TierRows& rows, std::vector<float>& side, std::int32_t bins) const {
    const auto width = static_cast<std::size_t>(rows.width);
    const auto tokens = static_cast<std::size_t>(rows.tokens);
    std::vector<std::uint8_t> codes(tokens * width);  // [width, tokens]
    for (std::size_t t = 0; t < tokens; ++t) {
      const std::span<float> row = std::span{side}.subspan(t * width, width);
      const float max = abs_max(row);
      const auto top = static_cast<float>(steps(bins));
      for (std::size_t c = 0; c < width; ++c) {
        const float code = max > 0 ? std::nearbyint(row[c] * (top / max)) : 0.0F;
        codes[c * tokens + t] = static_cast<std::uint8_t>(code + top);
        row[c] = as_returned(code / top * max, rows.stored);
      }
    }
    const auto chunk = static_cast<std::size_t>(settings_.chunk);
    double bytes = static_cast<double>(tokens) * static_cast<double>(kMaximumBytes) +
                   tables(rows.width, static_cast<double>((tokens + chunk - 1) / chunk));
    for (std::size_t c = 0; c < width; ++c) {
      const std::span<const std::uint8_t> channel = std::span{codes}.subspan(c * tokens, tokens);
      const std::vector<std::uint32_t> common = settings_.shared_table
                                                    ? cumulative_frequencies(channel, kKinds)
                                                    : std::vector<std::uint32_t>{};
      for (std::size_t from = 0; from < tokens; from += chunk) {
        const auto part = channel.subspan(from, std::min(chunk, tokens - from));
        const auto code = arithmetic_encode(
            part, settings_.shared_table ? common : cumulative_frequencies(part, kKinds));
        bytes += static_cast<double>(code.size());
      }
    }
    return bytes;
  }

  Settings settings_;
};

std::shared_ptr<const TierRule> make_cachegen(MethodResolver& resolver) {
  return std::make_shared<CachegenTier>(
      resolve_returned(resolver),
      CachegenTier::Settings{.key_layers = resolver.integer("fine_key_layers"),
                             .value_layers = resolver.integer("fine_value_layers"),
                             .chunk = resolver.integer("tier_chunk"),
                             .shared_table = resolver.word("tables") == "shared"});
}

}  // namespace

AxisChoice tier_cachegen() {
  return {.axis = "tier",
          .name = "cachegen",
          .params = {returned_param(),
                     integer_param("fine_key_layers", "", 10, 0, 65536, ">= 0",
                                   "first layers whose keys have 32 bins; later ones have 16",
                                   "LMCache's table of 7B models"),
                     integer_param("fine_value_layers", "", 2, 0, 65536, ">= 0",
                                   "likewise for values", "LMCache's table of 7B models"),
                     integer_param("tier_chunk", "", 256, 1, 65536, ">= 1",
                                   "tokens that are coded together", "LMCache: chunk_size 256"),
                     word_param("tables", {"chunk", "shared"},
                                "frequencies are sent with every chunk, or once per prompt",
                                "LMCache: every chunk")},
          .make = &make_cachegen,
          .takes_budget = false};
}

}  // namespace kvsim
