// Budgets that differ by layer and are known in advance: PyramidKV's arithmetic decay, a cosine,
// and uncompressed first layers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"
#include "models/methods/budget/layer_budget.hpp"
#include "models/methods/budget/nested.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// Returns true for a budget above any prompt: every layer may keep the whole prompt, and sums of
/// such budgets would overflow.
bool beyond_any_prompt(std::int64_t entries) { return entries > std::int64_t{1} << 50; }

/// Entries that the pyramid keeps in every layer: the selector's window or recent tokens.
std::int64_t window_of(const MethodResolver& resolver) {
  const std::string& select = resolver.choice("select");
  if (select == "window" || select == "fusion") return resolver.integer("window");
  if (select == "accumulated" || select == "gumbel" || select == "persistence") {
    return resolver.integer("recent");
  }
  return 0;
}

struct Pyramid {
  const MethodResolver& resolver;
  std::int64_t window = 0, layers = 1;
  double beta = 20;

  /// Like the released code: integer steps; the window is added to the numbers. Flooring the step
  /// makes the sum exceed layers * cap by up to layers (layers - 1) / 2.
  [[nodiscard]] std::vector<std::int64_t> released(std::int64_t cap) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(layers), cap);
    const std::int64_t m = cap - window;
    if (m <= 0 || layers == 1 || resolver.prompt() < std::max(cap + 1, 2 * m)) return all;
    auto min = static_cast<std::int64_t>(static_cast<double>(m) / beta);
    std::int64_t max = 2 * m - min;
    if (resolver.prompt() <= window + max) {
      max = resolver.prompt() - window;
      min = 2 * m - max;
    }
    const std::int64_t step = (max - min) / (layers - 1);
    for (std::int64_t l = 0; l < layers; ++l) {
      all[static_cast<std::size_t>(l)] = max - l * step + window;
    }
    return all;
  }

  /// Like kvpress: real-valued steps, rounded; the numbers include the window.
  [[nodiscard]] std::vector<std::int64_t> kvpress(double m) const {
    const auto w = static_cast<double>(window);
    double min = m / beta;
    double max = 2 * m - min;
    bool fits = layers > 1;
    if (resolver.prompt() <= window + static_cast<std::int64_t>(max)) {
      const auto s = static_cast<double>(resolver.prompt());
      max = s - w;
      min = 2 * m - max;
      fits = fits && s >= max;
    }
    fits = fits && max >= min && min >= w;
    std::vector<std::int64_t> all;
    for (std::int64_t l = 0; l < layers; ++l) {
      const double entries =
          fits ? max - static_cast<double>(l) * (max - min) / static_cast<double>(layers - 1) : m;
      all.push_back(std::llrint(entries));  // half to even, like Python's round
    }
    return all;
  }
};

std::shared_ptr<const BudgetRule> pyramid(MethodResolver& resolver) {
  const Pyramid rule{.resolver = resolver,
                     .window = window_of(resolver),
                     .layers = resolver.n_layers(),
                     .beta = resolver.number("pyramid_beta")};
  std::int64_t cap = resolver.entries();
  const double share = resolver.budget() ? resolver.budget()->fraction : 0.0;
  const bool as_released = resolver.flag("window_outside");
  if (beyond_any_prompt(cap)) {
    return std::make_shared<LayerBudget>(
        std::vector<std::int64_t>(static_cast<std::size_t>(rule.layers), cap));
  }
  if (!as_released) {
    if (share <= 0) return std::make_shared<LayerBudget>(rule.kvpress(static_cast<double>(cap)));
    // Entries of the prompt, before truncation.
    const double exact = share * static_cast<double>(resolver.prompt());
    return std::make_shared<LayerBudget>(
        rule.kvpress(static_cast<std::int64_t>(exact) == cap ? exact : static_cast<double>(cap)));
  }
  std::vector<std::int64_t> all = rule.released(cap);
  if (share > 0) {  // a share of the bytes: the largest cap within the total
    const std::int64_t max = cap * rule.layers;
    while (cap > 1 && std::accumulate(all.begin(), all.end(), std::int64_t{0}) > max) {
      all = rule.released(--cap);
    }
    if (resolver.choice("select") == "window") resolver.resolve("cap", cap);
  }
  return std::make_shared<LayerBudget>(std::move(all));
}

