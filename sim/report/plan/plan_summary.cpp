#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/methods/resolve/availability.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "sim/report/batch/engine_report.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/plan/plan_finding.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxParameters = 3;
constexpr std::size_t kMaxReasons = 6;

std::string lines(std::string_view text, std::size_t width, std::size_t indent = 0) {
  return fmt::format("{:{}}{}", "", indent, paragraph(text, width, indent));
}

std::string answer_text(PlanQuestion question, double value) {
  return fmt::format("{} {}", plan_amount(question, value), plan_unit(question, value));
}

/// ", range 8 to 24"; empty if the uncertainty is unknown or both ends are equal.
std::string range_words(const PlanCandidate& one) {
  if (one.range.safe && one.range.safe == one.range.optimistic) return {};
  const std::string range = plan_range(one);
  return range.empty() ? range : fmt::format(", range {}", range);
}

std::string gpus_text(const PlanCandidate& one) {
  const std::int64_t gpus = one.gpus_each * one.replicas;
  std::string text = fmt::format("{} x {}", gpus, one.gpu);
  std::string how = one.layout;
  if (one.replicas > 1) {
    how += fmt::format("{}{} replicas", how.empty() ? "" : "; ", one.replicas);
  }
  return how.empty() ? text : fmt::format("{} ({})", text, how);
}

/// For a group without an answer: the candidate whose knobs were varied, else the first.
const PlanCandidate* nearest(const PlanResult& plan, const PlanGroup& group) {
  const PlanCandidate* out = nullptr;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (!one.impossible) continue;
    if (out == nullptr || (out->impossible->knobs.empty() && !one.impossible->knobs.empty())) {
      out = &one;
    }
  }
  return out;
}

std::string capital(std::string text) {
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text;
}

std::string knob_words(const Impossible& why) {
  std::string text;
  for (std::size_t k = 0; k < std::min(kMaxParameters, why.knobs.size()); ++k) {
    const KnobEffect& knob = why.knobs[k];
    text += fmt::format("{}{} {} (elasticity {:.2g}; {})",
                        k == 0 ? "Most effective change: " : ", then ", knob.knob, knob.change,
                        knob.elasticity,
                        knob.enough.empty()          ? "not enough in the range tried"
                        : knob.enough == knob.change ? "that is enough"
                                                     : fmt::format("{} is enough", knob.enough));
  }
  return text;
}

std::string answer_sentence(const PlanResult& plan, const PlanGroup& group) {
  const std::string question_text =
      capital(fmt::format("{} of {}", plan_words(group.question), group.of));
  if (!group.best) {
    const PlanCandidate* near = nearest(plan, group);
    if (near == nullptr) return fmt::format("{}: impossible.", question_text);
    std::string text =
        fmt::format("{}: impossible ({}). Nearest is {}: {}.", question_text,
                    near->impossible->constraint, near->label, near->impossible->text);
    if (near->range.predicted || near->range.optimistic) {
      text +=
          fmt::format(" Predicted: {}{}.",
                      near->range.predicted ? answer_text(group.question, *near->range.predicted)
                                            : std::string{"none"},
                      range_words(*near));
    }
    if (!near->impossible->knobs.empty()) {
      text += fmt::format(" {}.", knob_words(*near->impossible));
    }
    if (near->impossible->constraint == "weights" && is_of_services(group.question) &&
        near->layout.empty()) {
      text +=
          " An engine has the scenario's GPUs: gpu_count (--tp) sets another number, --layouts 8 "
          "tries all up to 8.";
    }
    return text;
  }
  const PlanCandidate& best = plan.candidates[*group.best];
  std::string text =
      fmt::format("{}: {}{}{}, with {} on {}", question_text, best.at_most ? "at least " : "",
                  answer_text(group.question, *best.answer), range_words(best),
                  method_label(best.method), gpus_text(best));
  if (const PlanCandidate* full = full_cache_of(plan, group, best)) {
    if (full->answer) {
      text += fmt::format("; the full cache {} there", plan_amount(group.question, *full->answer));
    } else if (full->impossible) {
      text +=
          fmt::format("; no answer with the full cache there ({})", full->impossible->constraint);
    }
  }
  if (best.runs_out && best.runs_out->why.constraint == "positions") {
    text += "; limited by the model's positions";
  }
  if (best.positions > 0) {
    text += fmt::format("; the model has {} positions", with_commas(best.positions));
  }
  return fmt::format("{}.", text);
}

std::string percent(const std::optional<double>& error) {
  if (!error) return "-";
  return *error < kRoundingError ? "0 %" : fmt::format("{:.3g} %", 100 * *error);
}

