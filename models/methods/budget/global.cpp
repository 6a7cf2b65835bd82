// One ranking for all heads of a layer or of the whole model: KVzip's non-uniform budgets. Heads
// become ragged and may lose all prompt tokens.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// An entry of the prompt, ranked for eviction by importance; ties evict the younger entry, then
/// the later head's.
struct Ranked {
  double importance;
  std::int32_t id;
  std::size_t head;
  [[nodiscard]] bool leaves_before(const Ranked& other) const {
    if (importance != other.importance) return importance < other.importance;
    return id != other.id ? id > other.id : head > other.head;
  }
};

/// Returns the entries of each head after the `pruned` least important entries of all heads are
/// dropped.
std::vector<EntryBudget> keep_all_but(std::int64_t pruned,
                                      const std::vector<const HeadVerdict*>& heads) {
  std::vector<Ranked> ranked;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    for (std::size_t i = 0; i < heads[h]->importance.size(); ++i) {
      ranked.push_back({heads[h]->importance[i], static_cast<std::int32_t>(i), h});
    }
  }
  KVSIM_CHECK(pruned >= 0 && pruned <= std::ssize(ranked), "{} of {} entries are to leave", pruned,
              ranked.size());
  if (pruned > 0) {
    std::nth_element(ranked.begin(), ranked.begin() + (pruned - 1), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.leaves_before(b); });
  }
  std::vector<EntryBudget> left(heads.size());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    left[h].entries = std::ssize(heads[h]->importance);
  }
  for (std::int64_t i = 0; i < pruned; ++i) {
    --left[ranked[static_cast<std::size_t>(i)].head].entries;
  }
  return left;
}

class GlobalBudget final : public BudgetRule {
 public:
  /// `entries`: requested mean per head; if 0, the share `ratio` of all entries is dropped.
  GlobalBudget(bool by_layer, double ratio, std::int64_t entries)
      : by_layer_{by_layer}, ratio_{ratio}, entries_{entries} {}

  BudgetScope scope() const override {
    return by_layer_ ? BudgetScope::kLayer : BudgetScope::kModel;
  }
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override {
    return std::nullopt;
  }
  bool has_equal_layers() const override { return false; }
  std::vector<EntryBudget> allot_layer(std::int32_t /*layer*/,
                                       std::span<const HeadVerdict> heads) const override {
    std::vector<const HeadVerdict*> all;
    for (const HeadVerdict& head : heads) all.push_back(&head);
    return keep_all_but(pruned_of(all), all);
  }
  // Each layer drops its least important entries; the global ranking determines their number. The
  // result equals that of the global ranking.
  std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const override {
    std::vector<const HeadVerdict*> all;
    for (const auto& layer : layers) {
      for (const HeadVerdict& head : layer) all.push_back(&head);
    }
    const std::vector<EntryBudget> flat = keep_all_but(pruned_of(all), all);
    std::vector<std::vector<EntryBudget>> given;
    auto next = flat.begin();
    for (const auto& layer : layers) {
      given.emplace_back(next, next + std::ssize(layer));
      next += std::ssize(layer);
    }
    return given;
  }
  // Length and offset of each head, both int32.
  Bytes side_bytes_per_head() const override { return Bytes{8}; }

 private:
  [[nodiscard]] std::int64_t pruned_of(const std::vector<const HeadVerdict*>& heads) const {
    std::int64_t total = 0;
    for (const HeadVerdict* head : heads) total += std::ssize(head->importance);
    if (entries_ > 0) return std::max<std::int64_t>(total - entries_ * std::ssize(heads), 0);
    return static_cast<std::int64_t>(static_cast<double>(total) * ratio_);
  }

  bool by_layer_;
  double ratio_;
  std::int64_t entries_;
};

std::shared_ptr<const BudgetRule> resolve_global(MethodResolver& resolver) {
  const std::string& select = resolver.choice("select");
  if (select != "kvzip" && select != "kvzip-plus") {
    resolver.refuse(fmt::format(
        "budget=global may leave a head without any entry of the prompt, but select={} protects or "
        "replaces a fixed number of entries per head (expected select=kvzip or kvzip-plus)",
        select));
  }
  const auto& budget = resolver.budget();
  return std::make_shared<GlobalBudget>(resolver.word("level") == "layerwise",
                                        resolver.number("ratio"),
                                        budget && budget->fraction <= 0 ? resolver.entries() : 0);
}

}  // namespace

AxisChoice budget_global() {
  return {.axis = "budget",
          .name = "global",
          .params = {word_param(
              "level", {"pair", "layerwise"},
              "one ranking for all layers and heads, or one per layer with equal totals",
              "KVzip, official code: pair, pair-uniform")},
          .make = &resolve_global};
}

}  // namespace kvsim
