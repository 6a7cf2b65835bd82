#include "sim/report/replay/error_figures.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/replay/replay.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxGroups = 16;  // that a legend can distinguish

/// Fills in groups and remark; returns the number of marks.
std::size_t add_marks(ScatterChart& chart, const std::vector<ErrorMark>& marks,
                      double ErrorMark::*x) {
  std::set<std::string> exact;
  for (const ErrorMark& mark : marks) {
    if (!(mark.*x > 0)) continue;
    // A bound for few entries read does not apply to a cache that holds all entries.
    if (x == &ErrorMark::held && mark.reads_part && mark.method.starts_with("oracle")) continue;
    if (!(mark.error >= kRoundingError)) {
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
  if (chart.groups.size() > kMaxGroups) {
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
    chart.faint_label = fmt::format("{} more, not on the Pareto front", faint);
  }
  constexpr std::size_t kMaxNamed = 4;
  if (exact.size() > kMaxNamed) {
    chart.remark = fmt::format("{} methods with an error below 0.00001", exact.size());
  } else if (!exact.empty()) {
    chart.remark = fmt::format("error below 0.00001: {}", fmt::join(exact, ", "));
  }
  return n;
}

/// Gives a method the same style in all `charts`.
void share_styles(std::vector<ScatterChart>& charts) {
  std::map<std::string, std::size_t> styles;
  for (ScatterChart& chart : charts) {
    for (MarkGroup& group : chart.groups) {
      if (!group.faint) group.style = styles.emplace(group.label, styles.size()).first->second;
    }
  }
}

}  // namespace

void add_error_figures(const std::vector<ErrorMark>& marks, const std::string& about,
                       FigureSet& set) {
  ScatterChart chart{.name = "error_vs_bytes",
                     .title = "Attention output error against cache size: " + about,
                     .x_label = "K, V and side data after the last step (% of the full cache)",
                     .y_label = "mean relative error (fraction)",
                     .x_column = "bytes_share",
                     .y_column = "rel_error_mean",
                     .x_scale = 100};
  ScatterChart read = chart;
  read.name = "error_vs_read";
  read.title = "Attention output error against traffic: " + about;
  read.x_label = "bytes read in decode steps (% of what the full cache reads)";
  read.x_column = "read_share";
  std::vector<ScatterChart> charts;
  if (add_marks(chart, marks, &ErrorMark::held) >= 2) charts.push_back(std::move(chart));
  const bool some_part = std::any_of(marks.begin(), marks.end(),
                                     [](const ErrorMark& mark) { return mark.reads_part; });
  if (some_part && add_marks(read, marks, &ErrorMark::read) >= 2) charts.push_back(std::move(read));
  share_styles(charts);
  for (const ScatterChart& each : charts) {
    set.figures.push_back(draw(each));
    set.figures.back().kind = each.name;
  }
}

}  // namespace kvsim
