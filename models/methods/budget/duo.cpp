// DuoAttention (Xiao et al. 2024): retrieval heads keep all entries, streaming heads keep sinks and
// recent tokens. Heads are classified by a table in the released format (one line per layer, one
// number per KV head; heads with the lowest numbers stream) or by scores of the prompt
// (models/math: retrieval_score).

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"
#include "models/methods/budget/head_table.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class DuoBudget final : public BudgetRule {
 public:
  DuoBudget(std::int64_t entries, double fraction, bool at_least, HeadTable table)
      : entries_{entries}, fraction_{fraction}, at_least_{at_least}, table_{std::move(table)} {}
  BudgetScope scope() const override { return BudgetScope::kModel; }
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override {
    return std::nullopt;
  }
  bool has_equal_layers() const override { return false; }
  Bytes side_bytes_per_head() const override { return Bytes{8}; }  // length and offset, int32

  std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const override {
    struct Place {
      double score;
      std::size_t layer, head;
    };
    std::vector<Place> heads;
    std::vector<std::vector<EntryBudget>> given;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      given.emplace_back(layers[layer].size());
      for (std::size_t head = 0; head < layers[layer].size(); ++head) {
        const double score =
            table_.empty() ? layers[layer][head].statistic : table_.at(layer).at(head);
        heads.push_back({score, layer, head});
      }
    }
    std::stable_sort(heads.begin(), heads.end(),
                     [](const Place& a, const Place& b) { return a.score < b.score; });
    const double exact = fraction_ * static_cast<double>(heads.size());
    // The released code rounds to nearest; rounding up never exceeds a budget (1e-9: the solution's
    // rounding error).
    const double streaming = at_least_ ? std::ceil(exact - 1e-9) : std::nearbyint(exact);
    for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(streaming), heads.size()); ++i) {
      given[heads[i].layer][heads[i].head].entries = entries_;
    }
    return given;
  }

 private:
  std::int64_t entries_;
  double fraction_;
  bool at_least_;
  HeadTable table_;
};

std::shared_ptr<const BudgetRule> resolve_duo(MethodResolver& resolver) {
  if (resolver.choice("select") != "streaming-heads") {
    resolver.refuse("budget=duo is a budget of whole heads: expected select=streaming-heads");
  }
  const std::int64_t entries = resolver.integer("n_sink") + resolver.integer("n_recent");
  HeadTable table;
  if (const std::string& path = resolver.word("heads"); !path.empty()) {
    table = read_head_table(path);
    const auto heads = static_cast<std::size_t>(resolver.site().shape.n_kv_heads);
    const auto layers = static_cast<std::size_t>(resolver.n_layers());
    if (table.size() != layers || (heads > 0 && table.front().size() != heads)) {
      resolver.refuse(fmt::format("heads: expected {} layers of {} KV heads, got {} of {} in {}",
                                  layers, heads, table.size(), table.front().size(), path));
    }
  }
  double fraction = resolver.number("streaming_fraction");
  if (resolver.budget()) {
    if (resolver.given("streaming_fraction")) {
      resolver.refuse("budget and streaming_fraction are both given; one follows from the other");
    }
    const auto prompt = static_cast<double>(resolver.prompt());
    const double share =
        std::min(static_cast<double>(resolver.entries_of(*resolver.budget())) / prompt, 1.0);
    const double streaming = std::min(static_cast<double>(entries) / prompt, 1.0);
    if (share < streaming) {
      resolver.refuse(
          fmt::format("a budget of {:.4g} of {} prompt tokens is below the {:.4g} that sinks and "
                      "recent tokens occupy in every head (DuoAttention: at least {} entries)",
                      share, resolver.prompt(), streaming, entries));
    }
    fraction = streaming < 1 ? (1 - share) / (1 - streaming) : 0;
    resolver.resolve("streaming_fraction", fraction);
  }
  return std::make_shared<DuoBudget>(entries, fraction, resolver.budget().has_value(),
                                     std::move(table));
}

}  // namespace

AxisChoice budget_duo() {
  return {
      .axis = "budget",
      .name = "duo",
      .params =
          {number_param("streaming_fraction", "", 0.5, 0, 1, "a number in [0, 1]",
                        "share of all heads that stream: the lowest scores",
                        "DuoAttention, 0.5 with grouped queries and 0.75 without; kvpress "
                        "head_compression_ratio",
                        {"head_compression_ratio"}),
           path_param(
               "heads",
               "table of head scores, one line per layer; if empty, heads are scored on the prompt",
               "DuoAttention, full_attention_heads.tsv")},
      .make = &resolve_duo};
}

}  // namespace kvsim