bool has_ranges(const PlanResult& plan, const PlanGroup& group) {
  return std::any_of(group.candidates.begin(), group.candidates.end(),
                     [&](std::size_t c) { return plan.candidates[c].range.is_known; });
}

/// One line per candidate of `shown`. `ranges`: adds the range of its answer.
std::string answers_table(const PlanResult& plan, const PlanGroup& group,
                          const std::vector<std::size_t>& shown, bool ranges, std::size_t width) {
  const bool services = is_of_services(group.question);
  const auto unit = plan_unit(group.question, 2);
  const bool errors =
      std::any_of(group.candidates.begin(), group.candidates.end(), [&](std::size_t c) {
        const PlanCandidate& one = plan.candidates[c];
        return !one.points.empty() && one.points.back().error;
      });
  std::vector<Table::Column> columns{{"", Table::Align::kLeft}, {unit}};
  if (ranges) columns.push_back({"range"});
  if (errors) columns.push_back({"error"});
  if (services) {
    columns.push_back({fmt::format("TTFT p{}", plan.percentile)});
    columns.push_back({fmt::format("TPOT p{}", plan.percentile)});
  } else {
    columns.push_back({"TTFT, one"});
    columns.push_back({"latency"});
  }
  columns.push_back({"tok/s"});
  columns.push_back({fmt::format("{}/Mtok", plan.cost_unit)});
  columns.push_back({"front"});
  Table table{columns};
  for (const std::size_t c : shown) {
    const PlanCandidate& one = plan.candidates[c];
    std::vector<std::string> cells{clean_text(one.label)};
    if (!one.answer) {
      cells.push_back(one.impossible       ? one.impossible->constraint
                      : one.pruned.empty() ? "-"
                                           : "pruned");
      if (ranges) cells.push_back(plan_range(one));
      cells.resize(columns.size(), "");
      table.add_row(std::move(cells));
      continue;
    }
    cells.push_back(
        fmt::format("{}{}", one.at_most ? ">= " : "", plan_amount(group.question, *one.answer)));
    if (ranges) cells.push_back(one.range.is_known ? plan_range(one) : "-");
    const OperatingPoint* at = one.points.empty() ? nullptr : &one.points.back();
    const auto seconds = [](double s) { return fmt::format("{} s", amount(s)); };
    if (errors) cells.push_back(at == nullptr ? "-" : percent(at->error));
    if (services) {
      const auto at_percentile = [&](Distribution ServiceTimes::*time) {
        return value_at((*one.times).*time, plan.percentile);
      };
      cells.push_back(one.times ? seconds(at_percentile(&ServiceTimes::ttft)) : "-");
      cells.push_back(
          one.times ? fmt::format("{} ms", amount(1e3 * at_percentile(&ServiceTimes::tpot))) : "-");
    } else {
      cells.push_back(one.at_answer ? seconds(one.at_answer->ttft_one_s) : "-");
      cells.push_back(at == nullptr ? "-" : seconds(at->latency_s));
    }
    cells.push_back(at == nullptr ? "-" : amount(at->tokens_s));
    cells.push_back(at == nullptr ? "-" : amount(at->cost));
    cells.emplace_back(is_on_front(one) ? "*" : "");
    table.add_row(std::move(cells));
  }
  return table.str(width);
}

/// The table of a group; ranges get a separate table if they make it too wide.
std::string table_of(const PlanResult& plan, const PlanGroup& group, std::size_t width) {
  const bool ranges = has_ranges(plan, group);
  const std::vector<std::size_t> shown = listed_candidates(plan, group);
  std::string all = answers_table(plan, group, shown, ranges, width);
  const auto is_wide = [&](std::string_view text) {
    for (std::size_t from = 0; from < text.size();) {
      const std::size_t end = std::min(text.find('\n', from), text.size());
      if (display_width(text.substr(from, end - from)) > width) return true;
      from = end + 1;
    }
    return false;
  };
  if (!ranges || !is_wide(all)) return all;
  Table table{{{"", Table::Align::kLeft},
               {fmt::format("range, {}", plan_unit(group.question, 2)), Table::Align::kRight}}};
  for (const std::size_t c : shown) {
    const PlanCandidate& one = plan.candidates[c];
    if (one.range.is_known) table.add_row({clean_text(one.label), plan_range(one)});
  }
  return answers_table(plan, group, shown, false, width) + "\n" + table.str(width);
}

