// CriticalKV (Feng et al. 2025; kvpress, CriticalKVPress): half of the budget by score, the rest by
// an entry's possible effect on the output.
//
//   stage 1: the int(budget * first_stage) highest scores
//   stage 2: the highest others by (score_i + epsilon) * mean over the group of |W_O^(j) v_i|_1
//
// With AdaKV's head budgets this is CriticalAdaKV: scores determine the budgets, the stages select
// entries.

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/attention/attend.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Stages {
  double first = 0.5;
  double epsilon = 1e-4;
  double width = 0;  // rows of W_O; 0: unknown
};

class CriticalSelector final : public ScoredSelector {
 public:
  CriticalSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                   const Stages& stages)
      : ScoredSelector{std::move(scorer), place}, stages_{stages} {}

  void learn_prompt(PromptScores& scores) override {
    ScoredSelector::learn_prompt(scores);
    const HeadVectors& head = scores.heads().front();
    const LayerVectors& layer = scores.layer();
    const auto d = static_cast<std::size_t>(head.head_dim);
    const auto heads = layer.heads.size() * static_cast<std::size_t>(head.group);
    const auto rows = static_cast<std::size_t>(layer.d_model);
    const std::span<const float> w = layer.output_projection;
    KVSIM_CHECK(w.size() == rows * heads * d && rows > 0, "W_O of {}, {} rows, {} heads of {}",
                w.size(), rows, heads, d);
    const auto first = static_cast<std::size_t>(scores.first_head() * head.group);
    effect_.assign(score_.size(), 0.0);
    for (std::size_t i = 0; i < effect_.size(); ++i) {
      const auto value = head.value(static_cast<std::int64_t>(i));
      for (std::size_t j = first; j < first + static_cast<std::size_t>(head.group); ++j) {
        for (std::size_t r = 0; r < rows; ++r) {
          effect_[i] += std::abs(dot(w.subspan((r * heads + j) * d, d), value));
        }
      }
      effect_[i] /= head.group;
    }
  }
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    KVSIM_CHECK(allotted.entries >= 1, "{} entries of {} tokens", allotted.entries, prompt);
    if (allotted.entries >= prompt) return highest(score_, prompt);
    const auto early =
        static_cast<std::int64_t>(static_cast<double>(allotted.entries) * stages_.first);
    std::vector<double> critical(score_.size());
    for (std::size_t i = 0; i < critical.size(); ++i) {
      critical[i] = score_[i] < kInfinity ? (score_[i] + stages_.epsilon) * effect_[i] : kInfinity;
    }
    for (const std::int32_t id : highest(score_, early)) {
      critical[static_cast<std::size_t>(id)] = kInfinity;
    }
    return highest(critical, allotted.entries);
  }

 private:
  Stages stages_;
  std::vector<double> effect_;  // [prompt]
};

class CriticalRule final : public ScoredRule {
 public:
  CriticalRule(std::shared_ptr<const Scorer> scorer, const Stages& stages)
      : ScoredRule{std::move(scorer)}, stages_{stages} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<CriticalSelector>(scorer(), place, stages_);
  }
  MethodNeeds needs() const override {
    MethodNeeds needs = ScoredRule::needs();
    needs.inputs.output_projection = true;
    return needs;
  }
  PrefillExtra prefill_extra(const LayerShape& shape, Dtype recorded,
                             std::int64_t prompt) const override {
    PrefillExtra all = ScoredRule::prefill_extra(shape, recorded, prompt);
    const double heads = shape.n_heads;
    const double width = stages_.width > 0 ? stages_.width : heads * shape.head_dim;
    const auto s = static_cast<double>(prompt);
    const double beta = bits_of(recorded) / 8.0;
    all.flops += 2.0 * heads * s * shape.head_dim * width;
    all.read += (width * heads + s * shape.n_kv_heads) * shape.head_dim * beta;  // W_O and V
    all.written += heads * s * 4.0;
    // Projected values of one head at a time.
    all.transient = std::max(all.transient, truncated<Bytes>(std::ceil(s * width * beta)));
    all.launches += 2;
    return all;
  }

 private:
  Stages stages_;
};

std::shared_ptr<const SelectRule> resolve_critical(MethodResolver& resolver) {
  const std::int64_t entries = resolve_ratio(resolver);
  auto scorer = make_wrapped_scorer(resolver, entries);
  if (!scorer->non_negative()) {
    resolver.refuse("scorer " + resolver.word("scorer") +
                    ": its scores are negative, so that a larger value would count against an "
                    "entry in the second stage (CriticalKV multiplies scores by norms)");
  }
  if (resolver.word("granularity") == "query_head") {
    resolver.refuse("its norms are means over a KV head's group: expected granularity=kv_head");
  }
  return std::make_shared<CriticalRule>(
      std::move(scorer), Stages{.first = resolver.number("first_stage"),
                                .epsilon = resolver.number("critical_epsilon"),
                                .width = static_cast<double>(resolver.site().d_model)});
}

}  // namespace

AxisChoice select_critical() {
  std::vector<ParamInfo> params = wrapped_scorer_params("last-window");
  params.push_back(number_param("first_stage", "", 0.5, 0.0, 1.0, "a number in [0, 1]",
                                "share of the budget that is chosen only by score",
                                "kvpress, CriticalKVPress first_stage_ratio",
                                {"first_stage_ratio"}));
  params.push_back(number_param("critical_epsilon", "", 1e-4, 0.0, 1.0, "a number in [0, 1]",
                                "added to scores before the second stage",
                                "kvpress, CriticalKVPress epsilon"));
  return scored_choice("critical", std::move(params), &resolve_critical);
}

}  // namespace kvsim
