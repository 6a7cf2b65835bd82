// LagKV (Liang et al. 2025): keeps the tokens that differ most from the lag after them.
//
// Tokens after the sinks are divided into lags of `lag`. Lag p is scaled with the per-channel
// minimum and maximum of lag p + 1: x' = (x - min) / (max - min). A token's score is the softmax
// over its lag of the standard deviation of x' over channels, averaged over K and V. It is then
// replaced by its rank in the lag divided by lag. Sinks, the last full lag and the remainder score
// 1. For a prompt shorter than sinks + 2 lags, sinks and the most recent tokens are kept.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/math/attention/key_redundancy.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class LagKv final : public Scorer {
 public:
  LagKv(std::int64_t sinks, std::int64_t lag, bool cross)
      : sinks_{static_cast<std::size_t>(sinks)},
        lag_{static_cast<std::size_t>(lag)},
        cross_{cross} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const std::size_t n = tokens.size();
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    std::vector<double> all(n, 1.0);
    if (n < sinks_ + 2 * lag_) {
      for (std::size_t i = sinks_; i < n; ++i) {
        all[i] = static_cast<double>(i - sinks_) / static_cast<double>(n - sinks_);
      }
      return all;
    }
    const std::size_t lags = (n - sinks_) / lag_;
    for (std::size_t p = 0; p + 1 < lags; ++p) {
      const std::size_t first = sinks_ + p * lag_;
      const std::vector<double> of_keys = stand_out(tokens.keys, first, d);
      const std::vector<double> of_values = stand_out(tokens.values, first, d);
      for (std::size_t i = 0; i < lag_; ++i) all[first + i] = (of_keys[i] + of_values[i]) / 2;
      if (!cross_) rank(std::span{all}.subspan(first, lag_));
    }
    return all;
  }
  bool non_negative() const override { return true; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 2 * 8.0 * entries * shape.head_dim,  // scale, mean, variance of K and V
            .read = entries * shape.row_bytes(),
            .transient = truncated<Bytes>(entries) * 8};
  }

 private:
  /// Returns the softmax over the lag that starts at `first` of each token's standard deviation
  /// over scaled channels.
  std::vector<double> stand_out(std::span<const float> rows, std::size_t first,
                                std::size_t d) const {
    const auto at = [&](std::size_t token, std::size_t channel) {
      return static_cast<double>(rows[token * d + channel]);
    };
    std::vector<double> low(d);
    std::vector<double> range(d);
    for (std::size_t c = 0; c < d; ++c) {
      low[c] = at(first + lag_, c);
      double high = low[c];
      for (std::size_t i = first + lag_; i < first + 2 * lag_; ++i) {
        low[c] = std::min(low[c], at(i, c));
        high = std::max(high, at(i, c));
      }
      range[c] = high - low[c];
    }
    std::vector<double> deviations(lag_);
    std::vector<double> scaled(d);
    for (std::size_t i = 0; i < lag_; ++i) {
      double mean = 0;
      for (std::size_t c = 0; c < d; ++c) {
        // A channel that is constant in the reference lag carries no information.
        scaled[c] = range[c] > 0 ? (at(first + i, c) - low[c]) / range[c] : 0.0;
        mean += scaled[c];
      }
      mean /= static_cast<double>(d);
      double squares = 0;
      for (const double x : scaled) squares += (x - mean) * (x - mean);
      // The sample standard deviation, like torch.std.
      deviations[i] = d > 1 ? std::sqrt(squares / static_cast<double>(d - 1)) : 0.0;
    }
    softmax_in_place(deviations);
    return deviations;
  }

  /// Replaces scores by their ascending rank / the lag's length; in ties the older token is higher.
  static void rank(std::span<double> scores) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return scores[a] != scores[b] ? scores[a] < scores[b] : a > b;
    });
    for (std::size_t r = 0; r < order.size(); ++r) {
      scores[order[r]] = static_cast<double>(r) / static_cast<double>(order.size());
    }
  }

  std::size_t sinks_, lag_;
  bool cross_;
};

std::shared_ptr<const SelectRule> resolve_lagkv(MethodResolver& resolver) {
  return make_scored(resolver, make_lagkv(resolver));
}

}  // namespace

std::vector<ParamInfo> lagkv_params() {
  return {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                        "first tokens that stay out of the statistics and are kept",
                        "kvpress, LagKVPress and ExpectedAttentionPress"),
          integer_param("lag", "L", 128, 1, kManyEntries, "an integer >= 1",
                        "tokens of a partition, compared with the next", "LagKV; kvpress lag_size",
                        {"lag_size"}),
          flag_param("cross_scoring", false,
                     "compare scores between partitions instead of ranks within",
                     "kvpress, LagKVPress")};
}

std::shared_ptr<const Scorer> make_lagkv(MethodResolver& resolver) {
  return std::make_shared<LagKv>(resolver.integer("n_sink"), resolver.integer("lag"),
                                 resolver.flag("cross_scoring"));
}
AxisChoice select_lagkv() { return scored_choice("lagkv", lagkv_params(), &resolve_lagkv); }

}  // namespace kvsim
