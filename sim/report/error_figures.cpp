#include "sim/report/error_figures.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart.hpp"

namespace kvsim {
namespace {

constexpr double kRounding = 1e-5;       // fp32 against itself in another order of sums
constexpr std::size_t kMostGroups = 16;  // that a legend can tell apart

void add_figure(ScatterChart chart, const std::vector<ErrorMark>& marks, double ErrorMark::*x,
                FigureSet& set) {
  std::set<std::string> exact;
  for (const ErrorMark& mark : marks) {
    if (!(mark.*x > 0)) continue;
    if (!(mark.error >= kRounding)) {
      exact.insert(mark.method);
      continue;
    }
    auto group = std::find_if(chart.groups.begin(), chart.groups.end(),
                              [&](const MarkGroup& each) { return each.label == mark.method; });
    if (group == chart.groups.end()) {
      group = chart.groups.insert(chart.groups.end(), {.label = mark.method});
      group->reference = mark.method.starts_with("oracle");
    }
    group->points.push_back({mark.*x, mark.error});
  }
  std::size_t n = 0;
  for (MarkGroup& group : chart.groups) {
    std::stable_sort(group.points.begin(), group.points.end(),
                     [](ChartPoint a, ChartPoint b) { return a.x < b.x; });
    n += group.points.size();
  }
  if (n < 2) return;
  if (chart.groups.size() > kMostGroups) {
    const std::vector<ChartPoint> front = pareto_front(chart.groups);
    const auto leads = [&](const ChartPoint p) {
      return std::any_of(front.begin(), front.end(),
                         [p](ChartPoint q) { return q.x == p.x && q.y == p.y; });
    };
    for (MarkGroup& group : chart.groups) {
      group.faint =
          !group.reference && std::none_of(group.points.begin(), group.points.end(), leads);
    }
    const auto faint = std::count_if(chart.groups.begin(), chart.groups.end(),
                                     [](const MarkGroup& group) { return group.faint; });
    chart.faint_label = fmt::format("{} more, never on the front", faint);
  }
  constexpr std::size_t kMostNamed = 4;
  if (exact.size() > kMostNamed) {
    chart.remark = fmt::format("{} methods below 1e-5", exact.size());
  } else if (!exact.empty()) {
    chart.remark = fmt::format("below 1e-5: {}", fmt::join(exact, ", "));
  }
  set.figures.push_back(draw(chart));
  set.figures.back().kind = chart.name;
}

}  // namespace

void add_error_figures(const std::vector<ErrorMark>& marks, const std::string& about,
                       FigureSet& set) {
  ScatterChart chart{.name = "error_vs_bytes",
                     .title = "Attention output error against cache size: " + about,
                     .x_label = "K, V and side data after the last step (% of the full cache)",
                     .y_label = "mean relative error",
                     .x_column = "bytes_share",
                     .y_column = "rel_error_mean",
                     .x_scale = 100};
  add_figure(chart, marks, &ErrorMark::held, set);
  if (std::none_of(marks.begin(), marks.end(),
                   [](const ErrorMark& mark) { return mark.reads_part; })) {
    return;
  }
  chart.name = "error_vs_read";
  chart.title = "Attention output error against traffic: " + about;
  chart.x_label = "bytes read in decode steps (% of what the full cache reads)";
  chart.x_column = "read_share";
  add_figure(chart, marks, &ErrorMark::read, set);
}

}  // namespace kvsim
