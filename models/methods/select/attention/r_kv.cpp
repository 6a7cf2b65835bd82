// R-KV (Cai et al. 2025): importance minus redundancy, every 128 decode steps.
//
//   score = lambda * importance - (1 - lambda) * redundancy
//
// Importance of the entries before the last w: logits of the last w queries, maximum over the
// group, softmax over only these entries, mean over queries, max-pooled over 7. Redundancy:
// models/math/key_redundancy over all entries. The last w are always kept.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "models/math/attention/attend.hpp"
#include "models/math/attention/key_redundancy.hpp"
#include "models/methods/select/attention/periodic.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

struct Settings {
  std::int32_t window = 8;
  std::int32_t kernel = 7;
  double lambda = 0.07;
  RedundancyRule redundancy;
};

class RkvScorer final : public Scorer {
 public:
  explicit RkvScorer(const Settings& settings) : settings_{settings} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const std::size_t n = tokens.size();
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    std::vector<double> all(n, std::numeric_limits<double>::infinity());
    const auto window = std::min(static_cast<std::size_t>(settings_.window), n);
    if (window == n) return all;
    const std::size_t before = n - window;
    const HeadVectors& head = tokens.head;
    GroupAttention attention{head.group, head.head_dim, head.scale};
    std::vector<float> q(static_cast<std::size_t>(head.group) * d);
    std::vector<double> importance(before, 0.0);
    std::vector<double> row(before);
    for (std::int64_t t = tokens.tokens - static_cast<std::int64_t>(window); t < tokens.tokens;
         ++t) {
      for (std::int32_t g = 0; g < head.group; ++g) {
        std::copy_n(head.query(g, t).data(), d, q.data() + static_cast<std::size_t>(g) * d);
      }
      attention.run_weights(q, tokens.keys.first(before * d), {});
      row.assign(before, -std::numeric_limits<double>::infinity());
      for (std::int32_t g = 0; g < head.group; ++g) {
        const auto logits = attention.logits(g);
        for (std::size_t i = 0; i < before; ++i) row[i] = std::max(row[i], logits[i]);
      }
      softmax_in_place(row);
      for (std::size_t i = 0; i < before; ++i) importance[i] += row[i];
    }
    for (double& x : importance) x /= static_cast<double>(window);
    const std::vector<double> pooled = pool(importance, settings_.kernel, /*maximum=*/true);
    const std::vector<double> redundant =
        key_redundancy(tokens.keys, head.head_dim, settings_.redundancy);
    for (std::size_t i = 0; i < before; ++i) {
      all[i] = settings_.lambda * pooled[i] - (1 - settings_.lambda) * redundant[i];
    }
    return all;
  }
  bool non_negative() const override { return false; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = settings_.window;
    return needs;
  }
  std::int32_t past_queries() const override { return settings_.window; }
  ScoreCost cost(double entries, double queries, const HeadShape& shape) const override {
    const double rows = std::min(queries, static_cast<double>(settings_.window));
    return {.flops = 2.0 * entries * entries * shape.head_dim +
                     rows * shape.group * entries * 2.0 * shape.head_dim,
            .read = entries * shape.row_bytes() / 2,
            // The released code computes the full matrix of cosines.
            .transient = truncated<Bytes>(entries * entries * 4.0)};
  }

 private:
  Settings settings_;
};

RetainDirection direction_of(const std::string& word) {
  if (word == "first") return RetainDirection::kFirst;
  if (word == "last_percent") return RetainDirection::kLastPercent;
  if (word == "first_percent") return RetainDirection::kFirstPercent;
  return RetainDirection::kLast;
}

std::shared_ptr<const SelectRule> resolve_r_kv(MethodResolver& resolver) {
  const std::int64_t entries = resolver.budget_entries(0.2);
  resolver.set_entries(entries);
  const std::int64_t window = resolver.integer("window");
  if (entries - resolver.reserve_slots(entries) <= window) {
    resolver.refuse(fmt::format(
        "a budget of {} entries leaves none outside the window of {} (R-KV: budget > window)",
        entries, window));
  }
  const std::int64_t kernel = resolver.integer("kernel");
  if (kernel % 2 == 0) {
    resolver.refuse(fmt::format(
        "kernel: expected an odd integer, so that pooling is symmetric (R-KV), got {}", kernel));
  }
  const bool by_share = resolver.word("retain_direction").ends_with("_percent");
  return make_periodic(
      {.interval = resolver.integer("divide_length"), .target = 0, .prompt_too = true},
      std::make_shared<RkvScorer>(Settings{
          .window = static_cast<std::int32_t>(window),
          .kernel = static_cast<std::int32_t>(kernel),
          .lambda = resolver.number("mix_lambda"),
          .redundancy = {.threshold = resolver.number("threshold"),
                         .retain = direction_of(resolver.word("retain_direction")),
                         .retain_ratio = by_share ? resolver.number("retain_ratio") : 0.0}}));
}

}  // namespace

AxisChoice select_r_kv() {
  const std::string source = "R-KV, released code";
  return {
      .axis = "select",
      .name = "r-kv",
      .params = {integer_param("window", "w", 8, 1, 1e6, "an integer in [1, 1000000]",
                               "last queries whose attention counts, and last entries always kept",
                               source, {"window_size"}),
                 integer_param("kernel", "", 7, 1, 1e6, "an odd integer >= 1",
                               "width of the max-pooling of importance", source, {"kernel_size"}),
                 number_param("mix_lambda", "lambda", 0.07, 0, 1, "a number in [0, 1]",
                              "weight of importance against redundancy",
                              "R-KV, released code; 0.1 in its scripts", {"lambda"}),
                 number_param("threshold", "", 0.5, -1, 1, "a number in [-1, 1]",
                              "cosine above which keys are too similar", source),
                 word_param("retain_direction", {"last", "first", "last_percent", "first_percent"},
                            "which of the keys that are too similar is spared", source),
                 number_param("retain_ratio", "", 0.1, 0, 1, "a number in [0, 1]",
                              "share of the entries spared by last_percent and first_percent",
                              source),
                 integer_param("divide_length", "", 128, 1, kManyEntries, "an integer >= 1",
                               "decode steps between compressions", source)},
      .make = &resolve_r_kv};
}

}  // namespace kvsim
