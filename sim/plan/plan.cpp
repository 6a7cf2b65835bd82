#include "sim/plan/plan.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/plan/layout_search.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "traces/trace_model.hpp"

namespace kvsim {
namespace {

void search_unit(PlanCandidates& all, const PlanUnit& unit) {
  std::unique_ptr<ServeCandidate> service;  // shared by all questions
  for (const std::size_t c : unit.candidates) {
    const CandidateInput& in = all.inputs[c];
    PlanCandidate& out = all.result.candidates[c];
    search_candidate(in, out, [&] {
      if (!is_of_services(out.question)) return plan_static(in, out);
      if (!service) service = std::make_unique<ServeCandidate>(in);
      if (out.question == PlanQuestion::kHighestRate) return service->highest_rate(out);
      service->min_gpus(out);
    });
  }
}

/// Removes from their units the candidates that a search of layouts answers: those for fewest GPUs
/// that are not already impossible.
std::vector<std::size_t> take_layouts(PlanCandidates& all) {
  std::vector<std::size_t> out;
  for (PlanUnit& unit : all.units) {
    std::erase_if(unit.candidates, [&](std::size_t c) {
      const bool taken = all.result.candidates[c].question == PlanQuestion::kMinGpus;
      if (taken) out.push_back(c);
      return taken;
    });
  }
  std::erase_if(all.units, [](const PlanUnit& unit) { return unit.candidates.empty(); });
  return out;
}

/// Whether `one` is no worse than `best`. Rates are powers of (1 + rate_step): rates one step apart
/// are equal within the search's resolution.
bool is_as_good(PlanQuestion question, double one, double best, double rate_step) {
  constexpr double kRounding = 1e-9;
  if (question == PlanQuestion::kMinGpus) return one <= best;
  if (question == PlanQuestion::kHighestRate) {
    return one * (1 + rate_step) >= best * (1 - kRounding);
  }
  return one >= best;
}

/// Selects the best answer on the cheapest machine. Ties go to the full cache, because a method
/// without a gain should not be recommended.
void find_best(PlanCandidates& all, const PlanSection& plan) {
  PlanResult& result = all.result;
  for (PlanGroup& group : result.groups) {
    group.best.reset();
    const bool fewest = group.question == PlanQuestion::kMinGpus;
    std::optional<double> top;
    for (const std::size_t c : group.candidates) {
      const auto& answer = result.candidates[c].answer;
      if (answer && (!top || (fewest ? *answer < *top : *answer > *top))) top = answer;
    }
    const auto rank = [&](std::size_t c) {
      const PlanCandidate& one = result.candidates[c];
      const double machine =
          all.inputs[c].gpu_hour * static_cast<double>(one.gpus_each * one.replicas);
      const double cost = one.points.empty() ? 0 : one.points.back().cost;
      return std::tuple{machine, one.method.name != "full", fewest ? *one.answer : -*one.answer,
                        cost, c};
    };
    for (const std::size_t c : group.candidates) {
      const auto& answer = result.candidates[c].answer;
      if (!answer || !is_as_good(group.question, *answer, *top, plan.rate_step)) continue;
      if (!group.best || rank(c) < rank(*group.best)) group.best = c;
    }
  }
}

/// Returns the candidate with the smallest shortage, for a group without an answer.
std::size_t nearest_of(const PlanResult& plan, const PlanGroup& group) {
  const auto rank = [&](std::size_t c) {
    const PlanCandidate& one = plan.candidates[c];
    // A candidate that no knob of the machine helps comes last, after those with an unknown need.
    const bool quality = one.impossible && one.impossible->constraint == "quality";
    const double need = one.impossible ? one.impossible->need : 0;
    return std::tuple{!one.impossible, quality, !(need > 0), need, c};
  };
  return *std::min_element(group.candidates.begin(), group.candidates.end(),
                           [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
}

/// Candidates of layouts that get a range: those that tables list, except those that the search
/// skipped or the engine rejects; the nearest if there is no answer.
std::vector<std::size_t> layouts_with_ranges(const PlanResult& plan) {
  std::vector<std::size_t> out;
  for (const PlanGroup& group : plan.groups) {
    if (group.question != PlanQuestion::kMinGpus) continue;
    std::vector<std::size_t> listed = listed_candidates(plan, group);
    if (listed.empty()) listed.push_back(nearest_of(plan, group));
    for (const std::size_t c : listed) {
      const PlanCandidate& one = plan.candidates[c];
      const bool is_short = one.impossible && one.impossible->constraint != kLayoutConstraint &&
                            one.impossible->constraint != kOverflowConstraint &&
                            one.impossible->constraint != "quality";
      if (one.answer || is_short) out.push_back(c);
    }
  }
  return out;
}

/// Tries the knobs of the nearest candidates of groups without an answer.
void move_knobs(PlanCandidates& all, int threads) {
  std::vector<std::size_t> nearest;
  for (const PlanGroup& group : all.result.groups) {
    if (group.best) continue;
    const std::size_t nearest_one = nearest_of(all.result, group);
    const PlanCandidate& one = all.result.candidates[nearest_one];
    // No knob of the machine gives a model more positions, either.
    const bool machine = one.impossible && one.impossible->constraint != "quality" &&
                         one.impossible->constraint != kLayoutConstraint &&
                         one.impossible->constraint != kOverflowConstraint &&
                         one.impossible->constraint != "positions";
    if (machine) nearest.push_back(nearest_one);
  }
  parallel_for(nearest.size(), threads, [&](std::size_t i) {
    const std::size_t c = nearest[i];
    PlanCandidate& one = all.result.candidates[c];
    one.impossible->knobs = is_of_services(one.question)
                                ? ServeCandidate{all.inputs[c]}.knobs(one.question)
                                : static_knobs(all.inputs[c], one.question);
  });
}

/// Models of the plan whose size differs from that of the trace's model: the quality floor is not
/// evidence for them.
std::vector<std::string> no_evidence(const Scenario& scenario, const QualityReport& quality) {
  constexpr double kSameSize = 2;  // largest ratio of the numbers of parameters
  std::vector<std::string> notes;
  for (const ScenarioPoint& point : scenario.points) {
    const Llm& llm = *point.spec.llm;
    const auto size = static_cast<double>(parameters(llm));
    const bool similar = quality.parameters && size <= kSameSize * *quality.parameters &&
                         size * kSameSize >= *quality.parameters;
    if (similar) continue;
    std::string note = fmt::format(
        "the quality floor is measured on a {}: this is no evidence about {} ({} parameters); "
        "record a trace of that model (docs/record.md)",
        quality.source, llm.name, parameters_text(size));
    if (std::find(notes.begin(), notes.end(), note) == notes.end())
      notes.push_back(std::move(note));
  }
  return notes;
}

void add_notes(const Scenario& scenario, PlanResult& result) {
  const PlanSection& plan = *scenario.plan;
  std::vector<std::string>& notes = result.notes;
  const bool has_ranges = std::any_of(result.candidates.begin(), result.candidates.end(),
                                      [](const PlanCandidate& one) { return one.range.is_known; });
  if (plan.confidence > 0) {
    notes.push_back(
        fmt::format("answers are safe at {0:g} % (p{0:g}): memory, bounds, latency and cost use "
                    "the worse end of the intervals that contain {0:g} % of cases",
                    100 * plan.confidence));
  } else if (has_ranges) {
    notes.push_back(
        fmt::format("answers are predictions; the range next to them contains {:g} % of cases. For "
                    "a safe answer use --confidence 0.9 (plan.confidence)",
                    100 * range_confidence(plan.confidence)));
  } else {
    notes.emplace_back("answers are predictions; their error is not known");
  }
  if (result.quality) {
    notes.push_back(fmt::format(
        "quality is that of a replay of trace {} ({}), teacher-forced: errors of one step and one "
        "layer, budgets as shares of the prompt",
        result.quality->trace, result.quality->source));
    for (std::string& note : no_evidence(scenario, *result.quality)) {
      notes.push_back(std::move(note));
    }
    const bool narrow =
        std::any_of(scenario.points.begin(), scenario.points.end(),
                    [](const ScenarioPoint& point) { return bits_of(point.spec.kv_dtype) < 16; });
    if (narrow) {
      notes.emplace_back(
          "the quality floor does not include the error of a kv_dtype below 16 bits");
    }
  } else {
    notes.emplace_back(
        "no quality floor: methods are used at the given budgets, regardless of their loss of "
        "accuracy");
  }
  if (!result.priced) {
    notes.emplace_back(
        "no prices are given: cost is GPU hours, with equal weight for all kinds of GPUs");
  }
  const bool services = is_of_services(plan.questions.front());
  if (services) {
    notes.push_back(
        fmt::format("a service is within its bounds if {:g} % of all requests keep all of them",
                    100 * plan.attainment));
    notes.push_back(fmt::format("latency is p{} from a request's arrival to its last token",
                                result.percentile));
  } else {
    notes.emplace_back("latency is that of the whole batch: prefill and all decode steps");
  }
  if (std::find(plan.questions.begin(), plan.questions.end(), PlanQuestion::kMinGpus) !=
      plan.questions.end()) {
    notes.emplace_back(
        "replicas are simulated together, each with its own engine and cache, behind one "
        "router");
  }
}

}  // namespace

PlanResult run_plan(const Scenario& scenario, const PlanOptions& options) {
  if (!scenario.plan) {
    throw InputError{
        fmt::format("{}: has no \"plan\", which lists the questions to answer", scenario.name)};
  }
  if (scenario.points.empty()) {
    throw InputError{fmt::format("{}: has nothing to plan for: no model and GPU", scenario.name)};
  }
  std::optional<QualityReport> quality;
  if (scenario.plan->quality) {
    std::vector<MethodSpec> specs;
    for (const ScenarioPoint& point : scenario.points) specs.push_back(point.method);
    quality = measure_quality(*scenario.plan->quality, specs, scenario.seed, options.threads);
  }
  PlanCandidates all = plan_candidates(scenario, std::move(quality));
  const std::vector<std::size_t> layouts =
      scenario.plan->layouts ? take_layouts(all) : std::vector<std::size_t>{};
  if (options.begins) options.begins(all.units.size() + layouts.size());
  std::atomic<std::size_t> done{0};
  std::atomic<std::size_t> missing{0};
  parallel_for(all.units.size(), options.threads, [&](std::size_t u) {
    if (options.stop && options.stop()) {
      for (const std::size_t c : all.units[u].candidates) {
        all.result.candidates[c].pruned = "not searched: interrupted";
      }
      missing += all.units[u].candidates.size();
      return;
    }
    search_unit(all, all.units[u]);
    ++done;
    if (options.progress) {
      options.progress(static_cast<double>(done) / static_cast<double>(all.units.size()));
    }
  });
  if (!layouts.empty()) {
    search_layouts(all, layouts, options);
    find_best(all, *scenario.plan);
    mark_pareto(all.result);
    if (!options.stop || !options.stop()) {
      refine_layouts(all, layouts_with_ranges(all.result), options);
    }
  }
  find_best(all, *scenario.plan);
  if (!options.stop || !options.stop()) move_knobs(all, options.threads);
  mark_pareto(all.result);
  all.result.percentile = shown_percentile(scenario.plan->attainment);
  all.result.notes = scenario.notes;
  add_notes(scenario, all.result);
  all.result.not_searched = missing;
  if (missing > 0) {
    all.result.notes.push_back(fmt::format(
        "interrupted: {} of {} candidates were not searched; they may contain better answers",
        missing.load(), all.result.candidates.size()));
  }
  return std::move(all.result);
}

}  // namespace kvsim
