// The ratio harness (kvpress, ScorerPress.compress): keeps the int(s (1 - ratio)) highest scores of
// the prompt per stored head; decode appends.

#include "models/methods/select/scored.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "models/methods/params.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct NamedScorer {
  std::string_view name;
  std::shared_ptr<const Scorer> (*make)(MethodResolver&);
  std::vector<ParamInfo> (*params)();  // null: none
};

constexpr std::array<NamedScorer, 6> kScorers{
    {{"knorm", &make_knorm, nullptr},
     {"keydiff", &make_keydiff, nullptr},
     {"expected-attention", &make_expected_attention, &expected_attention_params},
     {"lagkv", &make_lagkv, &lagkv_params},
     {"random", &make_random, nullptr},
     {"last-window", &make_last_window, &last_window_params}}};

}  // namespace

std::vector<ParamInfo> wrapped_scorer_params(const std::string& preferred) {
  std::vector<std::string> words{preferred};
  std::vector<ParamInfo> params;
  for (const NamedScorer& each : kScorers) {
    if (each.name != preferred) words.emplace_back(each.name);
    if (each.params == nullptr) continue;
    for (ParamInfo& param : each.params()) {
      // Scorers with the same parameter name share its meaning and default.
      if (find_param(params, param.name) == nullptr) params.push_back(std::move(param));
    }
  }
  params.insert(params.begin(),
                word_param("scorer", words, "scorer of the tokens", "kvpress, any ScorerPress"));
  return params;
}

ParamInfo prompt_scorer_param(const std::string& preferred) {
  std::vector<std::string> words = wrapped_scorer_params(preferred).front().words;
  return word_param("prompt_scorer", std::move(words), "scorer of the prompt's tokens",
                    "kvpress, PrefillDecodingPress prefilling_press");
}

std::shared_ptr<const Scorer> make_wrapped_scorer(MethodResolver& resolver, std::int64_t entries,
                                                  const std::string& param) {
  const std::string& name = resolver.word(param);
  if (name == "last-window" && entries < resolver.integer("window")) {
    resolver.resolve("window", entries);
  }
  for (const NamedScorer& each : kScorers) {
    if (each.name == name) return each.make(resolver);
  }
  KVSIM_CHECK(false, "no scorer {}", name);
  return nullptr;
}

ParamInfo ratio_param() {
  return number_param("ratio", "rho", 0.0, 0.0, 1.0, "a number in [0, 1)",
                      "share of the prompt removed, if no budget is given", "kvpress, default 0",
                      {"compression_ratio"});
}

double ratio_keeping(std::int64_t kept, std::int64_t whole) {
  if (kept >= whole) return 0.0;
  const auto n = static_cast<double>(whole);
  const double ratio = 1.0 - static_cast<double>(kept) / n;
  const bool is_exact = static_cast<std::int64_t>(n * (1.0 - ratio)) == kept;
  return is_exact ? ratio : std::max(ratio - kRatioRounding, 0.0);
}

std::int64_t resolve_ratio(MethodResolver& resolver,
                           const std::function<std::int64_t(double)>& kept,
                           const std::function<std::int64_t(std::int64_t)>& rounded) {
  const double ratio = resolver.number("ratio");
  const auto prompt = static_cast<double>(resolver.prompt());
  const auto entries_at = [&](double r) {
    return kept ? kept(r) : static_cast<std::int64_t>(prompt * (1.0 - r));
  };
  const std::int64_t entries =
      resolver.budget() ? resolver.entries_of(*resolver.budget()) : entries_at(ratio);
  if (resolver.budget() && resolver.given("ratio")) {
    const std::int64_t left = std::min(rounded ? rounded(entries) : entries, resolver.prompt());
    // Reported budgets are already rounded, so a ratio that matches one is accepted.
    if (entries_at(ratio) != left && entries_at(ratio) != entries) {
      resolver.refuse(
          fmt::format("budget and ratio are both given; one follows from the other, and "
                      "the budget leaves {} entries, the ratio {}",
                      left, entries_at(ratio)));
    }
  }
  resolver.set_entries(entries);
  const std::int64_t slots = resolver.reserve_slots(entries);
  if (entries - slots < 1) {
    resolver.refuse(fmt::format("ratio {} of {} prompt tokens leaves no entry{}", ratio,
                                resolver.prompt(),
                                slots > 0 ? fmt::format(" in addition to {} slots", slots) : ""));
  }
  if (resolver.budget() && !resolver.given("ratio")) {
    resolver.resolve("ratio", ratio_keeping(entries, resolver.prompt()));
  }
  return entries;
}

