#include "sim/plan/candidates.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/quantity.hpp"
#include "models/units/units_format.hpp"
#include "sim/plan/knobs.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/points/layouts.hpp"
#include "sim/scenario/points/point_notes.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kOfMethod{"method", "budget", "method_params",
                                                    "measured_on"};
constexpr std::array<std::string_view, 8> kOfGpus{"gpu",
                                                  "gpu_count",
                                                  "pipeline_parallel",
                                                  "replicas",
                                                  "prefill_replicas",
                                                  "expert_parallel",
                                                  "decode_context_parallel",
                                                  "prefill_context_parallel"};

ordered_json without(ordered_json keys, std::span<const std::string_view> names) {
  for (const std::string_view name : names) keys.erase(std::string{name});
  return keys;
}

/// Returns the point's keys without those that the question searches.
ordered_json question_keys(const ScenarioPoint& point, PlanQuestion question) {
  ordered_json keys = point.keys;
  if (question == PlanQuestion::kLongestContext) keys.erase("prompt_tokens");
  if (question == PlanQuestion::kLargestBatch) keys.erase("batch");
  return keys;
}

std::string text(const ordered_json& keys) {
  return keys.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string tokens(const ordered_json& keys, const char* key) {
  return with_commas(keys.at(key).get<std::int64_t>());
}

std::string group_words(const ordered_json& keys, PlanQuestion question) {
  std::vector<std::string> words{keys.at("model").get<std::string>(),
                                 keys.at("stack").get<std::string>()};
  const auto differs = keys.at("kv_dtype") != keys.at("dtype");
  if (differs) words.push_back(fmt::format("cache in {}", keys.at("kv_dtype").get<std::string>()));
  if (is_of_services(question)) {
    words.push_back(keys.at("workload").get<std::string>());
    for (const char* key : {"rate_scale", "rate", "users", "cv", "limit", "prompt_scale",
                            "output_scale", "scheduler"}) {
      if (keys.contains(key)) {
        const ordered_json& value = keys.at(key);
        words.push_back(
            fmt::format("{} {}", key, value.is_string() ? value.get<std::string>() : text(value)));
      }
    }
  } else {
    if (question == PlanQuestion::kLongestContext) {
      words.push_back(fmt::format("batch {}", tokens(keys, "batch")));
    } else {
      words.push_back(fmt::format("{} prompt", tokens(keys, "prompt_tokens")));
    }
    words.push_back(fmt::format("{} output tokens", tokens(keys, "output_tokens")));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

bool same_budget(const std::optional<Budget>& a, const std::optional<Budget>& b) {
  return a.has_value() == b.has_value() &&
         (!a || (a->fraction == b->fraction && a->entries == b->entries));
}

/// The representative of a group of points that differ only in budget.
struct Chosen {
  const ScenarioPoint* point = nullptr;
  MethodSpec method;
  std::optional<double> error;
  std::string reason;  // why none meets the floor
};

std::vector<Chosen> choose(const std::vector<const ScenarioPoint*>& family,
                           const QualityReport* quality) {
  std::vector<Chosen> out;
  if (quality == nullptr) {
    for (const ScenarioPoint* point : family) out.push_back({point, point->method, {}, {}});
    return out;
  }
  const MethodQuality& judged = quality->of(family.front()->method);
  if (!judged.chosen) return {{family.front(), family.front()->method, {}, judged.reason}};
  for (std::size_t t = *judged.chosen; t < judged.tries.size(); ++t) {
    const QualityTry& one = judged.tries[t];
    if (!one.meets) continue;
    const auto given = std::find_if(family.begin(), family.end(), [&](const ScenarioPoint* point) {
      return same_budget(point->method.budget, one.budget);
    });
    // A measured size law applies only to the budget at which it was measured.
    const bool measured = family.front()->measured != nullptr;
    if (given == family.end() && measured) continue;
    const ScenarioPoint* point = given == family.end() ? family.front() : *given;
    MethodSpec method = point->method;
    method.budget = one.budget;
    return {{point, std::move(method), one.rel_error, {}}};
  }
  return {{family.front(),
           family.front()->method,
           {},
           "its size is measured at the given budgets, none of which meets the floor"}};
}

Impossible below_floor(const std::string& reason, const MethodQuality& judged,
                       const QualityFloor& floor) {
  Impossible out{.constraint = "quality", .text = reason, .need = 0, .knobs = {}};
  const auto need_of = [&](const QualityTry& one) -> double {
    if (!one.rel_error) return 0;
    if (floor.max_rel_error) {
      return *floor.max_rel_error > 0 ? *one.rel_error / *floor.max_rel_error : 0;
    }
    // Share of the mass that may be lost.
    const double may = 1 - *floor.min_retained_mass;
    return one.retained_mass && may > 0 ? (1 - *one.retained_mass) / may : 0;
  };
  const QualityTry& last = judged.tries.back();
  out.need = need_of(last);
  if (out.need <= 1) return out;
  std::vector<Knob> knobs;
  const char* name = floor.max_rel_error ? "quality/max_rel_error" : "quality/min_retained_mass";
  Knob floor_knob{name, {}};
  for (const double ratio : knob_ratios()) {
    floor_knob.steps.push_back(
        {floor.max_rel_error ? times_text(ratio)
                             : fmt::format("{:.4g}", 1 - (1 - *floor.min_retained_mass) * ratio),
         ratio, [ratio, need = out.need] { return need / ratio; }});
  }
  knobs.push_back(std::move(floor_knob));
  // Between the two largest budgets that were replayed.
  for (std::size_t t = judged.tries.size() - 1; t-- > 0;) {
    const QualityTry& less = judged.tries[t];
    if (!(need_of(less) > 0) || !less.budget || !last.budget || last.budget->fraction <= 0)
      continue;
    const double ratio = last.budget->fraction / less.budget->fraction;
    const double elasticity = std::log(need_of(less) / out.need) / std::log(ratio);
    out.knobs.push_back({.knob = "budget",
                         .change = fmt::format("{:.4g} % -> {:.4g} %", 100 * less.budget->fraction,
                                               100 * last.budget->fraction),
                         .need = out.need,
                         .elasticity = elasticity,
                         .enough = {}});
    break;
  }
  for (KnobEffect& effect : try_knobs(out.need, knobs)) out.knobs.push_back(std::move(effect));
  std::stable_sort(
      out.knobs.begin(), out.knobs.end(),
      [](const KnobEffect& a, const KnobEffect& b) { return a.elasticity > b.elasticity; });
  return out;
}

double gpu_hour(const PlanSection& plan, const Gpu& gpu) {
  if (plan.prices.empty()) return 1;
  const auto found = plan.prices.find(gpu.name);
  if (found != plan.prices.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, price] : plan.prices) known.push_back(name);
  throw InputError{fmt::format("plan/prices: {} has no price; prices are given for {}", gpu.name,
                               fmt::join(known, ", "))};
}

/// Discards the results that a search found before it failed.
void refuse(PlanCandidate& out, std::string_view constraint, const InputError& error) {
  out.answer.reset();
  out.range = {};
  out.points.clear();
  out.impossible = Impossible{
      .constraint = std::string{constraint}, .text = error.what(), .need = 0, .knobs = {}};
}

}  // namespace

void search_candidate(const CandidateInput& in, PlanCandidate& out,
                      const std::function<void()>& body) {
  try {
    body();
  } catch (const OverflowError& error) {
    refuse(out, kOverflowConstraint, error);
  } catch (const InputError& error) {
    if (!in.plan->layouts) throw;
    refuse(out, kLayoutConstraint, error);
  }
}

PlanCandidates plan_candidates(const Scenario& scenario, std::optional<QualityReport> quality) {
  const PlanSection& plan = *scenario.plan;
  PlanCandidates all;
  PlanResult& out = all.result;
  out.priced = !plan.prices.empty();
  out.cost_unit = out.priced ? plan.currency : "GPU h";
  out.quality = std::move(quality);
  std::map<std::string, std::size_t> group_of, unit_of;
  for (const PlanQuestion question : plan.questions) {
    std::vector<std::string> order;
    std::map<std::string, std::vector<const ScenarioPoint*>> families;
    std::set<std::string> seen;
    for (const ScenarioPoint& point : scenario.points) {
      ordered_json keys = question_keys(point, question);
      if (!seen.insert(text(keys)).second) continue;
      keys.erase("budget");
      const std::string family = text(keys);
      if (!families.contains(family)) order.push_back(family);
      families[family].push_back(&point);
    }
    for (const std::string& name : order) {
      const auto& family = families.at(name);
      const QualityReport* judged = out.quality ? &*out.quality : nullptr;
      for (Chosen& chosen : choose(family, judged)) {
        const ScenarioPoint& point = *chosen.point;
        const ordered_json own_keys = question_keys(point, question);
        const ordered_json shared = without(without(own_keys, kOfMethod), kOfGpus);
        const auto [group, fresh] = group_of.emplace(
            fmt::format("{} {}", name_of(question), text(shared)), out.groups.size());
        if (fresh) {
          out.groups.push_back({.question = question,
                                .of = group_words(shared, question),
                                .keys = shared,
                                .candidates = {},
                                .best = {}});
        }
        PlanCandidate candidate;
        candidate.question = question;
        candidate.group = group->second;
        candidate.point = static_cast<std::size_t>(&point - scenario.points.data());
        candidate.method = chosen.method;
        candidate.gpu = point.spec.gpu->name;
        candidate.gpus_each = point.serve ? service_gpus(*point.serve) : point.spec.gpus();
        if (point.serve) {
          const Layout layout = layout_of(*point.serve);
          if (plan.layouts || layout != Layout{.tensor_parallel = layout.tensor_parallel}) {
            candidate.layout = layout_words(layout);
          }
        }
        if (!chosen.reason.empty()) {
          candidate.impossible =
              below_floor(chosen.reason, out.quality->of(chosen.method), *plan.quality);
        }
        add_method_notes(chosen.method.name, *point.spec.stack, candidate.notes);
        const std::size_t index = out.candidates.size();
        out.groups[group->second].candidates.push_back(index);
        out.candidates.push_back(std::move(candidate));
        all.inputs.push_back({.plan = &plan,
                              .point = &point,
                              .method = chosen.method,
                              .error = chosen.error,
                              .gpu_hour = gpu_hour(plan, *point.spec.gpu)});
        if (!chosen.reason.empty()) continue;
        // For services, all questions run the same workload on the same engine.
        const std::string unit_name = is_of_services(question)
                                          ? text(point.keys) + method_label(chosen.method)
                                          : fmt::format("{}", index);
        const auto [unit, new_unit] = unit_of.emplace(unit_name, all.units.size());
        if (new_unit) all.units.emplace_back();
        all.units[unit->second].candidates.push_back(index);
      }
    }
  }
  for (const PlanGroup& group : out.groups) {
    std::set<std::string> kinds;
    std::set<std::int64_t> counts;
    std::set<std::string> layouts, methods;
    std::map<std::string, std::set<std::string>> params;  // by method
    for (const std::size_t c : group.candidates) {
      kinds.insert(out.candidates[c].gpu);
      counts.insert(out.candidates[c].gpus_each);
      layouts.insert(out.candidates[c].layout);
      methods.insert(method_label(out.candidates[c].method));
      params[out.candidates[c].method.name].insert(
          method_label({out.candidates[c].method.name, out.candidates[c].method.params, {}}));
    }
    for (const std::size_t c : group.candidates) {
      PlanCandidate& candidate = out.candidates[c];
      // Parameters are named if a method occurs with several sets of them.
      const bool alone = params.at(candidate.method.name).size() == 1;
      candidate.label =
          method_label({candidate.method.name, alone ? Params{} : candidate.method.params,
                        candidate.method.budget});
      const std::int64_t each = candidate.gpus_each;
      if (layouts.size() > 1) {
        const std::string words =
            candidate.layout.empty() ? fmt::format("TP {}", each) : candidate.layout;
        candidate.label = methods.size() == 1 ? words : candidate.label + ", " + words;
        if (kinds.size() > 1) candidate.label += fmt::format(", {}", candidate.gpu);
      } else if (kinds.size() > 1 && counts.size() > 1) {
        candidate.label += fmt::format(", {} x {}", each, candidate.gpu);
      } else if (kinds.size() > 1) {
        candidate.label += fmt::format(", {}", candidate.gpu);
      } else if (counts.size() > 1) {
        candidate.label += fmt::format(", {} GPU{}", each, each == 1 ? "" : "s");
      }
    }
  }
  return all;
}

}  // namespace kvsim
