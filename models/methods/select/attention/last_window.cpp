// Attention of the last queries (SnapKV's score: Li et al. 2024) as a scorer, for the wrappers.
//
//   score_i = pool over i of the mean, over the last w queries and the group, of a_{t,i}
//
// The group is reduced before pooling. The window itself is always kept.

#include <algorithm>
#include <limits>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class LastWindow final : public Scorer {
 public:
  LastWindow(std::int32_t window, std::int32_t kernel, bool maximum)
      : window_{window}, kernel_{kernel}, maximum_{maximum} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const std::size_t n = tokens.size();
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    const auto window = std::min(static_cast<std::size_t>(window_), n);
    std::vector<double> all(n, std::numeric_limits<double>::infinity());
    if (window == n) return all;
    std::vector<double> sum(n - window, 0.0);
    const HeadVectors& head = tokens.head;
    GroupAttention attention{head.group, head.head_dim, head.scale};
    std::vector<float> q(static_cast<std::size_t>(head.group) * d);
    const std::int64_t first =
        std::max(tokens.first_query, tokens.tokens - static_cast<std::int64_t>(window));
    for (std::int64_t t = first; t < tokens.tokens; ++t) {
      for (std::int32_t g = 0; g < head.group; ++g) {
        std::copy_n(head.query(g, t).data(), d, q.data() + static_cast<std::size_t>(g) * d);
      }
      // Attention is also causal within the window.
      const auto seen = static_cast<std::size_t>(
          std::upper_bound(tokens.positions.begin(), tokens.positions.end(), t) -
          tokens.positions.begin());
      attention.run_weights(q, tokens.keys.first(seen * d), {});
      const auto row = attention.group_sum();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
    }
    const double rows = static_cast<double>(tokens.tokens - first) * head.group;
    for (double& x : sum) x /= rows;
    const std::vector<double> pooled = pool(sum, kernel_, maximum_);
    std::copy(pooled.begin(), pooled.end(), all.begin());
    return all;
  }
  bool non_negative() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = window_;
    return needs;
  }
  std::int32_t past_queries() const override { return window_; }
  ScoreCost cost(double entries, double queries, const HeadShape& shape) const override {
    const double rows = std::min(queries, static_cast<double>(window_));
    return {.flops = rows * shape.group * entries * (2.0 * shape.head_dim + 1) + entries * kernel_,
            .read = rows > 0 ? entries * shape.row_bytes() / 2 : 0,
            .transient = truncated<Bytes>(rows * shape.group * entries * 4)};
  }

 private:
  std::int32_t window_, kernel_;
  bool maximum_;
};

std::shared_ptr<const SelectRule> resolve_last_window(MethodResolver& resolver) {
  const std::int64_t entries = resolve_ratio(resolver);
  // If the window exceeds the budget, it shrinks to the budget and nothing is scored.
  if (entries < resolver.integer("window")) resolver.resolve("window", entries);
  return std::make_shared<ScoredRule>(make_last_window(resolver));
}

}  // namespace

std::vector<ParamInfo> last_window_params() {
  const std::string source = "SnapKV, LongBench configurations; kvpress 64 and 5";
  return {integer_param("window", "w", 32, 1, 1e6, "an integer in [1, 1000000]",
                        "last queries whose attention counts, and last tokens always kept", source),
          integer_param("kernel", "k", 7, 1, 1e6, "an odd integer >= 1",
                        "width of the pooling over positions", source),
          word_param("pool", {"max", "avg"}, "maximum, or mean with padding as zeros", source)};
}

std::shared_ptr<const Scorer> make_last_window(MethodResolver& resolver) {
  const std::int64_t kernel = resolver.integer("kernel");
  if (kernel % 2 == 0) {
    resolver.refuse("kernel: expected an odd integer, so that pooling is symmetric (SnapKV), got " +
                    std::to_string(kernel));
  }
  return std::make_shared<LastWindow>(static_cast<std::int32_t>(resolver.integer("window")),
                                      static_cast<std::int32_t>(kernel),
                                      resolver.word("pool") == "max");
}
AxisChoice select_last_window() {
  return scored_choice("last-window", last_window_params(), &resolve_last_window);
}

}  // namespace kvsim
