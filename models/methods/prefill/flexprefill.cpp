// FlexPrefill (Lai et al. 2025): columns and diagonals of blocks that cover a share of the last
// block's attention. Source: ByteDance-Seed/FlexPrefill,
// flex_prefill/ops/flex_prefill_attention.py, get_active_blocks (e580472).

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/methods/prefill/patterns.hpp"
#include "models/methods/prefill/prefill.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kCoverBlock = 128;  // the code's divisor for any block size

/// Returns the smallest number of largest values whose sum exceeds `share`, in blocks.
std::int64_t covering_blocks(const std::vector<double>& values, double share) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end(), std::greater<>{});
  double sum = 0;
  std::int64_t count = 1;
  for (const double x : sorted) {
    sum += x;
    if (sum > share) break;
    ++count;
  }
  return count / kCoverBlock + 1;
}

std::vector<double> pooled(const std::vector<double>& values, std::int64_t block) {
  std::vector<double> out((values.size() + static_cast<std::size_t>(block) - 1) /
                          static_cast<std::size_t>(block));
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i / static_cast<std::size_t>(block)] += values[i];
  }
  return out;
}

/// Returns the square root of the Jensen-Shannon divergence.
double js_distance(std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double m = (p[i] + q[i]) / 2;
    if (p[i] > 0) sum += 0.5 * p[i] * std::log(p[i] / m);
    if (q[i] > 0) sum += 0.5 * q[i] * std::log(q[i] / m);
  }
  return std::sqrt(std::max(0.0, sum));
}

class FlexPrefillRule final : public PrefillRule {
 public:
  struct Settings {
    double pairs = 1, gamma = 0, tau = 0;
    std::int64_t block = 1, min_budget = 1;
  };
  explicit FlexPrefillRule(const Settings& settings) : settings_{settings} {}

