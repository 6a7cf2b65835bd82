#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/plan/confidence.hpp"
#include "sim/report/batch/engine_report.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/text_style.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// "cache", "prefill", …: the scarce resource of a constraint.
std::string scarce(const std::string& constraint) {
  if (constraint == "kv_capacity") return "cache";
  if (constraint == "activations") return "prefill";
  return constraint;
}

/// The GPUs of a group's candidates if all are the same, else empty.
std::string common_gpus(const PlanResult& plan, const PlanGroup& group) {
  const PlanCandidate& first = plan.candidates[group.candidates.front()];
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (one.gpu != first.gpu || one.gpus_each != first.gpus_each) return "";
  }
  return fmt::format(", on {} x {}", first.gpus_each, first.gpu);
}

std::string group_table(const PlanResult& plan, const PlanGroup& group, double confidence,
                        const TextStyle& style) {
  // Longer words do not fit in 80 columns.
  const std::string unit =
      group.question == PlanQuestion::kLargestBatch ? "seqs" : plan_unit(group.question, 2);
  const bool ranges = std::any_of(group.candidates.begin(), group.candidates.end(),
                                  [&](std::size_t c) { return plan.candidates[c].range.is_known; });
  std::vector<Table::Column> columns{{"", Align::kLeft}};
  columns.push_back({"predicted", Align::kRight, unit});
  if (ranges) {
    // In the same unit; the header takes two lines to fit in 80 columns.
    columns.push_back(
        {"safe", Align::kRight, fmt::format("(p{:g})", 100 * range_confidence(confidence))});
    columns.push_back({"optimistic", Align::kRight, unit});
  }
  // A batch of prompts is computed at once; a single request gets its first token much earlier.
  const bool batches = std::any_of(group.candidates.begin(), group.candidates.end(), [&](auto c) {
    const auto& run = plan.candidates[c].at_answer;
    return run && run->sizes.batch > 1;
  });
  columns.push_back({"peak", Align::kRight, "GiB"});
  columns.push_back({"TTFT", Align::kRight, batches ? "one s" : "s"});
  if (batches) columns.push_back({"TTFT", Align::kRight, "all s"});
  columns.push_back({"decode", Align::kRight, "tok/s"});
  columns.push_back({"limited", Align::kLeft, "by"});
  Table table{columns};
  std::vector<LineTones> tones(2, {.line = Tone::kHeading});  // names and units
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    // "snapkv 20 %": the numbers of a row take most of the 80 columns.
    std::string label = clean_text(one.label);
    if (const std::size_t word = label.find(" budget "); word != std::string::npos) {
      label.erase(word, std::string_view{" budget"}.size());
    }
    std::vector<std::string> cells{std::move(label)};
    const auto size = [&](const std::optional<double>& value) -> std::string {
      if (!value) return "none";
      return fmt::format("{}{}", one.at_most ? ">= " : "", plan_amount(group.question, *value));
    };
    cells.push_back(size(one.range.predicted));
    if (ranges) {
      cells.push_back(one.range.is_known ? size(one.range.safe) : "-");
      cells.push_back(one.range.is_known ? size(one.range.optimistic) : "-");
    }
    const auto& run = one.at_answer;
    cells.push_back(run ? fmt::format("{:.1f}", static_cast<double>(run->peak.count()) / kGiB)
                        : "-");
    cells.push_back(run ? amount(run->ttft_one_s) : "-");
    if (batches) cells.push_back(run ? amount(run->ttft_s) : "-");
    cells.push_back(run && run->decode_tok_s > 0 ? amount(run->decode_tok_s) : "-");
    cells.push_back(one.impossible ? scarce(one.impossible->constraint)
                    : one.runs_out ? scarce(one.runs_out->why.constraint)
                                   : "-");
    table.add_row(std::move(cells));
    tones.push_back({.last_word = one.answer ? Tone::kPlain : Tone::kBad});
  }
  return toned_lines(table.str(style.width), tones, style);
}

bool ends_at_positions(const PlanCandidate& one) {
  return one.runs_out && one.runs_out->why.constraint == "positions";
}

