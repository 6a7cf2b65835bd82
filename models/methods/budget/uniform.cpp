// The same number of entries in every layer and head.

#include "models/methods/axes.hpp"

namespace kvsim {
namespace {

class UniformBudget final : public BudgetRule {
 public:
  explicit UniformBudget(std::int64_t entries) : entries_{entries} {}
  std::int64_t entries(std::int32_t /*layer*/) const override { return entries_; }
  bool layers_alike() const override { return true; }

 private:
  std::int64_t entries_;
};

}  // namespace

std::shared_ptr<const BudgetRule> make_budget_uniform(std::int64_t entries) {
  return std::make_shared<UniformBudget>(entries);
}

}  // namespace kvsim
