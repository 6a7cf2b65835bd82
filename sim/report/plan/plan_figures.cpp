#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "sim/report/chart/chart.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxBars = 40;
constexpr std::size_t kMaxGroups = 8;

/// "1": figures of one question are numbered if there are several.
std::string figure_name(const PlanResult& plan, std::size_t group, const char* what) {
  const PlanQuestion question = plan.groups[group].question;
  std::size_t before = 0;
  std::size_t all = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    if (plan.groups[g].question != question) continue;
    ++all;
    before += g < group ? 1U : 0U;
  }
  return all > 1 ? fmt::format("{}_{}_{}", what, name_of(question), before + 1)
                 : fmt::format("{}_{}", what, name_of(question));
}

std::string title_of(const PlanGroup& group, const char* what) {
  std::string title = fmt::format("{}: {}", what, group.of);
  title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
  return title;
}

/// A method has the same colour on all GPUs and in all figures.
std::map<std::string, std::size_t> styles_of(const PlanResult& plan) {
  std::map<std::string, std::size_t> styles;
  for (const PlanCandidate& one : plan.candidates) {
    styles.emplace(method_label({one.method.name, one.method.params, {}}), styles.size());
  }
  return styles;
}

/// The candidate's label without the GPUs that headings name.
std::string without_gpus(const PlanCandidate& one) {
  const std::size_t layout = one.layout.empty() ? std::string::npos : one.label.find(one.layout);
  return one.label.substr(
      0, layout == std::string::npos ? one.label.find(", ") : layout + one.layout.size());
}

void add_answers(const PlanResult& plan, std::size_t g, FigureSet& set) {
  const PlanGroup& group = plan.groups[g];
  const std::vector<std::size_t> shown =
      group.candidates.size() > kMaxBars ? listed_candidates(plan, group) : group.candidates;
  if (shown.size() > kMaxBars) {
    set.notes.push_back(fmt::format("answers of {} are not drawn: {} bars are too many", group.of,
                                    group.candidates.size()));
    return;
  }
  const bool fewest = group.question == PlanQuestion::kMinGpus;
  const std::string words = plan_words(group.question);
  const PartStyle plain{"answer", {"#0072B2", 0, true}};
  const PartStyle full{"full cache", {"#777777", 0, true}};
  BarChart chart{.name = figure_name(plan, g, "answers"),
                 .title = title_of(group, words.c_str()),
                 .x_label = fewest ? "GPUs needed (count)"
                                   : fmt::format("{} ({})", words, plan_unit(group.question, 2)),
                 .column = std::string{name_of(group.question)}};
  // Grouped by GPUs, in the order of the scenario.
  std::vector<std::pair<std::string, std::vector<const PlanCandidate*>>> by_gpus;
  if (shown.size() < group.candidates.size()) {
    chart.title += fmt::format(" ({} of {} candidates)", shown.size(), group.candidates.size());
  }
  for (const std::size_t c : shown) {
    const PlanCandidate& one = plan.candidates[c];
    const std::string gpus = fmt::format("{} x {}", one.gpus_each, one.gpu);
    const auto found = std::find_if(by_gpus.begin(), by_gpus.end(),
                                    [&](const auto& each) { return each.first == gpus; });
    if (found == by_gpus.end()) {
      by_gpus.push_back({gpus, {&one}});
    } else {
      found->second.push_back(&one);
    }
  }
  bool any = false;
  bool any_full = false;
  for (const auto& [gpus, members] : by_gpus) {
    chart.bars.push_back({.label = gpus, .detail = {}, .heading = true});
    for (const PlanCandidate* one : members) {
      ChartBar bar{.label = without_gpus(*one)};
      const bool is_full = one->method.name == "full";
      any = any || one->answer;
      any_full = any_full || is_full;
      bar.parts.emplace_back(is_full ? full : plain, one->answer.value_or(0));
      bar.inside_numbers = false;
      const AnswerRange& range = one->range;
      const bool has_both = range.safe && range.optimistic;
      if (one->answer && range.is_known && has_both) {
        const auto [low, high] = std::minmax(*range.safe, *range.optimistic);
        bar.range = ChartRange{.low = low, .high = high};
        chart.range_label = "safe to optimistic";
      }
      if (one->answer) {
        bar.end_text = fmt::format("{}{}", one->at_most ? ">= " : "",
                                   plan_amount(group.question, *one->answer));
        // An end that does not exist has no place on the axis: the range is text.
        if (range.is_known && !has_both) {
          bar.end_text += fmt::format(", range {}", plan_range(*one));
        }
      } else if (one->impossible) {
        bar.end_text = fmt::format("impossible: {}", one->impossible->constraint);
      } else {
        bar.end_text = "cannot be the fewest";
      }
      chart.bars.push_back(std::move(bar));
    }
  }
  if (!any) return;
  double max = 0;
  for (const ChartBar& bar : chart.bars) {
    for (const auto& [style, value] : bar.parts) max = std::max(max, value);
  }
  constexpr double kThousand = 1000;
  if (max >= 100 * kThousand) {
    chart.unit = kThousand;
    const std::string unit = plan_unit(group.question, 2);
    chart.x_label = fmt::format("{} (thousand {})", words, unit);
    // The number next to a bar is not in thousands, so it states its unit.
    for (ChartBar& bar : chart.bars) {
      if (!bar.parts.empty() && bar.parts.front().second > 0) bar.end_text += " " + unit;
    }
  }
  chart.styles.push_back({"compressed cache", plain.fill});
  if (any_full) chart.styles.push_back(full);
  for (ChartBar& bar : chart.bars) {
    for (auto& [style, value] : bar.parts) {
      if (style.fill == plain.fill) style.words = "compressed cache";
    }
  }
  set.figures.push_back(draw(chart));
  set.figures.back().kind = "plan_answers";
}

