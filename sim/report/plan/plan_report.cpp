#include "sim/report/plan/plan_report.hpp"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "models/methods/resolve/availability.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/report/batch/engine_report.hpp"
#include "sim/report/batch/run_json.hpp"
#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_metrics.hpp"
#include "sim/report/plan/plan_page.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}
ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

ordered_json text_json(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

ordered_json budget_json(const std::optional<Budget>& budget) {
  return budget ? ordered_json(budget_number(*budget)) : ordered_json(nullptr);
}

ordered_json params_json(const Params& params) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, value] : params) {
    std::visit([&out, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

ordered_json quality_json(const QualityFloor& floor, const QualityReport& report) {
  ordered_json out{{"trace", report.trace},
                   {"prompt_tokens", report.prompt_tokens},
                   {"tokens", report.tokens},
                   {"source", report.source},
                   {"model_parameters", number(report.parameters)},
                   {"max_rel_error", number(floor.max_rel_error)},
                   {"min_retained_mass", number(floor.min_retained_mass)}};
  out["methods"] = ordered_json::array();
  for (const MethodQuality& method : report.methods) {
    ordered_json one{{"method", method.name}, {"params", params_json(method.params)}};
    one["tries"] = ordered_json::array();
    for (const QualityTry& t : method.tries) {
      one["tries"].push_back(
          {{"budget", budget_json(t.budget)},
           {"rel_error", number(t.rel_error)},
           {"retained_mass", number(t.retained_mass)},
           {"meets", t.meets},
           {"why", t.why.empty() ? ordered_json(nullptr) : ordered_json(t.why)}});
    }
    one["chosen"] = method.chosen ? ordered_json(*method.chosen) : ordered_json(nullptr);
    one["monotone"] = method.monotone;
    one["reason"] = method.reason.empty() ? ordered_json(nullptr) : ordered_json(method.reason);
    out["methods"].push_back(std::move(one));
  }
  return out;
}

ordered_json impossible_json(const Impossible& why) {
  ordered_json out{{"constraint", why.constraint},
                   {"text", why.text},
                   {"need", why.need > 0 ? number(why.need) : ordered_json(nullptr)}};
  out["knobs"] = ordered_json::array();
  for (const KnobEffect& knob : why.knobs) {
    out["knobs"].push_back(
        {{"knob", knob.knob},
         {"change", knob.change},
         {"need", number(knob.need)},
         {"elasticity", number(knob.elasticity)},
         {"enough", knob.enough.empty() ? ordered_json(nullptr) : ordered_json(knob.enough)}});
  }
  return out;
}

ordered_json memory_json(const MemoryEnd& end) {
  return {{"activation", end.terms.activation},
          {"non_torch", end.terms.non_torch},
          {"graphs", end.terms.graphs},
          {"reserve_bytes", end.reserve.count()}};
}

ordered_json sizes_json(const RunSizes& sizes) {
  return {{"batch", sizes.batch},
          {"prompt_tokens", sizes.prompt_tokens},
          {"output_tokens", sizes.output_tokens}};
}

ordered_json candidate_json(const PlanCandidate& one) {
  ordered_json available = ordered_json::array();
  for (const Availability& where : availability_of(one.method.name)) {
    available.push_back({{"software", software_title(where.software)},
                         {"version", text_json(parts_of(where).version)},
                         {"as", where.as}});
  }
  ordered_json out{{"label", one.label},
                   {"method", one.method.name},
                   {"available_in", std::move(available)},
                   {"budget", budget_json(one.method.budget)},
                   {"method_params", params_json(one.method.params)},
                   {"gpu", one.gpu},
                   {"gpu_count", one.gpus_each},
                   {"layout", text_json(one.layout)},
                   {"replicas", one.replicas},
                   {"simulated", text_json(one.simulated)}};
  put_metrics(out, candidate_metrics(), one);
  out["memory_factors"] = memory_json(one.memory.end);
  out["memory_basis"] = one.memory.basis;
  put_metrics(out, candidate_metrics(), one, MetricPart::kTimes);
  put_metrics(out, candidate_metrics(), one, MetricPart::kAtAnswer);
  if (one.at_answer) {
    out["at_answer"] = sizes_json(one.at_answer->sizes);
    out["at_answer"]["peak_phase"] = one.at_answer->peak_phase;
    out["at_answer"]["free_bytes"] = one.at_answer->free_at_confidence.count();
    out["at_answer"]["peak_terms"] = peak_terms_json(one.at_answer->terms);
  }
  out["runs_out"] = nullptr;
  if (one.runs_out) {
    const Impossible& why = one.runs_out->why;
    out["runs_out"] = {{"constraint", why.constraint},
                       {"text", why.text},
                       {"need", why.need > 0 ? number(why.need) : ordered_json(nullptr)}};
    out["runs_out"].update(sizes_json(one.runs_out->sizes));
    out["runs_out"]["oom"] = oom_json(one.runs_out->oom);
  }
  if (!one.bounds.empty()) {
    out["bounds"] = ordered_json::array();
    for (const BoundShare& bound : one.bounds) {
      out["bounds"].push_back({{"bound", bound.bound},
                               {"bound_s", bound.limit.count()},
                               {"share", number(bound.share)}});
    }
    out["next"] = number(one.next);
  }
  out["points"] = ordered_json::array();
  for (const OperatingPoint& point : one.points) {
    put_metrics(out["points"].emplace_back(), operating_point_metrics(), point);
  }
  out["pruned"] = one.pruned.empty() ? ordered_json(nullptr) : ordered_json(one.pruned);
  out["impossible"] = one.impossible ? impossible_json(*one.impossible) : ordered_json(nullptr);
  out["notes"] = one.notes;
  return out;
}

std::string optional_csv(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? csv_number(*value) : "";
}

}  // namespace

std::string plan_words(PlanQuestion question) {
  switch (question) {
    case PlanQuestion::kLongestContext:
      return "longest context";
    case PlanQuestion::kLargestBatch:
      return "largest batch";
    case PlanQuestion::kHighestRate:
      return "highest rate";
    case PlanQuestion::kMinGpus:
      return "fewest GPUs";
  }
  return {};
}

std::string plan_unit(PlanQuestion question, double value) {
  switch (question) {
    case PlanQuestion::kLongestContext:
      return "tokens";
    case PlanQuestion::kLargestBatch:
      return value == 1 ? "sequence" : "sequences";
    case PlanQuestion::kHighestRate:
      return "requests/s";
    case PlanQuestion::kMinGpus:
      return value == 1 ? "GPU" : "GPUs";
  }
  return {};
}

std::string plan_amount(PlanQuestion question, double value) {
  if (question == PlanQuestion::kHighestRate) return fmt::format("{:.3g}", value);
  return with_commas(std::llround(value));
}

std::string plan_range(const PlanCandidate& one) {
  const AnswerRange& range = one.range;
  if (!range.is_known) return {};
  const auto text = [&](const std::optional<double>& end) {
    if (end) return plan_amount(one.question, *end);
    if (one.question != PlanQuestion::kMinGpus) return std::string{"none"};
    return fmt::format("more than {}", plan_amount(one.question, range.max_tried));
  };
  const bool fewest = one.question == PlanQuestion::kMinGpus;
  if (!range.safe && !range.optimistic) return text({});
  return fmt::format("{} to {}", text(fewest ? range.optimistic : range.safe),
                     text(fewest ? range.safe : range.optimistic));
}

ordered_json plan_document(const Scenario& scenario, const PlanResult& plan,
                           const std::vector<std::string>& notes) {
  ordered_json out{{"schema", "kvsim.plan/1"}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["scenario"] = {
      {"name", scenario.name}, {"title", scenario.title}, {"description", scenario.description},
      {"kind", scenario.kind}, {"hash", scenario.hash},   {"seed", scenario.seed},
      {"echo", scenario.echo}};
  out["confidence"] = scenario.plan->confidence;
  out["range_confidence"] = range_confidence(scenario.plan->confidence);
  out["attainment"] = scenario.plan->attainment;
  out["percentile"] = plan.percentile;
  out["cost_unit"] = fmt::format("{} per million output tokens", plan.cost_unit);
  out["impossible"] = plan.impossible();
  out["quality"] =
      plan.quality ? quality_json(*scenario.plan->quality, *plan.quality) : ordered_json(nullptr);
  out["answers"] = ordered_json::array();
  for (const PlanGroup& group : plan.groups) {
    ordered_json one{{"question", name_of(group.question)}, {"of", group.of}, {"keys", group.keys}};
    const PlanCandidate* best = group.best ? &plan.candidates[*group.best] : nullptr;
    one["answer"] = best != nullptr ? number(best->answer) : ordered_json(nullptr);
    one["range"] = best != nullptr ? text_json(plan_range(*best)) : ordered_json(nullptr);
    one["unit"] = plan_unit(group.question, 2);
    one["best"] = best != nullptr ? ordered_json(best->label) : ordered_json(nullptr);
    one["finding"] = plan_finding(plan, group);
    one["candidates"] = ordered_json::array();
    for (const std::size_t c : group.candidates) {
      one["candidates"].push_back(candidate_json(plan.candidates[c]));
    }
    out["answers"].push_back(std::move(one));
  }
  out["engines"] = engines_json(scenario);
  out["notes"] = plan.notes;
  for (const std::string& note : notes) out["notes"].push_back(note);
  return out;
}

std::string plan_csv(const PlanResult& plan) {
  std::string out =
      "question,of,method,budget,gpu,gpu_count,layout,replicas,answer,unit,predicted,safe,"
      "optimistic,"
      "output_tok_s,ttft_s,tpot_s,latency_s,cost,"
      "cost_unit,error,time_factor,probes,best,limited_by,constraint,need,reason\n";
  for (const PlanGroup& group : plan.groups) {
    for (const std::size_t c : group.candidates) {
      const PlanCandidate& one = plan.candidates[c];
      const OperatingPoint* at = one.points.empty() ? nullptr : &one.points.back();
      const auto of_point = [&](double OperatingPoint::*member) {
        return at == nullptr ? std::string{} : optional_csv(at->*member);
      };
      out += fmt::format(
          "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
          name_of(group.question), csv_field(group.of), csv_field(one.method.name),
          one.method.budget ? csv_number(budget_number(*one.method.budget)) : "",
          csv_field(one.gpu), one.gpus_each, csv_field(one.layout), one.replicas,
          optional_csv(one.answer), plan_unit(group.question, 2), optional_csv(one.range.predicted),
          optional_csv(one.range.safe), optional_csv(one.range.optimistic),
          of_point(&OperatingPoint::tokens_s), of_point(&OperatingPoint::ttft_s),
          of_point(&OperatingPoint::tpot_s), of_point(&OperatingPoint::latency_s),
          of_point(&OperatingPoint::cost), csv_field(plan.cost_unit),
          at == nullptr ? std::string{} : optional_csv(at->error), csv_number(one.time_factor),
          one.probes, group.best == c ? 1 : 0, csv_field(limited_by(one)),
          one.impossible ? one.impossible->constraint : "",
          one.impossible && one.impossible->need > 0 ? csv_number(one.impossible->need) : "",
          csv_field(one.impossible ? one.impossible->text : one.pruned));
    }
  }
  return out;
}

std::string plan_front_csv(const PlanResult& plan) {
  constexpr std::string_view kColumns =
      "gpus,load,context,output_tok_s,ttft_s,tpot_s,latency_s,cost,error,on_front";
  const auto columns = columns_of(operating_point_metrics(), kColumns);
  std::string out = fmt::format("question,of,candidate,{}\n", kColumns);
  for (const PlanGroup& group : plan.groups) {
    for (const std::size_t c : group.candidates) {
      const PlanCandidate& one = plan.candidates[c];
      for (const OperatingPoint& at : one.points) {
        out += fmt::format("{},{},{}{}\n", name_of(group.question), csv_field(group.of),
                           csv_field(one.label), csv_values(columns, at));
      }
    }
  }
  return out;
}

ResultsFolder write_plan_results(const Scenario& scenario, const PlanResult& plan,
                                 const std::filesystem::path& folder,
                                 const FolderOptions& options) {
  AtomicFolder building{folder};
  FigureSet figures;
  if (options.figures || options.page) figures = plan_figures(plan);
  if (!options.figures) figures.notes.clear();
  ResultsFolder out = draw_into(building, figures, folder, options);
  const ordered_json document = plan_document(scenario, plan, out.notes);
  if (options.page) write_page(building, plan_page(scenario, plan, document, figures), out);
  building.write("plan.json", to_file_text(document));
  building.write("plan.csv", plan_csv(plan));
  building.write("front.csv", plan_front_csv(plan));
  building.commit();
  return out;
}

}  // namespace kvsim
