// KVMerger's sets (Wang et al. 2024): the prompt is divided into runs of consecutive tokens with
// similar keys. The token of a run with the largest aggregated attention is kept and represents the
// others. Recent tokens and those with the largest attention are kept unchanged. All generated
// tokens are kept.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

struct Settings {
  double epsilon = 0.75;
  std::int64_t recent = 0, top = 0;
  bool fit_budget = false;  // whether epsilon is chosen to fill the budget
};

class KeyRunsSelector final : public Selector {
 public:
  explicit KeyRunsSelector(const Settings& settings) : settings_{settings} {}

  void learn_prompt(PromptScores& scores) override {
    const HeadVectors& head = scores.heads().front();
    const auto sums = scores.column_sums(1.0);
    const auto s = static_cast<std::size_t>(head.prompt);
    attention_.assign(sums.begin(), sums.end());
    protected_.assign(s, false);
    std::vector<std::int32_t> order;
    for (std::size_t i = 0; i < s; ++i) {
      if (static_cast<std::int64_t>(i) >= head.prompt - settings_.recent) {
        protected_[i] = true;
      } else {
        order.push_back(static_cast<std::int32_t>(i));
      }
    }
    const auto top = std::min(static_cast<std::size_t>(settings_.top), order.size());
    std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
      return attention_[static_cast<std::size_t>(a)] > attention_[static_cast<std::size_t>(b)];
    });
    for (std::size_t i = 0; i < top; ++i) protected_[static_cast<std::size_t>(order[i])] = true;
    // Similarity of each key to the next; tokens that cannot be joined count as dissimilar.
    likeness_.assign(s, -std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i + 1 < s; ++i) {
      if (protected_[i] || protected_[i + 1]) continue;
      const auto a = head.key(static_cast<std::int64_t>(i));
      const auto b = head.key(static_cast<std::int64_t>(i) + 1);
      const double norms = std::sqrt(dot(a, a) * dot(b, b));
      likeness_[i] = norms > 0 ? dot(a, b) / norms : 0.0;
    }
    form_runs(settings_.epsilon);
  }
  void allow(const EntryBudget& allotted, std::int64_t /*room*/) override {
    if (!settings_.fit_budget) return;
    std::vector<double> joinable;
    for (const double x : likeness_) {
      if (std::isfinite(x)) joinable.push_back(x);
    }
    const std::int64_t joins = static_cast<std::int64_t>(likeness_.size()) - allotted.entries;
    double epsilon = std::numeric_limits<double>::infinity();
    if (joins > 0 && !joinable.empty()) {
      // The highest threshold exceeded by this number of neighbours, which bisection would converge
      // to.
      const auto at = std::min(static_cast<std::size_t>(joins), joinable.size()) - 1;
      std::nth_element(joinable.begin(), joinable.begin() + static_cast<std::ptrdiff_t>(at),
                       joinable.end(), std::greater<>{});
      epsilon = std::nextafter(joinable[at], -std::numeric_limits<double>::infinity());
    }
    form_runs(epsilon);
  }

  double score(std::int32_t id) const override {
    return static_cast<std::size_t>(id) < attention_.size()
               ? attention_[static_cast<std::size_t>(id)]
               : 0.0;
  }
  double importance(std::int32_t id, std::int32_t /*newest*/, bool /*at_prefill*/) const override {
    return representative(id) == id ? std::numeric_limits<double>::infinity() : score(id);
  }
  std::int32_t representative(std::int32_t id) const override {
    return static_cast<std::size_t>(id) < representative_.size()
               ? representative_[static_cast<std::size_t>(id)]
               : id;
  }
  std::vector<std::int32_t> plan(std::int32_t prompt,
                                 const EntryBudget& /*allotted*/) const override {
    std::vector<std::int32_t> kept;
    for (std::int32_t id = 0; id < prompt; ++id) {
      if (representative(id) == id) kept.push_back(id);
    }
    return kept;
  }
  void leaving(const EntryTable& /*entries*/, std::int32_t /*newest*/, std::int64_t /*room*/,
               std::vector<std::int32_t>& /*out*/) override {}

 private:
  void form_runs(double epsilon) {
    const auto s = static_cast<std::int32_t>(likeness_.size());
    representative_.resize(likeness_.size());
    std::iota(representative_.begin(), representative_.end(), 0);
    for (std::int32_t last = s - 1; last >= 0;) {  // backwards, as in the paper
      std::int32_t first = last;
      while (first > 0 && likeness_[static_cast<std::size_t>(first - 1)] > epsilon) --first;
      std::int32_t pivot = first;
      for (std::int32_t i = first + 1; i <= last; ++i) {
        if (score(i) > score(pivot)) pivot = i;
      }
      for (std::int32_t i = first; i <= last; ++i)
        representative_[static_cast<std::size_t>(i)] = pivot;
      last = first - 1;
    }
  }

  Settings settings_;
  std::vector<double> attention_;
  std::vector<bool> protected_;
  std::vector<double> likeness_;              // cosine to the next key
  std::vector<std::int32_t> representative_;  // by position
};