/// "On the front: 12 ways to run. Lowest cost 0.37 (TP 1), TTFT 0.1 s (TP 8), …"; empty if there is
/// no front.
std::string front_ends(const PlanResult& plan, const PlanGroup& group) {
  std::vector<std::pair<const OperatingPoint*, const PlanCandidate*>> front;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    for (const OperatingPoint& point : one.points) {
      if (point.on_front) front.emplace_back(&point, &one);
    }
  }
  if (front.empty()) return {};
  std::vector<std::string> ends;
  const auto add = [&](std::string_view name, const auto& value, const auto& words) {
    const auto& [point, one] = *std::min_element(
        front.begin(), front.end(),
        [&](const auto& a, const auto& b) { return value(*a.first) < value(*b.first); });
    ends.push_back(fmt::format("{} {} ({})", name, words(value(*point)), clean_text(one->label)));
  };
  const auto seconds = [](double s) { return fmt::format("{} s", amount(s)); };
  add(
      "cost", [](const OperatingPoint& p) { return p.cost; },
      [&](double cost) { return fmt::format("{} {}/Mtok", amount(cost), plan.cost_unit); });
  add(
      "TTFT", [](const OperatingPoint& p) { return p.ttft_s; }, seconds);
  add(
      "TPOT", [](const OperatingPoint& p) { return p.tpot_s; },
      [](double s) { return fmt::format("{} ms", amount(1e3 * s)); });
  if (front.front().first->error) {
    add(
        "error", [](const OperatingPoint& p) { return p.error; }, percent);
  }
  return fmt::format("On the front: {} {} to run. Lowest {}.", front.size(),
                     front.size() == 1 ? "way" : "ways", fmt::join(ends, ", "));
}

/// "Of 15 candidates 4 have an answer, 2 are pruned, 9 have none: kv_capacity 1, tpot 8.", and the
/// ends of the front; empty if the table shows all.
std::string not_shown(const PlanResult& plan, const PlanGroup& group, std::size_t width) {
  if (listed_candidates(plan, group).size() == group.candidates.size()) return {};
  std::map<std::string, int> constraints;
  std::size_t refused = 0, pruned = 0, missing = 0;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (!one.pruned.empty()) ++(one.pruned.starts_with("not searched") ? missing : pruned);
    if (!one.impossible) continue;
    ++constraints[one.impossible->constraint];
    ++refused;
  }
  std::vector<std::string> reasons;
  for (const auto& [name, count] : constraints)
    reasons.push_back(fmt::format("{} {}", name, with_commas(count)));
  const std::size_t all = group.candidates.size();
  const auto count = [](std::size_t n) { return with_commas(static_cast<std::int64_t>(n)); };
  std::string text = fmt::format("Of {} candidates {} have an answer", count(all),
                                 count(all - refused - pruned - missing));
  if (pruned > 0) text += fmt::format(", {} are pruned", count(pruned));
  if (missing > 0) text += fmt::format(", {} were not searched", count(missing));
  if (refused > 0) {
    text += fmt::format(", {} have none: {}", with_commas(static_cast<std::int64_t>(refused)),
                        fmt::join(reasons, ", "));
  }
  return lines(fmt::format("{} (plan.csv has all).", text), width) +
         lines(front_ends(plan, group), width);
}

std::string reasons_of(const PlanResult& plan, const PlanGroup& group, std::size_t width) {
  if (std::string text = not_shown(plan, group, width); !text.empty() && group.best) return text;
  std::string out;
  std::size_t said = 0;
  std::size_t more = 0;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (!one.impossible) continue;
    if (!group.best && &one == nearest(plan, group)) continue;  // printed above
    // If others have an answer, further candidates without a varied knob are only counted.
    if (said == kMaxReasons && one.impossible->knobs.empty()) {
      ++more;
      continue;
    }
    std::string text =
        fmt::format("{}: {} ({})", one.label, one.impossible->text, one.impossible->constraint);
    out += lines(fmt::format("{}.", text), width, 2);
    ++said;
  }
  if (more > 0) out += fmt::format("  and {} more, in plan.csv\n", more);
  return out;
}

std::string quality_words(const Scenario& scenario, const PlanResult& plan) {
  const QualityFloor& floor = *scenario.plan->quality;
  const std::string question_text =
      floor.max_rel_error
          ? fmt::format("mean relative error at most {:g} %", 100 * *floor.max_rel_error)
          : fmt::format("retained mass at least {:g} %", 100 * *floor.min_retained_mass);
  return fmt::format("{} on trace {} ({})", question_text, plan.quality->trace,
                     plan.quality->source);
}

