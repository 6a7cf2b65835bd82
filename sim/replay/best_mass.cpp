#include "sim/replay/best_mass.hpp"

#include <algorithm>
#include <functional>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Sums of the largest shares of one row.
class LargestShares {
 public:
  void start(std::span<const double> shares) {
    shares_.assign(shares.begin(), shares.end());
    sums_.clear();
  }
  /// Sorts as far as the largest of `counts`, which is ascending.
  void reach(const std::vector<std::size_t>& counts) {
    sums_.assign(1, 0.0);
    if (counts.empty() || counts.front() >= shares_.size()) return;
    std::size_t most = counts.front();
    for (const std::size_t count : counts) {
      if (count < shares_.size()) most = count;
    }
    const auto end = shares_.begin() + static_cast<std::ptrdiff_t>(most);
    std::nth_element(shares_.begin(), end, shares_.end(), std::greater<>{});
    std::sort(shares_.begin(), end, std::greater<>{});
    for (std::size_t i = 0; i < most; ++i) sums_.push_back(sums_.back() + shares_[i]);
  }
  [[nodiscard]] double sum(std::size_t count) const {
    return count >= shares_.size() ? 1.0 : std::min(sums_[count], 1.0);
  }

 private:
  std::vector<double> shares_;
  std::vector<double> sums_;  // of the first 0, 1, …
};

}  // namespace

void add_best_mass(const HeadVectors& head, const std::vector<HeadSeries*>& all) {
  const auto steps = static_cast<std::size_t>(head.tokens - head.prompt);
  for (HeadSeries* series : all) {
    KVSIM_CHECK(series->costs.size() == steps, "{} steps of {}", series->costs.size(), steps);
    series->best_mass.resize(steps * static_cast<std::size_t>(series->queries));
  }
  if (all.empty() || steps == 0) return;
  LargestShares shares;
  std::vector<std::size_t> counts;
  each_causal_row(head.q, head.keys, head.group, head.head_dim, head.tokens, head.tokens,
                  head.prompt, head.scale, [&](const CausalRow& row) {
                    const auto step = static_cast<std::size_t>(row.t - head.prompt);
                    counts.clear();
                    for (const HeadSeries* series : all) {
                      counts.push_back(static_cast<std::size_t>(series->costs[step].most_read));
                    }
                    std::sort(counts.begin(), counts.end());
                    shares.start(row.probabilities);
                    shares.reach(counts);
                    for (HeadSeries* series : all) {
                      const std::int32_t g = row.g - series->first_query;
                      if (g < 0 || g >= series->queries) continue;
                      const auto at = step * static_cast<std::size_t>(series->queries) +
                                      static_cast<std::size_t>(g);
                      series->best_mass[at] = static_cast<float>(
                          shares.sum(static_cast<std::size_t>(series->costs[step].most_read)));
                    }
                  });
}

}  // namespace kvsim
