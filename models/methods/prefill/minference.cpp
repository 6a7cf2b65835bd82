// MInference (Jiang et al. 2024): three patterns, one per head. Source: microsoft/MInference,
// minference/modules/minference_forward.py; x-attention's copy, xattn/src/Minference.py (3185fb2).
// The released code assigns each head a pattern and sizes found by a search; here all heads use the
// same. The kernel computes tiles of 64 around each diagonal, and therefore more pairs than the
// union counted here.

#include <algorithm>
#include <limits>

#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill/prefill.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kLastRows = 64;
constexpr std::int64_t kFirstColumns = 30;    // always kept
constexpr std::int64_t kNearDistances = 100;  // also always kept
constexpr std::int64_t kMinVertical = 30, kMinSlash = 50;
constexpr std::int64_t kTile = 64;  // for pattern=block

enum class Pattern : std::uint8_t { kVerticalSlash, kStream, kBlock };

class MInferenceRule final : public PrefillRule {
 public:
  struct Settings {
    Pattern pattern = Pattern::kVerticalSlash;
    double pairs = 1;
    std::int64_t vertical = 0, slash = 0, blocks = 0;
  };
  explicit MInferenceRule(const Settings& settings) : settings_{settings} {}

  std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const override {
    if (settings_.pattern == Pattern::kBlock) return top_blocks(head);
    const std::int64_t vertical = std::min(head.prompt, std::max(settings_.vertical, kMinVertical));
    const std::int64_t slash = std::min(head.prompt, std::max(settings_.slash, kMinSlash));
    auto pattern = std::make_unique<VerticalSlashPattern>(head.prompt);
    if (settings_.pattern == Pattern::kStream) {
      for (std::int64_t i = 0; i < vertical; ++i) pattern->add_column(i);
      for (std::int64_t i = 0; i < slash; ++i) pattern->add_distance(i);
      return pattern;
    }
    LastRows sums = last_rows(head, std::min(kLastRows, head.prompt));
    constexpr double kAlways = std::numeric_limits<double>::infinity();
    std::fill_n(sums.by_key.begin(), std::min(kFirstColumns, head.prompt), kAlways);
    std::fill_n(sums.by_distance.begin(), std::min(kNearDistances, head.prompt), kAlways);
    const auto columns = by_falling(sums.by_key);
    for (std::int64_t i = 0; i < vertical; ++i) {
      pattern->add_column(columns[static_cast<std::size_t>(i)]);
    }
    const auto distances = by_falling(sums.by_distance);
    for (std::int64_t i = 0; i < slash; ++i) {
      pattern->add_distance(distances[static_cast<std::size_t>(i)]);
    }
    // Fewer than 100 diagonals may be kept; a query always attends to itself.
    pattern->add_distance(0);
    return pattern;
  }
  double choice_flops(std::int64_t prompt, std::int32_t head_dim) const override {
    const auto n = static_cast<double>(prompt);
    constexpr double kSoftmax = 5;
    switch (settings_.pattern) {
      case Pattern::kVerticalSlash: {
        const double pairs = static_cast<double>(std::min(kLastRows, prompt)) * n;
        return pairs * (2 * head_dim + kSoftmax + 2);
      }
      case Pattern::kBlock: {
        const double blocks = n / kTile;
        return 2 * n * head_dim + blocks * blocks / 2 * 2 * head_dim;
      }
      case Pattern::kStream:
        break;
    }
    return 0;
  }
  double pairs_share(std::int64_t /*prompt*/) const override { return settings_.pairs; }
  std::int32_t launches() const override {
    // Product, mask, softmax, two sums, two choices; means, product, choice.
    return settings_.pattern == Pattern::kVerticalSlash ? 7
           : settings_.pattern == Pattern::kBlock       ? 4
                                                        : 0;
  }

 private:
  [[nodiscard]] std::unique_ptr<PrefillPattern> top_blocks(const PrefillHead& head) const {
    auto pattern = std::make_unique<TilePattern>(head.prompt, kTile);
    const auto d = static_cast<std::size_t>(head.head_dim);
    const std::vector<double> queries = block_means(head.q, head.head_dim, kTile);
    const std::vector<double> keys = block_means(head.keys, head.head_dim, kTile);
    for (std::int64_t row = 0; row < pattern->blocks(); ++row) {
      std::vector<double> logits;
      for (std::int64_t column = 0; column <= row; ++column) {
        logits.push_back(dot(std::span{queries}.subspan(static_cast<std::size_t>(row) * d, d),
                             std::span{keys}.subspan(static_cast<std::size_t>(column) * d, d)));
      }
      const auto order = by_falling(logits);
      for (std::int64_t i = 0; i < std::min(settings_.blocks, row + 1); ++i) {
        pattern->add(row, order[static_cast<std::size_t>(i)]);
      }
    }
    return pattern;
  }

  Settings settings_;
};

std::shared_ptr<const PrefillRule> make_minference(MethodResolver& resolver) {
  const std::string& word = resolver.word("pattern");
  const Pattern pattern = word == "stream"  ? Pattern::kStream
                          : word == "block" ? Pattern::kBlock
                                            : Pattern::kVerticalSlash;
  MInferenceRule::Settings settings{.pattern = pattern, .pairs = resolver.number("pairs")};
  if (pattern == Pattern::kBlock) {
    settings.blocks = resolver.integer("top_blocks");
  } else {
    settings.vertical = resolver.integer("vertical");
    settings.slash = resolver.integer("slash");
  }
  return std::make_shared<MInferenceRule>(settings);
}

}  // namespace

AxisChoice prefill_minference() {
  return {
      .axis = "prefill",
      .name = "minference",
      .params = {word_param("pattern", {"vertical-slash", "stream", "block"},
                            "columns and diagonals by the last 64 queries; the first columns and a "
                            "band; blocks of 64 by their means",
                            "MInference: chosen for each head by a search"),
                 integer_param("vertical", "v", 1000, 0, kManyEntries, ">= 0",
                               "columns, at least 30", "MInference at 8B: up to 1000"),
                 integer_param("slash", "l", 6096, 0, kManyEntries, ">= 0",
                               "diagonals, at least 50", "MInference at 8B: up to 6096"),
                 integer_param("top_blocks", "", 100, 1, kManyEntries, ">= 1",
                               "blocks per row with pattern=block", "MInference: 100"),
                 pairs_param()},
      .make = &make_minference,
      .takes_budget = false};
}

}  // namespace kvsim