std::string quality_table(const QualityReport& quality, std::size_t width) {
  Table table{{{"method", Table::Align::kLeft},
               {"least budget"},
               {"error"},
               {"mass kept"},
               {"", Table::Align::kLeft}}};
  for (const MethodQuality& method : quality.methods) {
    std::vector<std::string> cells{clean_text(method_label({method.name, method.params, {}}))};
    if (method.chosen) {
      const QualityTry& one = method.tries[*method.chosen];
      cells.push_back(one.budget ? fmt::format("{:.4g} %", 100 * one.budget->fraction) : "-");
      cells.push_back(percent(one.rel_error));
      cells.push_back(percent(one.retained_mass));
      cells.emplace_back(method.monotone ? "" : "more is not always better");
    } else {
      const QualityTry& one = method.tries.back();
      cells.emplace_back("none");
      cells.push_back(percent(one.rel_error));
      cells.push_back(percent(one.retained_mass));
      cells.emplace_back(
          one.rel_error ? fmt::format("at {:.4g} %", 100 * (one.budget ? one.budget->fraction : 1))
                        : "not judged");
    }
    table.add_row(std::move(cells));
  }
  return table.str(width);
}

}  // namespace

std::string plan_cost(const PlanSection& section, const PlanResult& plan, const PlanGroup& group) {
  if (!group.best) return "";
  const PlanCandidate& best = plan.candidates[*group.best];
  const auto price = section.prices.find(best.gpu);
  if (price == section.prices.end()) return "";
  const auto gpus = static_cast<double>(best.gpus_each * best.replicas);
  std::string text = fmt::format("{} {} per hour", amount(gpus * price->second), section.currency);
  if (!best.points.empty()) {
    text += fmt::format(", {} {} per million output tokens", amount(best.points.back().cost),
                        section.currency);
  }
  return text;
}

std::string plan_availability(const PlanResult& plan, std::size_t width) {
  std::vector<std::string> methods, parts;
  for (const PlanCandidate& one : plan.candidates) {
    const std::string& name = one.method.name;
    const bool is_known = std::find(methods.begin(), methods.end(), name) != methods.end();
    if (is_known || name == "full" || own_method_note(name)) continue;
    methods.push_back(name);
    parts.push_back(fmt::format("{}: {}", name, availability_versions(availability_of(name))));
  }
  if (parts.empty()) return {};
  return paragraph(fmt::format("available in: {}", fmt::join(parts, "; ")), width, 2);
}

std::string plan_summary(const Scenario& scenario, const PlanResult& plan,
                         const ResultsFolder* written, std::size_t width) {
  const double confidence = 100 * scenario.plan->confidence;
  std::string head = fmt::format(
      "Plan of {}, {}", scenario.name,
      confidence > 0 ? fmt::format("safe at {:g} %", confidence) : std::string{"as predicted"});
  if (plan.quality) head += fmt::format(", {}", quality_words(scenario, plan));
  std::string out = lines(fmt::format("{}:", head), width);
  for (const PlanGroup& group : plan.groups) {
    // Answers of other questions have a column for the cost.
    const std::string cost = group.question == PlanQuestion::kMinGpus
                                 ? plan_cost(*scenario.plan, plan, group)
                                 : std::string{};
    out +=
        fmt::format("- {}", paragraph(answer_sentence(plan, group) +
                                          (cost.empty() ? cost : fmt::format(" Cost: {}.", cost)),
                                      width, 2));
  }
  if (plan.quality) {
    out += "\nQuality\n";
    out += quality_table(*plan.quality, width);
    for (const MethodQuality& method : plan.quality->methods) {
      if (!method.chosen && !method.tries.back().rel_error) {
        out += lines(fmt::format("{}: {}", method.name, method.reason), width, 2);
      }
    }
  }
  for (const PlanGroup& group : plan.groups) {
    const std::string heading =
        capital(fmt::format("{} of {}", plan_words(group.question), group.of));
    out += fmt::format("\n{}{}", lines(heading, width), table_of(plan, group, width));
    out += reasons_of(plan, group, width);
    out += paragraph("Finding: " + plan_finding(plan, group), width, 2);
  }
  std::vector<std::string> notes = plan.notes;
  notes.emplace_back(
      "front *: no other way to run is as good in cost, TTFT, TPOT, latency, throughput, error and "
      "context, and better in one of them");
  for (const PlanCandidate& one : plan.candidates) {
    for (const std::string& note : one.notes) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  out += "\n";
  out += plan_availability(plan, width);
  out += engines_text(scenario, width);
  for (const std::string& note : notes) {
    out += fmt::format("note: {}", paragraph(note, width, 6));
  }
  if (written != nullptr) {
    for (const std::string& note : written->notes)
      out += fmt::format("note: {}", paragraph(note, width, 6));
    out += lines(fmt::format("written: {} (plan.json, plan.csv, front.csv{}{})",
                             written->folder.string(), written->page ? ", report.html" : "",
                             written->figures.empty() ? "" : ", figures/"),
                 width);
  }
  return out;
}

}  // namespace kvsim
