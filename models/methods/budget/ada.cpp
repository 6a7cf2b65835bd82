// AdaKV (Feng et al. 2024): the heads of a layer share one budget, distributed by scores.
//
// official: with base budget m per head (protected entries excluded) and floor alpha,
//   count_h    = number of the layer's top Hkv m scores that are in head h
//   capacity_h = round((1 - alpha) count_h + int(alpha m)), plus the protected entries
//   The sum may differ from Hkv m by rounding.
// kvpress: each head keeps its top int(alpha n). The highest of the layer's other scores are kept,
//   so that Hkv n entries are kept in total.

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "models/methods/budget/budget.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOfficialFloor = 0.5;
constexpr double kKvpressFloor = 0.2;

struct Settings {
  std::int64_t entries = 0;
  double floor = kOfficialFloor;
  bool kvpress = false;
  bool normalize = false;
};

/// Returns the number of each head's scores among the `count` highest scores of all heads. Ties go
/// to the older token, then to the lower head.
std::vector<std::int64_t> shares_of(const std::vector<std::vector<double>>& heads,
                                    std::int64_t count) {
  struct Place {
    double score;
    std::int32_t position, head;
  };
  std::vector<Place> pooled;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    for (std::size_t i = 0; i < heads[h].size(); ++i) {
      pooled.push_back({heads[h][i], static_cast<std::int32_t>(i), static_cast<std::int32_t>(h)});
    }
  }
  std::vector<std::int64_t> shares(heads.size(), 0);
  count = std::clamp<std::int64_t>(count, 0, std::ssize(pooled));
  const auto end = pooled.begin() + static_cast<std::ptrdiff_t>(count);
  if (end != pooled.end()) {
    std::nth_element(pooled.begin(), end, pooled.end(), [](const Place& a, const Place& b) {
      if (a.score != b.score) return a.score > b.score;
      return a.position != b.position ? a.position < b.position : a.head < b.head;
    });
  }
  for (auto it = pooled.begin(); it != end; ++it) ++shares[static_cast<std::size_t>(it->head)];
  return shares;
}

/// Multiplies scores by the `count` highest scores' share of their sum.
void weigh(std::vector<double>& scores, std::int64_t count) {
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>{});
  double top = 0;
  double all = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (static_cast<std::int64_t>(i) < count) top += sorted[i];
    all += sorted[i];
  }
  if (all <= 0) return;
  for (double& x : scores) x *= top / all;
}

class AdaBudget final : public BudgetRule {
 public:
  explicit AdaBudget(const Settings& settings) : settings_{settings} {}
  BudgetScope scope() const override { return BudgetScope::kLayer; }
  std::optional<std::int64_t> entries(std::int32_t /*layer*/) const override {
    return std::nullopt;
  }
  bool has_equal_layers() const override { return false; }
  Bytes side_bytes_per_head() const override { return Bytes{8}; }  // length and offset, int32

