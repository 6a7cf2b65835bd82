// What every selector shares: the promises of plan() and victim(), kept here once.

#include <algorithm>
#include <limits>
#include <numeric>

#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {

std::vector<std::int32_t> Selector::plan(std::int32_t prompt, std::int32_t budget) const {
  KVSIM_CHECK(budget >= 1 && prompt >= 1, "budget {} of {} tokens", budget, prompt);
  std::vector<std::int32_t> order(static_cast<std::size_t>(prompt));
  std::iota(order.begin(), order.end(), 0);
  if (budget >= prompt) return order;
  std::vector<double> score(order.size());
  for (const std::int32_t id : order) {
    score[static_cast<std::size_t>(id)] = importance(id, prompt - 1, /*at_prefill=*/true);
  }
  const auto more_important = [&score](std::int32_t a, std::int32_t b) {
    const double x = score[static_cast<std::size_t>(a)];
    const double y = score[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::nth_element(order.begin(), order.begin() + budget, order.end(), more_important);
  order.resize(static_cast<std::size_t>(budget));
  std::sort(order.begin(), order.end());
  return order;
}

std::int32_t Selector::victim(const EntryTable& entries, std::int32_t newest) const {
  std::int32_t worst = -1;
  double lowest = std::numeric_limits<double>::infinity();
  for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
    if (entries.is_merged(slot)) continue;
    const double score = importance(entries.id(slot), newest, /*at_prefill=*/false);
    if (score < lowest || (score == lowest && worst >= 0 && entries.id(slot) > entries.id(worst))) {
      lowest = score;
      worst = slot;
    }
  }
  KVSIM_CHECK(worst >= 0, "every one of {} entries is protected", entries.size());
  return worst;
}

}  // namespace kvsim