/// Returns integers that sum to `total` in the proportions `share`, at most `max` each. The
/// excess of a share goes to the others. The largest remainders are rounded up; ties go to the
/// earlier.
std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& share,
                                    std::int64_t max) {
  const std::size_t n = share.size();
  std::vector<std::int64_t> given(n, -1);
  std::int64_t left = total;
  std::vector<double> exact(n, 0.0);
  for (bool again = true; again;) {
    again = false;
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += given[i] < 0 ? share[i] : 0.0;
    const auto to_give = static_cast<double>(left);
    for (std::size_t i = 0; i < n; ++i) {
      if (given[i] >= 0) continue;
      exact[i] = to_give * share[i] / sum;
      if (exact[i] <= static_cast<double>(max)) continue;
      given[i] = max;
      left -= max;
      again = true;
    }
  }
  std::vector<std::pair<double, std::size_t>> open;  // negated truncated part, and its index
  for (std::size_t i = 0; i < n; ++i) {
    if (given[i] >= 0) continue;
    given[i] = static_cast<std::int64_t>(exact[i]);
    left -= given[i];
    open.emplace_back(static_cast<double>(given[i]) - exact[i], i);
  }
  const auto up = static_cast<std::ptrdiff_t>(
      std::clamp<std::int64_t>(left, 0, static_cast<std::int64_t>(open.size())));
  if (up > 0) std::nth_element(open.begin(), open.begin() + (up - 1), open.end());
  for (std::ptrdiff_t i = 0; i < up; ++i) ++given[open[static_cast<std::size_t>(i)].second];
  return given;
}

std::shared_ptr<const BudgetRule> cosine(MethodResolver& resolver) {
  const std::int32_t layers = resolver.n_layers();
  const double delta = resolver.number("cosine_delta");
  std::vector<double> share;
  for (std::int32_t l = 0; l < layers; ++l) {
    share.push_back(cosine_share(l, layers, delta));
  }
  const std::int64_t mean = resolver.entries();
  if (beyond_any_prompt(mean)) {
    return std::make_shared<LayerBudget>(std::vector<std::int64_t>(share.size(), mean));
  }
  const double sum = std::accumulate(share.begin(), share.end(), 0.0);
  const double largest =
      static_cast<double>(mean * layers) * *std::max_element(share.begin(), share.end()) / sum;
  // At the prompt's end, a layer cannot use more entries than the prompt has. For a shorter prompt,
  // only the mean matters.
  const bool unlimited = resolver.prompt() < mean ||
                         resolver.prompt() >= static_cast<std::int64_t>(std::ceil(largest));
  return std::make_shared<LayerBudget>(
      apportion(mean * layers, share, unlimited ? kNoLimit : resolver.prompt()));
}

class FirstFull final : public BudgetRule {
 public:
  FirstFull(std::int64_t whole, std::int64_t entries) : whole_{whole}, entries_{entries} {}
  std::optional<std::int64_t> entries(std::int32_t layer) const override {
    return layer < whole_ ? kNoLimit : entries_;
  }
  bool keeps_whole(std::int32_t layer) const override { return layer < whole_; }
  bool has_equal_layers() const override { return whole_ == 0; }

 private:
  std::int64_t whole_, entries_;
};

std::shared_ptr<const BudgetRule> first_full(MethodResolver& resolver) {
  const std::int64_t whole = resolver.integer("full_layers");
  if (whole == 0) return std::make_shared<FirstFull>(whole, resolver.entries());
  const std::int64_t layers = resolver.n_layers();
  if (whole >= layers) {
    resolver.refuse(fmt::format(
        "parameter full_layers: expected fewer than the {} layers (MorphKV keeps 3), got {}",
        layers, whole));
  }
  std::int64_t rest = resolver.entries();
  const bool of_all = resolver.budget() && resolver.budget()->fraction > 0;
  if (of_all && rest < resolver.prompt()) {
    const std::int64_t s = resolver.prompt();
    rest = (layers * rest - whole * s) / (layers - whole);
    if (rest < 1) {
      resolver.refuse(
          fmt::format("a budget of {} entries in each of {} layers leaves nothing for the other "
                      "layers if {} layers keep all {} entries",
                      resolver.entries(), layers, whole, s));
    }
  }
  return std::make_shared<FirstFull>(whole, rest);
}

}  // namespace

AxisChoice budget_pyramid() {
  return {.axis = "budget",
          .name = "pyramid",
          .params = {number_param("pyramid_beta", "beta_p", 20.0, 1.0, kManyEntries,
                                  "a number >= 1", "ratio of the mean budget to the last layer's",
                                  "PyramidKV, released code"),
                     flag_param("window_outside", true,
                                "decay over the entries outside the window in whole steps, or as "
                                "in kvpress: real steps, rounded, with the window included",
                                "PyramidKV's released code against kvpress")},
          .make = &pyramid};
}

AxisChoice budget_cosine() {
  return {.axis = "budget",
          .name = "cosine",
          .params = {number_param("cosine_delta", "delta", 0.8, 0, 1.0, "a number in [0, 1]",
                                  "limit of the share of the last layers, with 1 for the first; "
                                  "all shares are then scaled to the mean budget",
                                  "KeepKV, released code")},
          .make = &cosine};
}

AxisChoice budget_first_full() {
  return {.axis = "budget",
          .name = "first_full",
          .params = {integer_param(
              "full_layers", "k", 3, 0, kManyEntries, "an integer >= 0",
              "first layers that keep everything; a fractional budget includes them, a budget in "
              "entries is for the other layers only",
              "MorphKV's variant: 3; Devoto et al. skip 2 (knorm)", {"skip_layers"})},
          .make = &first_full};
}

}  // namespace kvsim
