// Coloured cells with their numbers, as a gnuplot script.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/figure_document.hpp"
#include "sim/report/figure_page.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kCellHeight = 40;  // pixels
constexpr double kLeastHeight = 240;
constexpr double kMostHeight = 480;
constexpr std::size_t kMostNumbered = 12;  // cells in a row whose numbers have room
constexpr std::size_t kMostTicks = 24;

/// Cividis (Nuñez, Anderton and Renslow 2018), which colour-blind eyes and grey print read alike.
constexpr const char* kPalette =
    "set palette defined (0 '#00224e', 0.25 '#434e6c', 0.5 '#7d7c78', 0.75 '#bcae6c', 1 "
    "'#fee838')\n";

std::string ticks(const std::vector<std::string>& values, std::string_view axis) {
  const std::size_t every = (values.size() + kMostTicks - 1) / kMostTicks;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < values.size(); i += std::max<std::size_t>(every, 1)) {
    constexpr std::size_t kLongest = 20;
    out.push_back(fmt::format("{} {}", gnuplot_quote(shortened(values[i], kLongest)), i));
  }
  return fmt::format("set {}tics ({}) noenhanced\n", axis, fmt::join(out, ", "));
}

}  // namespace

Figure draw(const HeatMap& map) {
  KVSIM_CHECK(map.values.size() == map.y_values.size() && !map.values.empty(),
              "{} rows of {} values", map.values.size(), map.y_values.size());
  std::string csv =
      fmt::format("x_index,y_index,{},{},{}\n", csv_field(clean_text(map.x_column)),
                  csv_field(clean_text(map.y_column)), csv_field(clean_text(map.z_column)));
  double low = INFINITY;
  double high = -INFINITY;
  for (std::size_t y = 0; y < map.values.size(); ++y) {
    KVSIM_CHECK(map.values[y].size() == map.x_values.size(), "{} cells of {} columns",
                map.values[y].size(), map.x_values.size());
    for (std::size_t x = 0; x < map.x_values.size(); ++x) {
      const auto& value = map.values[y][x];
      if (value) {
        low = std::min(low, *value / map.z_unit);
        high = std::max(high, *value / map.z_unit);
      }
      csv +=
          fmt::format("{},{},{},{},{}\n", x, y, csv_field(clean_text(map.x_values[x])),
                      csv_field(clean_text(map.y_values[y])), value ? csv_number(*value) : "NaN");
    }
  }
  KVSIM_CHECK(low <= high, "figure {} has no value", map.name);
  if (low == high) high = low + std::max(std::abs(low), 1.0);  // one colour needs a range too
  std::size_t longest = 0;
  for (const std::string& value : map.y_values) longest = std::max(longest, display_width(value));
  constexpr std::size_t kLongestLabel = 20;
  const double left = 60 + kCharWidth * static_cast<double>(std::min(
                                            longest, kLongestLabel));  // and the axis' name
  constexpr double kColourBox = 100;                                   // right of the plot
  std::string settings = fmt::format(
      "set xlabel {} noenhanced\nset ylabel {} noenhanced\nset cblabel {} noenhanced\n"
      "set xrange [-0.5:{}]\nset yrange [-0.5:{}]\nset cbrange [{}:{}]\nunset grid\n"
      "set rmargin at screen {}\n{}{}{}",
      gnuplot_quote(map.x_label), gnuplot_quote(map.y_label), gnuplot_quote(map.z_label),
      number(static_cast<double>(map.x_values.size()) - 0.5),
      number(static_cast<double>(map.y_values.size()) - 0.5), number(low), number(high),
      number(1 - (kRightMargin + kColourBox) / kWidth), kPalette, ticks(map.x_values, "x"),
      ticks(map.y_values, "y"));
  const std::string file = gnuplot_quote(map.name + ".csv");
  std::string plot = fmt::format("plot {} skip 1 using 1:2:($5/{}) with image pixels notitle", file,
                                 number(map.z_unit));
  if (map.x_values.size() <= kMostNumbered) {
    // White on the darker half of the palette.
    const double middle = low + (high - low) * 0.55;
    const auto texts = [&](const char* side, const char* colour, const char* blank) {
      return fmt::format(
          ", \\\n     {0} skip 1 using 1:2:(strcol(5) eq 'NaN' ? '{5}' : $5/{1}{2}{3} ? "
          "sprintf('%.3g', $5/{1}) : '') with labels tc rgb '{4}' notitle",
          file, number(map.z_unit), side, number(middle), colour, blank);
    };
    plot += texts("<", "#ffffff", "") + texts(">=", "#000000", "–");
  }
  const double height =
      std::clamp(kCellHeight * static_cast<double>(map.y_values.size()), kLeastHeight, kMostHeight);
  Figure figure{map.name, clean_text(map.title), csv,
                script(map.name, map.title, {left, height, {}}, settings, plot)};
  figure.page = page_chart(map);
  figure.chart = chart_json(map);
  return figure;
}

}  // namespace kvsim