/// Two objectives of the front.
struct FrontAxes {
  const char* kind;  // of the figure
  const char* name;
  const char* title;
  const char* objectives;
  double OperatingPoint::*x;
  double OperatingPoint::*y;
  const char* x_column;
  const char* y_column;
  std::string x_label, y_label;
};

FrontAxes cost_axes(const PlanResult& plan, const PlanGroup& group) {
  return {.kind = "plan_front",
          .name = "front",
          .title = "Cost against latency",
          .objectives = "cost and latency",
          .x = &OperatingPoint::latency_s,
          .y = &OperatingPoint::cost,
          .x_column = "latency_s",
          .y_column = "cost",
          .x_label = is_of_services(group.question)
                         ? fmt::format("p{} from arrival to last token (s)", plan.percentile)
                         : "latency of the batch (s)",
          .y_label = plan.priced
                         ? fmt::format("cost ({} per million output tokens)", plan.cost_unit)
                         : "cost (GPU hours per million output tokens)"};
}

FrontAxes time_axes(const PlanResult& plan) {
  return {.kind = "plan_times",
          .name = "times",
          .title = "TPOT against TTFT",
          .objectives = "TTFT and TPOT",
          .x = &OperatingPoint::ttft_s,
          .y = &OperatingPoint::tpot_s,
          .x_column = "ttft_s",
          .y_column = "tpot_s",
          .x_label = fmt::format("p{} of TTFT (s)", plan.percentile),
          .y_label = fmt::format("p{} of TPOT (s)", plan.percentile)};
}

void add_front(const PlanResult& plan, std::size_t g, const FrontAxes& axes,
               const std::map<std::string, std::size_t>& styles, FigureSet& set) {
  const PlanGroup& group = plan.groups[g];
  ScatterChart chart{.name = figure_name(plan, g, axes.name),
                     .title = title_of(group, axes.title),
                     .x_label = axes.x_label,
                     .y_label = axes.y_label,
                     .x_column = axes.x_column,
                     .y_column = axes.y_column};
  chart.log_x = true;
  chart.remark = plan.quality ? fmt::format("(by {} only; errors: trace {}, {})", axes.objectives,
                                            plan.quality->trace, plan.quality->source)
                              : fmt::format("(by {} only)", axes.objectives);
  std::size_t marks = 0;
  std::vector<std::size_t> order = group.candidates;
  // Candidates of the front first: if there are many, the others are grey.
  const auto leads = [&](std::size_t c) {
    const auto& points = plan.candidates[c].points;
    return std::any_of(points.begin(), points.end(),
                       [](const OperatingPoint& point) { return point.on_front; });
  };
  std::stable_partition(order.begin(), order.end(), leads);
  const auto shown =
      static_cast<std::size_t>(std::count_if(order.begin(), order.end(), [&](std::size_t c) {
        return !plan.candidates[c].points.empty();
      }));
  std::size_t coloured = 0;
  std::size_t faint = 0;
  for (const std::size_t c : order) {
    const PlanCandidate& one = plan.candidates[c];
    if (one.points.empty()) continue;
    MarkGroup group_of_marks{.label = one.label};
    const auto& error = one.points.back().error;
    if (error && *error > 1e-5)
      group_of_marks.label += fmt::format(", error {:.2g} %", 100 * *error);
    for (const OperatingPoint& point : one.points) {
      if (!(point.*axes.x > 0) || !(point.*axes.y > 0)) continue;
      group_of_marks.points.push_back({point.*axes.x, point.*axes.y});
    }
    if (group_of_marks.points.empty()) continue;
    std::stable_sort(group_of_marks.points.begin(), group_of_marks.points.end(),
                     [](ChartPoint a, ChartPoint b) { return a.x < b.x; });
    const bool far = shown > kMaxGroups && (coloured >= kMaxGroups || !leads(c));
    group_of_marks.faint = far;
    if (shown <= styles.size()) {
      group_of_marks.style = styles.at(method_label({one.method.name, one.method.params, {}}));
    }
    (far ? faint : coloured) += 1;
    marks += group_of_marks.points.size();
    chart.groups.push_back(std::move(group_of_marks));
  }
  if (marks < 2) return;
  chart.faint_label = fmt::format("{} more", faint);
  set.figures.push_back(draw(chart));
  set.figures.back().kind = axes.kind;
}

}  // namespace

FigureSet plan_figures(const PlanResult& plan) {
  FigureSet set;
  const auto styles = styles_of(plan);
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    add_answers(plan, g, set);
    const PlanGroup& group = plan.groups[g];
    add_front(plan, g, cost_axes(plan, group), styles, set);
    if (is_of_services(group.question)) add_front(plan, g, time_axes(plan), styles, set);
  }
  return set;
}

}  // namespace kvsim