std::vector<double> score_prompt(const Scorer& scorer, PromptScores& scores, std::size_t h,
                                 const SessionPlace& place) {
  const HeadVectors& head = scores.heads()[h];
  const auto rows = static_cast<std::size_t>(head.prompt * head.head_dim);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(head.prompt));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<double> all = scorer.score({.head = head,
                                          .positions = positions,
                                          .keys = head.keys.first(rows),
                                          .values = head.values.first(rows),
                                          .first_query = 0,
                                          .tokens = head.prompt,
                                          .kv_head = scores.head_number(h)},
                                         place);
  KVSIM_CHECK(all.size() == positions.size() &&
                  std::none_of(all.begin(), all.end(), [](double x) { return std::isnan(x); }),
              "{} scores of {} tokens, or some are NaN", all.size(), positions.size());
  return all;
}

void make_finite(std::vector<double>& scores, const Scorer& scorer) {
  double max = -kInfinity;
  for (const double x : scores) {
    if (x < kInfinity) max = std::max(max, x);
  }
  const double substitute = scorer.forced_score(max > -kInfinity ? max : 1.0);
  std::replace(scores.begin(), scores.end(), kInfinity, substitute);
}

std::vector<std::int32_t> highest(std::span<const double> scores, std::int64_t count) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  if (count >= std::ssize(order)) return order;
  const auto keep = order.begin() + static_cast<std::ptrdiff_t>(std::max<std::int64_t>(count, 0));
  std::nth_element(order.begin(), keep, order.end(), [scores](std::int32_t a, std::int32_t b) {
    const double x = scores[static_cast<std::size_t>(a)];
    const double y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.erase(keep, order.end());
  std::sort(order.begin(), order.end());
  return order;
}

void ScoredSelector::learn_prompt(PromptScores& scores) {
  score_ = score_prompt(*scorer_, scores, 0, place_);
}

double ScoredSelector::importance(std::int32_t id, std::int32_t /*newest*/,
                                  bool /*at_prefill*/) const {
  const auto at = static_cast<std::size_t>(id);
  return at < score_.size() ? score_[at] : kInfinity;
}

std::optional<std::int64_t> ScoredRule::held(std::int64_t budget, std::int64_t prompt,
                                             std::int64_t tokens) const {
  return std::min(budget, std::min(prompt, tokens)) + std::max<std::int64_t>(tokens - prompt, 0);
}

PrefillExtra ScoredRule::prefill_extra(const LayerShape& shape, Dtype recorded,
                                       std::int64_t prompt) const {
  const HeadShape head{.group = shape.n_heads / shape.n_kv_heads,
                       .head_dim = shape.head_dim,
                       .recorded = recorded,
                       .stored = recorded};
  const auto s = static_cast<double>(prompt);
  // The cost class accounts for attention rows.
  const double queries = scorer_->needs().prompt_scores == PromptScoreClass::kNone ? s : 0;
  const ScoreCost one = scorer_->cost(s, queries, head);
  const double heads = shape.n_kv_heads;
  return {.flops = one.flops * heads,
          .read = one.read * heads,
          .written = s * 4.0 * heads,
          .transient = one.transient * static_cast<std::int64_t>(shape.n_kv_heads),
          .launches = 2,  // the scores, the selection
          .prefill_repeats = 0};
}

AxisChoice scored_choice(std::string_view name, std::vector<ParamInfo> params, MakeSelect make) {
  params.insert(params.begin(), ratio_param());
  params.push_back(prompt_positions_param());
  return {.axis = "select", .name = name, .params = std::move(params), .make = make};
}

std::shared_ptr<const SelectRule> make_scored(MethodResolver& resolver,
                                              std::shared_ptr<const Scorer> scorer) {
  resolve_ratio(resolver);
  return std::make_shared<ScoredRule>(std::move(scorer));
}

}  // namespace kvsim