  std::unique_ptr<PrefillPattern> start(const PrefillHead& head) const override {
    const std::int64_t block = settings_.block;
    auto pattern = std::make_unique<TilePattern>(head.prompt, block);
    const std::int64_t min = (settings_.min_budget + block - 1) / block;
    if (settings_.gamma >= 1 || head.prompt <= std::max(2 * block, min * block)) {
      pattern->add_all();
      return pattern;
    }
    LastRows sums = last_rows(head, block);
    // The code pools diagonals from the farthest to the nearest.
    std::reverse(sums.by_distance.begin(), sums.by_distance.end());
    for (std::vector<double>* side : {&sums.by_key, &sums.by_distance}) {
      for (double& x : *side) x /= static_cast<double>(block);
    }
    const std::int64_t blocks = pattern->blocks();
    const auto clamped = [&](std::int64_t n) {
      return std::clamp(n, std::min(min, blocks), blocks);
    };
    std::int64_t columns = clamped(covering_blocks(sums.by_key, settings_.gamma));
    std::int64_t diagonals = clamped(covering_blocks(sums.by_distance, settings_.gamma));
    std::vector<double> vertical = pooled(sums.by_key, block);
    std::vector<double> slash = pooled(sums.by_distance, block);
    const std::vector<double> key_means = block_means(head.keys, head.head_dim, block);
    const bool block_wise =
        js_distance(estimate(head, key_means, blocks), vertical) < settings_.tau;
    if (block_wise) columns = diagonals = clamped(min);
    constexpr double kAlways = std::numeric_limits<double>::infinity();
    vertical.front() = kAlways;
    slash.back() = kAlways;
    const auto by_column = by_falling(vertical), by_diagonal = by_falling(slash);
    for (std::int64_t row = 0; row < blocks; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        pattern->add(row, by_column[static_cast<std::size_t>(i)]);
      }
      for (std::int64_t i = 0; i < diagonals; ++i) {
        const std::int64_t away = blocks - 1 - by_diagonal[static_cast<std::size_t>(i)];
        if (row >= away) pattern->add(row, row - away);
      }
    }
    if (block_wise) add_blocks(*pattern, head, key_means);
    return pattern;
  }
  /// FLOPs of the last block's rows, their sums and sorts, and the means of keys.
  double choice_flops(std::int64_t prompt, std::int32_t head_dim) const override {
    const auto n = static_cast<double>(prompt);
    const double rows = static_cast<double>(std::min(settings_.block, prompt));
    constexpr double kSoftmax = 5;
    const double sort = 2 * n * std::log2(std::max(2.0, n));
    return rows * n * (2 * head_dim + kSoftmax + 2) + sort + n * head_dim;
  }
  double pairs_share(std::int64_t /*prompt*/) const override { return settings_.pairs; }
  // Product, mask, softmax, two means, two sorts, two pools, means of keys, product, softmax,
  // divergence, two choices, union.
  std::int32_t launches() const override { return 16; }

 private:
  /// Returns the softmax of the last block's mean query over the means of keys.
  [[nodiscard]] std::vector<double> estimate(const PrefillHead& head,
                                             const std::vector<double>& key_means,
                                             std::int64_t blocks) const {
    const auto d = static_cast<std::size_t>(head.head_dim);
    const auto last = head.q.last(static_cast<std::size_t>(settings_.block) * d);
    const std::vector<double> query = block_means(last, head.head_dim, settings_.block);
    std::vector<double> logits;
    for (std::int64_t b = 0; b < blocks; ++b) {
      logits.push_back(
          dot(query, std::span{key_means}.subspan(static_cast<std::size_t>(b) * d, d)) *
          head.scale);
    }
    softmax(logits);
    return logits;
  }
  /// Adds the largest blocks of all rows together while their sum is at most gamma times the total.
  void add_blocks(TilePattern& pattern, const PrefillHead& head,
                  const std::vector<double>& key_means) const {
    const auto d = static_cast<std::size_t>(head.head_dim);
    const std::vector<double> queries = block_means(head.q, head.head_dim, settings_.block);
    const std::int64_t blocks = pattern.blocks();
    std::vector<double> all;
    for (std::int64_t row = 0; row < blocks; ++row) {
      std::vector<double> logits(static_cast<std::size_t>(blocks),
                                 -std::numeric_limits<double>::infinity());
      for (std::int64_t column = 0; column <= row; ++column) {
        logits[static_cast<std::size_t>(column)] =
            dot(std::span{queries}.subspan(static_cast<std::size_t>(row) * d, d),
                std::span{key_means}.subspan(static_cast<std::size_t>(column) * d, d)) *
            head.scale;
      }
      softmax(logits);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    double sum = 0;
    for (const std::int64_t at : by_falling(all)) {
      sum += all[static_cast<std::size_t>(at)];
      if (sum > settings_.gamma * static_cast<double>(blocks)) break;
      pattern.add(at / blocks, at % blocks);
    }
  }

  Settings settings_;
};

std::shared_ptr<const PrefillRule> make_flexprefill(MethodResolver& resolver) {
  return std::make_shared<FlexPrefillRule>(
      FlexPrefillRule::Settings{.pairs = resolver.number("pairs"),
                                .gamma = resolver.number("gamma"),
                                .tau = resolver.number("tau"),
                                .block = resolver.integer("tile"),
                                .min_budget = resolver.integer("min_tokens")});
}

}  // namespace

AxisChoice prefill_flexprefill() {
  return {.axis = "prefill",
          .name = "flexprefill",
          .params = {integer_param("tile", "", 128, 1, 65536, ">= 1", "tokens of a block",
                                   "FlexPrefill: 128"),
                     number_param("gamma", "", 0.9, 0, 1, "[0, 1]",
                                  "share of the last block's attention that columns, and "
                                  "diagonals, cover",
                                  "the paper: 0.9 and 0.95"),
                     number_param("tau", "", 0.1, 0, 1, "[0, 1]",
                                  "distance between the estimate by means and the exact columns "
                                  "below which a head is treated block by block",
                                  "the paper: 0.1"),
                     integer_param("min_tokens", "", 1024, 1, kManyEntries, ">= 1",
                                   "minimum number of tokens of columns, and of diagonals",
                                   "FlexPrefill: 1024; the paper's other setting: 512"),
                     pairs_param()},
          .make = &make_flexprefill,
          .takes_budget = false};
}

}  // namespace kvsim
