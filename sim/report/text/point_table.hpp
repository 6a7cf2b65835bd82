#pragma once

// Tables with a row per point of a run, grouped by shared settings.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/metrics/metric.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {

/// A column of such a table. Columns are sorted by `place`, stably.
struct PointColumn {
  int place = 0;
  std::string header, unit;
  std::function<std::string(std::size_t point)> cell;
};
void sort_columns(std::vector<PointColumn>& columns);

/// A number in the unit of the metric's column: "GiB" from bytes, "ms" from seconds, "%" from
/// shares. "-" if there is none.
[[nodiscard]] std::string metric_cell(const std::optional<double>& value, const MetricInfo& info);
/// "0.41 to 0.62" in such a unit; "-" unless both ends are known.
[[nodiscard]] std::string range_cell(const std::optional<double>& low,
                                     const std::optional<double>& high, std::string_view unit);

/// The columns of single numbers that have a place in the summary. `result_of(point)` is a Result.
template <class Result, class ResultOf>
[[nodiscard]] std::vector<PointColumn> summary_columns(MetricTable<Result> table,
                                                       ResultOf result_of, bool verbose = true) {
  std::vector<PointColumn> columns;
  for (const Metric<Result>& metric : table) {
    const MetricColumn& shown = metric.info.summary;
    if (shown.place == 0 || (shown.verbose && !verbose) ||
        metric.info.kind == MetricKind::kLatency) {
      continue;
    }
    columns.push_back({shown.place, std::string{shown.header}, std::string{shown.unit},
                       [&metric, result_of](std::size_t point) {
                         return metric_cell(metric.value(result_of(point)).number(), metric.info);
                       }});
  }
  return columns;
}

/// `first` is the column of labels. If it has a unit, the unit is the first group's heading, which
/// then gets no separate line. `shows` selects the points that get a row; default: all.
[[nodiscard]] Table point_table(Table::Column first, const std::vector<PointColumn>& columns,
                                const std::vector<PointGroup>& groups,
                                const std::function<bool(std::size_t point)>& shows = {});

/// Maximum number of points in a short summary.
inline constexpr std::size_t kMaxShownPoints = 24;
/// Keeps at most kMaxShownPoints first points of `groups`, in whole groups. Returns the line that
/// counts the others, "and 56 more points: …\n"; empty if there are none.
[[nodiscard]] std::string keep_first_groups(std::vector<PointGroup>& groups);

}  // namespace kvsim
