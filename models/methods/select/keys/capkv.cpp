// CapKV (arXiv 2604.25975) as in kvpress, CapPress: leverage scores of values, weighted by the
// similarity of keys to the mean query.
//
//   mu = mean of the queries before RoPE after the sinks, times the mean rotation of the next 512
//   positions;  c_i = cosine of k_i and mu;  w_i = exp(tau (c_i - max c))
//   A = I + sum over i of (w_i + epsilon) v_i v_i^T;  score_i = mean over the group of
//   w_i v_i^T A^-1 v_i
//
// Sums are over the tokens after the sinks. Sinks are always kept.

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/expected_attention.hpp"
#include "models/math/low_rank/leverage.hpp"
#include "models/methods/select/keys/compactor.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kMinNorm = 1e-12;  // of torch.nn.functional.normalize

struct CapSettings {
  std::int64_t sinks = 4;
  std::int64_t future = 512;
  double tau = 5;
  double epsilon = 1e-6;
  double width = 0;  // width of a hidden state
};

class CapKv final : public Scorer {
 public:
  explicit CapKv(const CapSettings& settings) : set_{settings} {}

  std::vector<double> score(const ScoredTokens& tokens, const SessionPlace& place) const override {
    KVSIM_CHECK(place.rope != nullptr, "queries before RoPE without the rotary embedding");
    const HeadVectors& head = tokens.head;
    const auto d = static_cast<std::size_t>(head.head_dim);
    const std::size_t n = tokens.size();
    std::vector<double> all(n, std::numeric_limits<double>::infinity());
    const std::size_t sinks = std::min(static_cast<std::size_t>(set_.sinks), n);
    if (sinks == n) return all;
    const std::vector<double> values(tokens.values.begin() + static_cast<std::ptrdiff_t>(sinks * d),
                                     tokens.values.end());
    const Rope::MeanRotation ahead = place.rope->mean_rotation(tokens.tokens, set_.future);
    std::vector<double> sum(n - sinks, 0.0);
    for (std::int32_t g = 0; g < head.group; ++g) {
      const auto queries =
          head.q.subspan(static_cast<std::size_t>(g * head.tokens + set_.sinks) * d,
                         static_cast<std::size_t>(tokens.tokens - set_.sinks) * d);
      std::vector<double> anchor =
          mean_before_rope(queries, head.head_dim, *place.rope, set_.sinks);
      place.rope->turn(anchor, ahead);
      const std::vector<double> weight = weights(anchor, tokens.keys.subspan(sinks * d));
      std::vector<double> shifted = weight;
      for (double& x : shifted) x += set_.epsilon;
      const std::vector<double> leverage = ridge_leverage(values, d, shifted, 1.0);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weight[i] * leverage[i] / head.group;
    }
    std::copy(sum.begin(), sum.end(), all.begin() + static_cast<std::ptrdiff_t>(sinks));
    return all;
  }
  double forced_score(double highest) const override { return highest + 1; }
  bool non_negative() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    const double d = shape.head_dim;
    // Per query head: projected queries and their rotation, cosines, A, its factors, the solution.
    const double one = 2.0 * entries * d * (set_.width + d) + 2.0 * entries * d +
                       2.0 * entries * d * d + 2.0 / 3.0 * d * d * d + 2.0 * entries * d * d;
    return {
        .flops = shape.group * one,
        .read = (1 + shape.group / 2.0) * entries * shape.row_bytes(),
        // Repeated keys, values and scaled values; values and the solution in fp32.
        .transient = truncated<Bytes>(shape.group * entries * (1.5 * shape.row_bytes() + 8.0 * d))};
  }

 private:
  [[nodiscard]] std::vector<double> weights(std::span<const double> anchor,
                                            std::span<const float> keys) const {
    const std::size_t d = anchor.size();
    std::vector<double> out(keys.size() / d);
    double square = 0;
    for (const double x : anchor) square += x * x;
    const double length = std::max(std::sqrt(square), kMinNorm);
    double max = -1;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::span<const float> key = keys.subspan(i * d, d);
      double product = 0;
      for (std::size_t j = 0; j < d; ++j) product += anchor[j] * static_cast<double>(key[j]);
      const double norm = std::max(std::sqrt(dot(key, key)), kMinNorm);
      out[i] = std::clamp(product / (length * norm), -1.0, 1.0);
      max = std::max(max, out[i]);
    }
    for (double& x : out) x = std::exp(set_.tau * (x - max));
    return out;
  }

  CapSettings set_;
};

std::shared_ptr<const SelectRule> resolve_capkv(MethodResolver& resolver) {
  return make_scored(resolver, std::make_shared<CapKv>(
                                   CapSettings{.sinks = resolver.integer("n_sink"),
                                               .future = resolver.integer("n_future_positions"),
                                               .tau = resolver.number("tau"),
                                               .epsilon = resolver.number("epsilon"),
                                               .width = hidden_width(resolver)}));
}

}  // namespace

AxisChoice select_capkv() {
  const std::string source = "kvpress, CapPress";
  return scored_choice(
      "capkv",
      {number_param("tau", "", 5, 0, 1e6, "a number >= 0",
                    "sharpness of the weights, on cosines of keys with the mean query", source),
       integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                     "first tokens that stay out of the sums and are kept", source),
       integer_param("n_future_positions", "", 512, 1, 1e6, "an integer in [1, 1000000]",
                     "next positions whose mean rotation is applied to the mean query", source),
       number_param("epsilon", "", 1e-6, 0, 1, "a number in [0, 1]",
                    "added to the weights in the matrix", source)},
      &resolve_capkv);
}

}  // namespace kvsim
