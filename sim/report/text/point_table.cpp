#include "sim/report/text/point_table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

/// Number of `unit` per base unit.
double scale_of(std::string_view unit) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  if (unit == "GiB") return 1 / kGiB;
  if (unit == "ms") return 1e3;
  return unit == "%" ? 100 : 1;
}

}  // namespace

void sort_columns(std::vector<PointColumn>& columns) {
  std::stable_sort(columns.begin(), columns.end(),
                   [](const auto& a, const auto& b) { return a.place < b.place; });
}

std::string metric_cell(const std::optional<double>& value, const MetricInfo& info) {
  if (!value) return "-";
  if (info.kind == MetricKind::kCount) return with_commas(std::llround(*value));
  const double shown = *value * scale_of(info.summary.unit);
  if (info.kind == MetricKind::kBytes) return fmt::format("{:.1f}", shown);
  return info.summary.unit == "%" ? fmt::format("{:.0f}", shown) : amount(shown);
}

std::string range_cell(const std::optional<double>& low, const std::optional<double>& high,
                       std::string_view unit) {
  if (!low || !high) return "-";
  const auto end = [&](double value) {
    const double shown = value * scale_of(unit);
    return unit == "%" ? fmt::format("{:.0f}", shown) : amount(shown);
  };
  return fmt::format("{} to {}", end(*low), end(*high));
}

Table point_table(Table::Column first, const std::vector<PointColumn>& columns,
                  const std::vector<PointGroup>& groups,
                  const std::function<bool(std::size_t point)>& shows) {
  first.align = Table::Align::kLeft;
  bool has_heading = !first.unit.empty();
  std::vector<Table::Column> headers{std::move(first)};
  for (const PointColumn& column : columns) {
    headers.push_back({column.header, Table::Align::kRight, column.unit});
  }
  Table table{std::move(headers)};
  for (const PointGroup& group : groups) {
    if (!std::exchange(has_heading, false)) table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const std::size_t point = group.points[k];
      if (shows && !shows(point)) continue;
      std::vector<std::string> cells{indent + group.labels[k]};
      for (const PointColumn& column : columns) cells.push_back(column.cell(point));
      table.add_row(std::move(cells));
    }
  }
  return table;
}

std::string keep_first_groups(std::vector<PointGroup>& groups) {
  std::size_t kept = 0;
  std::size_t left_out = 0;
  for (PointGroup& group : groups) {
    const std::size_t room = kMaxShownPoints - kept;
    // Only whole groups, except for a first one that is too large.
    const bool is_cut = left_out > 0 || (group.points.size() > room && kept > 0);
    const std::size_t keeps = is_cut ? 0 : std::min(room, group.points.size());
    left_out += group.points.size() - keeps;
    kept += keeps;
    group.points.resize(keeps);
    group.labels.resize(keeps);
  }
  std::erase_if(groups, [](const PointGroup& group) { return group.points.empty(); });
  if (left_out == 0) return "";
  return fmt::format("and {} more points: -v, or result.json\n", left_out);
}

}  // namespace kvsim