/// The resource that runs out first, one sentence per candidate.
std::string scarcities(const PlanResult& plan, const PlanGroup& group, std::size_t width) {
  std::string out;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    std::string text;
    if (one.impossible) {
      text = fmt::format("{}: none: {}", one.label, one.impossible->text);
    } else if (ends_at_positions(one)) {
      continue;  // the table shows it, and a note states how to exceed it
    } else if (one.runs_out && one.answer) {
      const double next = *one.answer + 1;
      text = fmt::format("{}: at {} {} {}", one.label, plan_amount(group.question, next),
                         plan_unit(group.question, next), one.runs_out->why.text);
    } else {
      continue;
    }
    out += fmt::format("- {}", paragraph(fmt::format("{}.", text), width, 2));
  }
  return out;
}

}  // namespace

std::string plan_screen(const Scenario& scenario, const PlanResult& plan,
                        const ResultsFolder* written, const TextStyle& style) {
  const std::size_t width = style.width;
  std::string out;
  std::int64_t positions = 0;
  std::string model;
  for (const PlanGroup& group : plan.groups) {
    std::string heading =
        fmt::format("{} of {}{}", plan_words(group.question), group.of, common_gpus(plan, group));
    heading.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(heading.front())));
    if (!out.empty()) out += "\n";
    out += toned(Tone::kHeading, paragraph(heading, width), style);
    out += group_table(plan, group, scenario.plan->confidence, style);
    out += scarcities(plan, group, width);
    if (const std::string cost = plan_cost(*scenario.plan, plan, group); !cost.empty()) {
      out += paragraph(
          fmt::format("Cost of {}: {}.", clean_text(plan.candidates[*group.best].label), cost),
          width, 2);
    }
    out += paragraph("Finding: " + plan_finding(plan, group), width, 2);
    for (const std::size_t c : group.candidates) {
      positions = std::max(positions, plan.candidates[c].positions);
      if (plan.candidates[c].positions > 0) model = group.keys.value("model", "the model");
    }
  }
  out += "\n";
  out += plan_availability(plan, width);
  out += engines_text(scenario, width);
  std::vector<std::string> notes = scenario.notes;
  const double confidence = 100 * range_confidence(scenario.plan->confidence);
  const bool has_ranges = std::any_of(plan.candidates.begin(), plan.candidates.end(),
                                      [](const PlanCandidate& one) { return one.range.is_known; });
  if (has_ranges) {
    notes.push_back(
        fmt::format("safe (p{:g}) fits with the most memory that a run needs in {:g} % of cases, "
                    "optimistic with the least; peak, TTFT (time to first token) and decode rate "
                    "are predictions at the {} size",
                    confidence, confidence, scenario.plan->confidence > 0 ? "safe" : "predicted"));
  }
  const bool batches = std::any_of(
      plan.candidates.begin(), plan.candidates.end(),
      [](const PlanCandidate& one) { return one.at_answer && one.at_answer->sizes.batch > 1; });
  if (batches) {
    notes.emplace_back(
        "TTFT one: a single request; TTFT all: the prompts of the whole batch at once");
  }
  if (std::any_of(plan.candidates.begin(), plan.candidates.end(), ends_at_positions)) {
    notes.emplace_back("--beyond-positions allows contexts beyond the model's positions");
  }
  if (positions > 0) {
    notes.push_back(fmt::format("{} has {} positions; answers beyond them count memory only", model,
                                with_commas(positions)));
  }
  for (const PlanCandidate& one : plan.candidates) {
    for (const std::string& note : one.notes) {
      const bool said = note.find("the answer counts memory only") != std::string::npos ||
                        std::find(notes.begin(), notes.end(), note) != notes.end();
      if (!said) notes.push_back(note);
    }
  }
  if (!plan.quality) {
    notes.emplace_back(
        "the error of a method is not included: kvsim replay measures it on a trace");
  }
  for (const std::string& note : notes) out += fmt::format("note: {}", paragraph(note, width, 6));
  if (written != nullptr) {
    for (const std::string& note : written->notes) {
      out += fmt::format("note: {}", paragraph(note, width, 6));
    }
    out += paragraph(fmt::format("written: {}", written->folder.string()), width);
  }
  return out;
}

}  // namespace kvsim
