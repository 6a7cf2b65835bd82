#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/engine_report.hpp"
#include "sim/report/plan_report.hpp"
#include "sim/report/table.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// "cache", "prefill", …: what a constraint is short of.
std::string scarce(const std::string& constraint) {
  if (constraint == "kv_capacity") return "cache";
  if (constraint == "activations") return "prefill";
  return constraint;
}

/// The GPUs of a group's candidates where all have the same; empty where they differ.
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
  const std::string unit = plan_unit(group.question, 2);
  const bool ranges = confidence > 0;
  std::vector<Table::Column> columns{{"", Align::kLeft}};
  if (ranges)
    columns.push_back({fmt::format("{:g} % sure", 100 * confidence), Align::kRight, unit});
  columns.push_back({"predicted", Align::kRight, unit});
  if (ranges) columns.push_back({"at best", Align::kRight, unit});
  for (Table::Column column :
       {Table::Column{"peak", Align::kRight, "GiB"}, Table::Column{"TTFT", Align::kRight, "s"},
        Table::Column{"decode", Align::kRight, "tok/s"}, Table::Column{"next out", Align::kLeft}}) {
    columns.push_back(std::move(column));
  }
  Table table{columns};
  std::vector<LineTones> tones(2, {.line = Tone::kHeading});  // names and units
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    // "snapkv 20 %": the numbers of a row take most of 80 columns.
    std::string label = clean_text(one.label);
    if (const std::size_t word = label.find(" budget "); word != std::string::npos) {
      label.erase(word, std::string_view{" budget"}.size());
    }
    std::vector<std::string> cells{std::move(label)};
    const auto size = [&](double value) {
      return fmt::format("{}{}", one.at_most ? ">= " : "", plan_amount(group.question, value));
    };
    if (ranges) cells.push_back(one.answer ? size(*one.answer) : "none");
    cells.push_back(one.likely ? size(one.likely->predicted) : "-");
    if (ranges) cells.push_back(one.likely ? size(one.likely->at_best) : "-");
    const auto& run = one.at_answer;
    cells.push_back(run ? fmt::format("{:.1f}", static_cast<double>(run->peak.count()) / kGiB)
                        : "-");
    cells.push_back(run ? amount(run->ttft_s) : "-");
    cells.push_back(run && run->decode_tok_s > 0 ? amount(run->decode_tok_s) : "-");
    cells.push_back(one.impossible ? scarce(one.impossible->constraint)
                    : one.runs_out ? scarce(one.runs_out->why.constraint)
                                   : "-");
    table.add_row(std::move(cells));
    tones.push_back({.last_word = one.answer ? Tone::kPlain : Tone::kBad});
  }
  return toned_lines(table.str(style.width), tones, style);
}

/// What runs out first, a sentence a candidate.
std::string scarcities(const PlanResult& plan, const PlanGroup& group, std::size_t width) {
  std::string out;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    std::string text;
    if (one.impossible) {
      text = fmt::format("{}: none: {}", one.label, one.impossible->text);
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
    for (const std::size_t c : group.candidates) {
      positions = std::max(positions, plan.candidates[c].positions);
      if (plan.candidates[c].positions > 0) model = group.keys.value("model", "the model");
    }
  }
  out += "\n";
  out += engines_text(scenario, width);
  std::vector<std::string> notes = scenario.notes;
  if (scenario.plan->confidence > 0) {
    notes.push_back(
        fmt::format("{0:g} % sure: it fits though the run takes as much memory as is likely in "
                    "{0:g} % of cases; peak, TTFT (time to first token) and decode rate are "
                    "predictions there",
                    100 * scenario.plan->confidence));
  }
  if (positions > 0) {
    notes.push_back(fmt::format("{} is published for {} positions; memory alone is counted", model,
                                with_commas(positions)));
  }
  for (const PlanCandidate& one : plan.candidates) {
    for (const std::string& note : one.notes) {
      const bool said = note.find("is published for") != std::string::npos ||
                        std::find(notes.begin(), notes.end(), note) != notes.end();
      if (!said) notes.push_back(note);
    }
  }
  if (!plan.quality) {
    notes.emplace_back("what a method loses is not counted: kvsim replay measures it on a trace");
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
