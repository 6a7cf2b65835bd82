// SimLayerKV (Zhang et al. 2024): a layer whose last query attends only to sinks and recent tokens
// is lazy and keeps only these.
//
//   lazy <=> mean over heads of the statistic > lazy_threshold
//
// A lazy layer keeps n_sink + n_recent - 1 entries (4 + 1023 as released: the last query's position
// is excluded), the other layers keep all.

#include <limits>

#include "models/methods/budget/budget.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class LazyBudget final : public BudgetRule {
 public:
  LazyBudget(std::int64_t entries, double threshold) : entries_{entries}, threshold_{threshold} {}
  BudgetScope scope() const override { return BudgetScope::kLayer; }
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override {
    return std::nullopt;
  }
  bool has_equal_layers() const override { return false; }
  std::vector<EntryBudget> allot_layer(std::int32_t /*layer*/,
                                       std::span<const HeadVerdict> heads) const override {
    double mean = 0;
    for (const HeadVerdict& head : heads) mean += head.statistic;
    mean /= static_cast<double>(heads.size());
    EntryBudget one;
    if (mean > threshold_) one.entries = entries_;
    return std::vector<EntryBudget>(heads.size(), one);
  }

 private:
  std::int64_t entries_;
  double threshold_;
};

std::shared_ptr<const BudgetRule> resolve_lazy(MethodResolver& resolver) {
  if (resolver.choice("select") != "lazy-layers") {
    resolver.refuse(
        "budget=lazy judges layers by a statistic that only select=lazy-layers computes");
  }
  return std::make_shared<LazyBudget>(resolver.integer("n_sink") + resolver.integer("n_recent") - 1,
                                      resolver.number("lazy_threshold"));
}

}  // namespace

AxisChoice budget_lazy() {
  return {.axis = "budget",
          .name = "lazy",
          .params = {number_param(
              "lazy_threshold", "", 0.9, 0, 1, "a number in [0, 1]; 1: no layer is lazy",
              "share of the last query's attention on sinks and recent tokens above which a layer "
              "is lazy",
              "SimLayerKV: Llama-3 0.9, Llama-2 0.65, Mistral 0.8, Qwen 0.85; kvpress 1")},
          .make = &resolve_lazy};
}

}  // namespace kvsim