class KeyRunsRule final : public SelectRule {
 public:
  explicit KeyRunsRule(const Settings& settings) : settings_{settings} {}
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<KeyRunsSelector>(settings_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kColumnSums;
    needs.score_copies = 2;
    return needs;
  }
  std::optional<std::int64_t> held(std::int64_t /*budget*/, std::int64_t /*prompt*/,
                                   std::int64_t /*tokens*/) const override {
    return std::nullopt;
  }
  bool bounded() const override { return false; }
  Bytes side_bytes(std::int64_t /*entries*/, const HeadShape& /*shape*/) const override {
    return Bytes{0};
  }
  void add_step(StepTraffic& /*traffic*/, const StepEvents& /*events*/,
                const HeadShape& /*shape*/) const override {}
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra extra;
    const double rows = shape.n_kv_heads * static_cast<double>(prompt) * shape.head_dim;
    extra.flops = 3.0 * rows;
    extra.read = rows * bits_of(recorded) / 8.0;
    extra.launches = 4;
    return extra;
  }

 private:
  Settings settings_;
};

/// The paper protects 0.17 and 0.12 of the prompt at a budget of 0.5, 0.08 and 0.02 at 0.35. Linear
/// in between, proportional below (our choice).
double protected_share(double budget, double at_half, double at_third) {
  constexpr double kHalf = 0.5;
  constexpr double kThird = 0.35;
  if (budget >= kHalf) return at_half;
  if (budget <= kThird) return at_third * budget / kThird;
  return at_third + (at_half - at_third) * (budget - kThird) / (kHalf - kThird);
}

std::shared_ptr<const SelectRule> resolve_key_runs(MethodResolver& resolver) {
  const auto prompt = static_cast<double>(resolver.prompt());
  const bool fit = resolver.budget().has_value();
  if (fit && resolver.given("epsilon")) {
    resolver.refuse("budget and epsilon are both given; one follows from the other");
  }
  double recent = resolver.number("recent_share");
  double top = resolver.number("top_share");
  resolver.set_entries(fit ? resolver.entries_of(*resolver.budget()) : resolver.prompt());
  if (fit) {
    const double share = static_cast<double>(resolver.entries()) / prompt;
    if (!resolver.given("recent_share")) recent = protected_share(share, recent, 0.08);
    if (!resolver.given("top_share")) top = protected_share(share, top, 0.02);
    resolver.resolve("recent_share", recent);
    resolver.resolve("top_share", top);
  }
  const Settings settings{.epsilon = resolver.number("epsilon"),
                          .recent = static_cast<std::int64_t>(recent * prompt),
                          .top = static_cast<std::int64_t>(top * prompt),
                          .fit_budget = fit};
  // Every protected token may end a run, and each run needs an entry.
  if (fit && settings.recent + 2 * settings.top + 1 > resolver.entries() &&
      resolver.entries() < resolver.prompt()) {
    resolver.refuse(
        fmt::format("a budget of {} entries cannot be guaranteed with {} recent and {} top tokens "
                    "protected (expected at least recent + 2 top + 1)",
                    resolver.entries(), settings.recent, settings.top));
  }
  return std::make_shared<KeyRunsRule>(settings);
}

}  // namespace

AxisChoice select_key_runs() {
  return {.axis = "select",
          .name = "key_runs",
          .params = {number_param("epsilon", "eps", 0.75, -1, 1, "a number in [-1, 1]",
                                  "cosine of neighbouring keys above which they share a run; "
                                  "chosen per head if a budget is given",
                                  "KVMerger, ablation"),
                     number_param("recent_share", "", 0.17, 0, 1, "a number in [0, 1]",
                                  "share of the prompt kept unmerged at its end",
                                  "KVMerger at half the cache; a smaller budget lowers it"),
                     number_param("top_share", "", 0.12, 0, 1, "a number in [0, 1]",
                                  "share of the prompt kept unmerged for its attention",
                                  "KVMerger at half the cache; a smaller budget lowers it")},
          .make = &resolve_key_runs};
}

}  // namespace kvsim
