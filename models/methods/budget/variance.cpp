// D2O's layer budgets (Wan et al. 2024): a layer with evenly spread prompt attention gets more.
//
//   f_l = mean over heads of the min-max normalised variance over keys of the column sums
//   share_l = softmax over layers of (-f_l) * layers * rho, clamped to [0.01, 1]
//
// Layers 0, 1 and the last layer are not compressed.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"

namespace kvsim {
namespace {

constexpr double kMinShare = 0.01;
constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();

double variance(const std::vector<double>& values) {
  double mean = 0;
  for (const double x : values) mean += x / static_cast<double>(values.size());
  double sum = 0;
  for (const double x : values) sum += (x - mean) * (x - mean);
  return sum / static_cast<double>(values.size());
}

struct Settings {
  double entries = 0;  // mean over the compressed layers
  std::int64_t prompt = 0;
  std::int32_t n_layers = 0;
  bool some_whole = true;
  bool renormalise = false;
};

class VarianceBudget final : public BudgetRule {
 public:
  explicit VarianceBudget(const Settings& settings) : settings_{settings} {}
  BudgetScope scope() const override { return BudgetScope::kModel; }
  std::optional<std::int64_t> entries(std::int32_t layer) const override {
    if (is_whole(layer)) return kWhole;
    if (covers_prompt()) return static_cast<std::int64_t>(settings_.entries);
    return std::nullopt;
  }
  bool has_equal_layers() const override { return false; }

  std::vector<std::vector<EntryBudget>> allot_model(
      std::span<const std::vector<HeadVerdict>> layers) const override {
    std::vector<double> spread;
    for (const auto& heads : layers) spread.push_back(layer_spread(heads));
    // The softmax is computed over the layers that share the budget.
    double sum = 0;
    double count = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (is_whole(static_cast<std::int32_t>(l))) continue;
      sum += std::exp(-spread[l]);
      ++count;
    }
    const auto prompt = static_cast<double>(settings_.prompt);
    std::vector<double> share(layers.size(), 1.0);
    double given = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (is_whole(static_cast<std::int32_t>(l))) continue;
      share[l] = std::clamp(std::exp(-spread[l]) / sum * count * settings_.entries / prompt,
                            kMinShare, 1.0);
      given += share[l];
    }
    std::vector<std::vector<EntryBudget>> all;
    double owed = 0;  // the loss from rounding down is carried to the next layer to keep the sum
    for (std::size_t l = 0; l < layers.size(); ++l) {
      EntryBudget each{.entries = kWhole};
      if (!is_whole(static_cast<std::int32_t>(l))) {
        double wanted = share[l] * prompt;
        if (settings_.renormalise) wanted *= count * settings_.entries / (given * prompt);
        owed += std::min(wanted, prompt);
        constexpr double kRounding = 1e-9;
        each.entries = std::max<std::int64_t>(static_cast<std::int64_t>(owed + kRounding), 1);
        owed -= static_cast<double>(each.entries);
        if (covers_prompt()) each.entries = static_cast<std::int64_t>(settings_.entries);
      }
      all.emplace_back(layers[l].size(), each);
    }
    return all;
  }

 private:
  /// True if the mean budget covers the whole prompt. Shares are at most the whole prompt, so there
  /// is nothing to distribute, and each layer may grow to the budget.
  [[nodiscard]] bool covers_prompt() const {
    return settings_.entries >= static_cast<double>(settings_.prompt);
  }
  [[nodiscard]] bool is_whole(std::int32_t layer) const {
    return settings_.some_whole && (layer <= 1 || layer == settings_.n_layers - 1);
  }
  static double layer_spread(const std::vector<HeadVerdict>& heads) {
    std::vector<double> each;
    for (const HeadVerdict& head : heads) each.push_back(variance(head.score));
    const auto [low, high] = std::minmax_element(each.begin(), each.end());
    if (*high == *low) return 0;  // equal heads: the range is zero
    double mean = 0;
    for (const double x : each) {
      mean += (x - *low) / (*high - *low) / static_cast<double>(each.size());
    }
    return mean;
  }
  Settings settings_;
};

std::shared_ptr<const BudgetRule> resolve_variance(MethodResolver& resolver) {
  if (resolver.choice("select") != "accumulated") {
    resolver.refuse(
        "budget=variance compares column sums of attention: expected "
        "select=accumulated");
  }
  const std::int32_t layers = resolver.n_layers();
  const bool some_whole = resolver.flag("whole_layers");
  const std::int32_t whole = some_whole ? std::min(layers, 3) : 0;
  const auto prompt = static_cast<double>(resolver.prompt());
  auto entries = static_cast<double>(resolver.entries());
  if (whole == layers) {
    resolver.refuse(fmt::format(
        "the first two layers and the last stay whole; these are all {} layers, so nothing would "
        "be compressed: expected whole_layers=false or a model of more than 3 layers",
        layers));
  }
  if (resolver.word("budget_of") == "all") {
    entries = (entries * layers - prompt * whole) / (layers - whole);
    if (entries < 1) {
      resolver.refuse(fmt::format(
          "{} of {} layers stay whole, which is already {:.3g} of the cache: expected a budget "
          "above that, whole_layers=false, or budget_of=compressed (the share of the other layers)",
          whole, layers, static_cast<double>(whole) / layers));
    }
  }
  return std::make_shared<VarianceBudget>(Settings{.entries = entries,
                                                   .prompt = resolver.prompt(),
                                                   .n_layers = layers,
                                                   .some_whole = some_whole,
                                                   .renormalise = resolver.flag("renormalise")});
}

}  // namespace

AxisChoice budget_variance() {
  return {.axis = "budget",
          .name = "variance",
          .params =
              {flag_param("whole_layers", true, "layers 0, 1 and the last are not compressed",
                          "D2O, released code"),
               word_param(
                   "budget_of", {"compressed", "all"},
                   "base of the budget: the compressed layers, or all layers, including whole ones",
                   "D2O states its ratio for the compressed layers"),
               flag_param("renormalise", false,
                          "rescale shares to the budget after they are clamped", "ours")},
          .make = &resolve_variance};
}

}  // namespace kvsim
