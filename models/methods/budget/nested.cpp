// Decreasing numbers of tokens from layer to layer: PyramidInfer's cumulative product.

#include "models/methods/budget/nested.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"
#include "models/methods/budget/layer_budget.hpp"
#include "models/units/check.hpp"

namespace kvsim {

double cosine_share(std::int32_t layer, std::int32_t n_layers, double end) {
  return (1.0 - end) * (std::cos(std::numbers::pi * layer / n_layers) + 1.0) / 2.0 + end;
}

std::vector<std::int64_t> nested_lengths(const NestedSchedule& schedule, std::int64_t prompt,
                                         std::int32_t n_layers) {
  KVSIM_CHECK(prompt >= schedule.recent && n_layers >= 1 && schedule.interval >= 1,
              "{} recent of {} tokens in {} layers", schedule.recent, prompt, n_layers);
  std::vector<std::int64_t> lengths;
  std::int64_t context = prompt - schedule.recent;
  for (std::int32_t layer = 0; layer < n_layers; ++layer) {
    lengths.push_back(context + schedule.recent);
    if ((layer + 1) % schedule.interval != 0) continue;
    double share = schedule.delta;
    if (schedule.shape == "cosine") share = cosine_share(layer, n_layers, schedule.delta);
    if (schedule.shape == "linear") share = 1.0 - (1.0 - schedule.delta) * layer / n_layers;
    const auto cut = static_cast<std::int64_t>(static_cast<double>(context) * share);
    if (cut > schedule.min_context) context = cut;
  }
  return lengths;
}

namespace {

/// Layers with equal budgets still differ: each has only the entries that the previous one passed
/// on, and a separate law at decode steps.
class NestedBudget final : public LayerBudget {
 public:
  using LayerBudget::LayerBudget;
  bool has_equal_layers() const override { return false; }
};

std::shared_ptr<const BudgetRule> resolve_nested(MethodResolver& resolver) {
  if (resolver.choice("select") != "pyramidinfer") {
    resolver.refuse(
        fmt::format("budget=nested passes a part of each layer's kept tokens to the next, but "
                    "select={} selects again in each layer (expected select=pyramidinfer)",
                    resolver.choice("select")));
  }
  return std::make_shared<NestedBudget>(
      nested_lengths({.shape = resolver.word("schedule"),
                      .delta = resolver.number("delta"),
                      .recent = resolver.integer("recent_tokens"),
                      .min_context = resolver.integer("min_context"),
                      .interval = static_cast<std::int32_t>(resolver.integer("interval"))},
                     resolver.prompt(), resolver.n_layers()));
}

}  // namespace

AxisChoice budget_nested() {
  return {.axis = "budget", .name = "nested", .params = {}, .make = &resolve_nested};
}

}  // namespace kvsim