  std::vector<EntryBudget> allot_layer(std::int32_t /*layer*/,
                                       std::span<const HeadVerdict> heads) const override {
    std::vector<EntryBudget> given;
    const auto prompt = static_cast<std::int64_t>(heads.front().importance.size());
    if (settings_.entries >= prompt) {
      given.assign(heads.size(), {.entries = prompt});
      for (EntryBudget& each : given) each.entries = settings_.entries;
      return given;
    }
    // Protected entries belong to their head; all other scores are pooled.
    std::vector<std::vector<double>> open(heads.size());
    std::vector<std::int64_t> own(heads.size(), 0);
    std::int64_t pooled = 0;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (const double x : heads[h].importance) {
        if (x < kInfinity) {
          open[h].push_back(x);
        } else {
          ++own[h];
        }
      }
      own[h] = std::min(own[h], settings_.entries);
      const std::int64_t base = settings_.entries - own[h];
      if (settings_.normalize) weigh(open[h], base);
      pooled += base;
    }
    const std::vector<std::int64_t> capacity =
        settings_.kvpress ? kvpress(open, own, pooled) : official(open, own, pooled);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      // Attention needs at least one entry per head.
      given.push_back({.entries = std::max<std::int64_t>(capacity[h] + own[h], 1)});
    }
    return given;
  }

 private:
  [[nodiscard]] std::int64_t floor_of(std::int64_t base) const {
    return static_cast<std::int64_t>(settings_.floor * static_cast<double>(base));
  }
  [[nodiscard]] std::vector<std::int64_t> official(const std::vector<std::vector<double>>& open,
                                                   const std::vector<std::int64_t>& own,
                                                   std::int64_t pooled) const {
    std::vector<std::int64_t> capacity = shares_of(open, pooled);
    for (std::size_t h = 0; h < open.size(); ++h) {
      const double exact = (1.0 - settings_.floor) * static_cast<double>(capacity[h]) +
                           static_cast<double>(floor_of(settings_.entries - own[h]));
      capacity[h] = static_cast<std::int64_t>(std::nearbyint(exact));  // half to even
    }
    return capacity;
  }
  /// Every head keeps its floor; the heads compete for the remaining entries.
  [[nodiscard]] std::vector<std::int64_t> kvpress(std::vector<std::vector<double>> open,
                                                  const std::vector<std::int64_t>& own,
                                                  std::int64_t pooled) const {
    std::vector<std::int64_t> safe;
    std::int64_t left = pooled;
    for (std::size_t h = 0; h < open.size(); ++h) {
      safe.push_back(
          std::clamp<std::int64_t>(floor_of(settings_.entries) - own[h], 0, std::ssize(open[h])));
      std::nth_element(open[h].begin(), open[h].begin() + static_cast<std::ptrdiff_t>(safe[h]),
                       open[h].end(), std::greater<>{});
      open[h].erase(open[h].begin(), open[h].begin() + static_cast<std::ptrdiff_t>(safe[h]));
      left -= safe[h];
    }
    std::vector<std::int64_t> capacity = shares_of(open, left);
    for (std::size_t h = 0; h < open.size(); ++h) capacity[h] += safe[h];
    return capacity;
  }

  Settings settings_;
};

std::shared_ptr<const BudgetRule> resolve_ada(MethodResolver& resolver) {
  if (resolver.entries() < 1) {
    resolver.refuse(
        fmt::format("budget=ada distributes entries among heads, but select={} takes no budget",
                    resolver.choice("select")));
  }
  const bool kvpress = resolver.word("ada_form") == "kvpress";
  const std::string& select = resolver.choice("select");
  if (resolver.flag("ada_normalize") && (select == "knorm" || select == "keydiff")) {
    resolver.refuse("ada_normalize weights scores by shares of their sum, but scores of select=" +
                    select + " are not all positive");
  }
  double floor = resolver.number("ada_alpha");
  if (floor < 0) floor = kvpress ? kKvpressFloor : kOfficialFloor;
  resolver.resolve("ada_alpha", floor);
  return std::make_shared<AdaBudget>(Settings{.entries = resolver.entries(),
                                              .floor = floor,
                                              .kvpress = kvpress,
                                              .normalize = resolver.flag("ada_normalize")});
}

}  // namespace

AxisChoice budget_ada() {
  return {
      .axis = "budget",
      .name = "ada",
      .params = {number_param("ada_alpha", "alpha", -1, -1, 1,
                              "a number in [0, 1]; -1: default of ada_form",
                              "share of the base budget that is reserved for each head",
                              "AdaKV, released code 0.5; KVCache-Factory and kvpress 0.2",
                              {"alpha_safeguard"}),
                 word_param("ada_form", {"official", "kvpress"},
                            "a head's share of the pooled top, rounded, in addition to its floor "
                            "(official); or its floor and the best of all others (kvpress)",
                            "AdaKV alg. 1, released code; kvpress AdaKVPress"),
                 flag_param("ada_normalize", false,
                            "weight a head's scores by the share of its top scores in their sum",
                            "AdaKV, released code")},
      .make = &resolve_ada};
}

}  // namespace kvsim
