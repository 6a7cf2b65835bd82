// The same number of entries in every layer and head, or no limit at all.

#include <limits>

#include "models/methods/budget/budget.hpp"

namespace kvsim {
namespace {

class UniformBudget final : public BudgetRule {
 public:
  explicit UniformBudget(std::int64_t entries) : entries_{entries} {}
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override { return entries_; }
  bool has_equal_layers() const override { return true; }

 private:
  std::int64_t entries_;
};

std::shared_ptr<const BudgetRule> unlimited(MethodResolver& /*resolving*/) {
  return std::make_shared<UniformBudget>(std::numeric_limits<std::int64_t>::max());
}

std::shared_ptr<const BudgetRule> uniform(MethodResolver& resolver) {
  return std::make_shared<UniformBudget>(resolver.entries());
}

}  // namespace

AxisChoice budget_none() {
  return {.axis = "budget", .name = "none", .params = {}, .make = &unlimited};
}
AxisChoice budget_uniform() {
  return {.axis = "budget", .name = "uniform", .params = {}, .make = &uniform};
}

}  // namespace kvsim
