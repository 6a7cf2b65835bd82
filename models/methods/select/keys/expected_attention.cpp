// Expected attention (kvpress, ExpectedAttentionPress; Devoto et al. 2025): the expected attention
// to each key from future queries that are normally distributed with the moments of the prompt's
// queries.
//
//   score_i = (mean over the group of softmax_i(z) + epsilon) * |v_i|   over tokens after the sinks
//
// z is defined in models/math/expected_attention. Sinks are always kept.

#include "models/math/attention/expected_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// DecodingPress passes past hidden states to a scorer, which recomputes queries from them.
constexpr std::int32_t kDecodingBuffer = 256;

struct Settings {
  std::int64_t sinks = 4;
  std::int64_t future = 512;
  bool covariance = true;
  bool vnorm = true;
  double epsilon = 0;
  double width = 0;  // width of a hidden state; 0: total width of the query heads
  double kv_heads = 0;
};

class ExpectedAttention final : public Scorer {
 public:
  explicit ExpectedAttention(const Settings& settings) : settings_{settings} {}

  std::vector<double> score(const ScoredTokens& tokens, const SessionPlace& place) const override {
    KVSIM_CHECK(place.rope != nullptr, "expected attention without the rotary embedding");
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    const std::size_t n = tokens.size();
    std::vector<double> all(n, std::numeric_limits<double>::infinity());
    const std::size_t sinks = std::min(static_cast<std::size_t>(settings_.sinks), n);
    const std::int64_t first = std::max(tokens.first_query, settings_.sinks);
    if (sinks == n || first >= tokens.tokens) return all;
    std::vector<double> sum(n - sinks, 0.0);
    for (std::int32_t g = 0; g < tokens.head.group; ++g) {
      const auto queries =
          tokens.head.q.subspan(static_cast<std::size_t>(g * tokens.head.tokens + first) * d,
                                static_cast<std::size_t>(tokens.tokens - first) * d);
      QueryMoments moments = query_moments(queries, first, tokens.head.head_dim, *place.rope);
      turn_to_future(moments, *place.rope, tokens.tokens, settings_.future);
      std::vector<double> weights =
          expected_logits(moments, tokens.keys.subspan(sinks * d), tokens.head.head_dim,
                          tokens.head.scale, settings_.covariance);
      softmax_in_place(weights);
      for (std::size_t i = 0; i < weights.size(); ++i) sum[i] += weights[i];
    }
    for (std::size_t i = sinks; i < n; ++i) {
      const auto value = tokens.values.subspan(i * d, d);
      const double norm = settings_.vnorm ? std::sqrt(dot(value, value)) : 1.0;
      all[i] = (sum[i - sinks] / tokens.head.group + settings_.epsilon) * norm;
    }
    return all;
  }
  double forced_score(double highest) const override { return highest + 1; }
  bool non_negative() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.inputs.rope = true;
    return needs;
  }
  std::int32_t past_queries() const override { return kDecodingBuffer; }
  Bytes past_bytes(const HeadShape& shape) const override {
    // Hidden states belong to the layer; each stored head has a share.
    const double elements =
        settings_.width > 0 && settings_.kv_heads > 0
            ? kDecodingBuffer * settings_.width / settings_.kv_heads
            : static_cast<double>(kDecodingBuffer) * shape.group * shape.head_dim;
    return bytes_of(static_cast<std::int64_t>(std::ceil(elements)), shape.recorded);
  }
  ScoreCost cost(double entries, double queries, const HeadShape& shape) const override {
    const double square = static_cast<double>(shape.head_dim) * shape.head_dim;
    const double moments = settings_.covariance ? 2.0 * shape.group * queries * square : 0;
    const double forms = settings_.covariance ? 2.0 * shape.group * entries * square : 0;
    const double linear = 2.0 * shape.group * entries * shape.head_dim;
    return {.flops = moments + forms + linear,
            .read = shape.group * (queries + entries) * shape.row_bytes() / 2 +
                    (settings_.vnorm ? entries * shape.row_bytes() / 2 : 0),
            .transient = truncated<Bytes>(entries * 4.0 * shape.group) +
                         truncated<Bytes>(square * 4.0) * shape.group};
  }

 private:
  Settings settings_;
};

std::shared_ptr<const SelectRule> resolve_expected_attention(MethodResolver& resolver) {
  return make_scored(resolver, make_expected_attention(resolver));
}

}  // namespace

std::vector<ParamInfo> expected_attention_params() {
  const std::string source = "kvpress, ExpectedAttentionPress";
  return {integer_param("n_sink", "", 4, 0, kManyEntries, "an integer >= 0",
                        "first tokens that stay out of the statistics and are kept",
                        "kvpress, LagKVPress and ExpectedAttentionPress"),
          integer_param("n_future_positions", "", 512, 1, 1e6, "an integer in [1, 1000000]",
                        "next positions whose mean rotation is applied to future queries", source,
                        {"n_future"}),
          flag_param("use_covariance", true, "with the queries' covariance, not only their mean",
                     source),
          flag_param("use_vnorm", true, "times the norm of the value", source),
          number_param("epsilon", "", 0.0, 0.0, 1.0, "a number in [0, 1]",
                       "added to the expected attention before the norm of the value",
                       "kvpress 0; 0.02 in LU-KV, 0.01 with AdaKV on its leaderboard")};
}

std::shared_ptr<const Scorer> make_expected_attention(MethodResolver& resolver) {
  const bool vnorm = resolver.flag("use_vnorm");
  return std::make_shared<ExpectedAttention>(
      Settings{.sinks = resolver.integer("n_sink"),
               .future = resolver.integer("n_future_positions"),
               .covariance = resolver.flag("use_covariance"),
               .vnorm = vnorm,
               // Without value norms, epsilon adds the same amount to all tokens.
               .epsilon = vnorm ? resolver.number("epsilon") : 0.0,
               .width = static_cast<double>(resolver.site().d_model),
               .kv_heads = static_cast<double>(resolver.site().shape.n_kv_heads)});
}
AxisChoice select_expected_attention() {
  return scored_choice("expected-attention", expected_attention_params(),
                       &resolve_expected_attention);
}

}  // namespace kvsim
