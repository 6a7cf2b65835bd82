// One score threshold for the whole model. The total is not fixed unless a budget was requested;
// then the threshold is the quantile that keeps at most this budget.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the smallest threshold reached by at most `room` of `scores`.
double quantile_for(std::vector<double>& scores, std::int64_t room) {
  if (scores.empty() || room >= std::ssize(scores)) return -kInfinity;
  std::sort(scores.begin(), scores.end(), std::greater<>{});
  const double first_out = scores[static_cast<std::size_t>(std::max<std::int64_t>(room, 0))];
  // Equal scores are all kept or all dropped.
  const auto above =
      std::find_if(scores.begin(), scores.end(), [first_out](double x) { return x <= first_out; });
  return above == scores.begin() ? std::nextafter(scores.front(), kInfinity) : *(above - 1);
}

class ThresholdBudget final : public BudgetRule {
 public:
  /// `share`: share of the prompt's entries to keep; 0: the selector's threshold applies.
  explicit ThresholdBudget(double share) : share_{share} {}

  BudgetScope scope() const override {
    return share_ > 0 ? BudgetScope::kModel : BudgetScope::kHead;
  }
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override {
    if (share_ > 0) return std::nullopt;
    return std::numeric_limits<std::int64_t>::max();
  }
  bool has_equal_layers() const override { return true; }
  std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const override {
    std::vector<double> judged;
    std::int64_t all = 0;
    for (const auto& layer : layers) {
      for (const HeadVerdict& head : layer) {
        all += std::ssize(head.importance);
        for (const double x : head.importance) {
          if (x < kInfinity) judged.push_back(x);
        }
      }
    }
    const auto may_stay = static_cast<std::int64_t>(share_ * static_cast<double>(all));
    const double threshold = quantile_for(judged, may_stay - (all - std::ssize(judged)));
    std::vector<std::vector<EntryBudget>> given;
    for (const auto& layer : layers) {
      given.emplace_back(layer.size(), EntryBudget{.threshold = threshold});
    }
    return given;
  }
  // Length and offset of each ragged head, both int32.
  Bytes side_bytes_per_head() const override { return Bytes{8}; }

 private:
  double share_;
};

std::shared_ptr<const BudgetRule> resolve_threshold(MethodResolver& resolver) {
  if (resolver.choice("select") != "kvzap") {
    resolver.refuse(
        fmt::format("budget=threshold requires a selector with a threshold, but select={} does not "
                    "have one (expected select=kvzap)",
                    resolver.choice("select")));
  }
  double share = 0;
  if (const auto& budget = resolver.budget()) {
    share = static_cast<double>(resolver.entries()) / static_cast<double>(resolver.prompt());
    if (budget->fraction > 0) {  // not rounded to whole entries per head
      share = budget->fraction;
      const double bits = resolver.store().bits_per_element(
          std::max(resolver.site().shape.head_dim, 1), resolver.site().recorded);
      if (bits != bits_of(resolver.site().recorded)) {
        share *= bits_of(resolver.site().recorded) / bits;
      }
    }
  }
  return std::make_shared<ThresholdBudget>(share);
}

}  // namespace

AxisChoice budget_threshold() {
  return {.axis = "budget", .name = "threshold", .params = {}, .make = &resolve_threshold};
}

}  // namespace kvsim
