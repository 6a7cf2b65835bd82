// Coloured cells with their numbers, as a gnuplot script.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/chart_parts.hpp"
#include "sim/report/chart/drawn_chart.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are internal

constexpr double kCellHeight = 40;  // pixels
constexpr double kMinHeight = 240;
constexpr double kMaxHeight = 480;
constexpr double kLongestValueName = 160;  // pixels of a value's name

/// Cividis (Nuñez, Anderton and Renslow 2018), which looks the same to colour-blind readers and in
/// grey print.
constexpr const char* kPalette =
    "set palette defined (0 '#00224e', 0.25 '#434e6c', 0.5 '#7d7c78', 0.75 '#bcae6c', 1 "
    "'#fee838')\n";

std::vector<std::string> names_of(const std::vector<std::string>& values, double pixels) {
  std::vector<std::string> out;
  for (const std::string& value : values) out.push_back(fitted(value, pixels));
  return out;
}
double widest_name(const std::vector<std::string>& names) {
  double max = 0;
  for (const std::string& name : names) max = std::max(max, text_pixels(name));
  return max;
}

/// Names at every n-th value, with n chosen so that each name has `needed` of all `pixels`.
std::string ticks(const std::vector<std::string>& names, double pixels, double needed) {
  const double each = pixels / static_cast<double>(names.size());
  const auto every = static_cast<std::size_t>(std::max(1.0, std::ceil(needed / each)));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < names.size(); i += every) {
    out.push_back(fmt::format("{} {}", gnuplot_quote(names[i]), i));
  }
  return fmt::format("({}) noenhanced", fmt::join(out, ", "));
}

std::string data_csv(const HeatMap& map) {
  std::string csv =
      fmt::format("x_index,y_index,{},{},{}\n", csv_field(clean_text(map.x_column)),
                  csv_field(clean_text(map.y_column)), csv_field(clean_text(map.z_column)));
  for (std::size_t y = 0; y < map.values.size(); ++y) {
    for (std::size_t x = 0; x < map.x_values.size(); ++x) {
      const auto& value = map.values[y][x];
      csv +=
          fmt::format("{},{},{},{},{}\n", x, y, csv_field(clean_text(map.x_values[x])),
                      csv_field(clean_text(map.y_values[y])), value ? csv_number(*value) : "NaN");
    }
  }
  return csv;
}

/// Rows "X,Y,TEXT": numbers of the cells on the darker half of the palette, or on the lighter half.
std::string cell_block(const HeatMap& map, bool dark, double middle) {
  std::string out = fmt::format("${} << EOD\n", dark ? "dark" : "light");
  for (std::size_t y = 0; y < map.values.size(); ++y) {
    for (std::size_t x = 0; x < map.x_values.size(); ++x) {
      const auto& value = map.values[y][x];
      const bool is_dark = value && *value / map.z_unit < middle;
      if (is_dark != dark) continue;
      out += fmt::format("{},{},\"{}\"\n", x, y, value ? axis_number(*value / map.z_unit) : "–");
    }
  }
  return out + "EOD\n";
}

std::string script_of(const HeatMap& map, const FigureStyle& style) {
  constexpr double kColourGap = 14, kColourBox = 18, kNameGap = 16;  // pixels
  constexpr double kTickGap = 10;
  const Canvas canvas = canvas_of(style);
  KVSIM_CHECK(map.values.size() == map.y_values.size() && !map.values.empty(),
              "{} rows of {} values", map.values.size(), map.y_values.size());
  double low = INFINITY;
  double high = -INFINITY;
  double widest_cell = 0;
  for (const auto& row : map.values) {
    KVSIM_CHECK(row.size() == map.x_values.size(), "{} cells of {} columns", row.size(),
                map.x_values.size());
    for (const auto& value : row) {
      if (!value) continue;
      const double z = *value / map.z_unit;
      low = std::min(low, z);
      high = std::max(high, z);
      widest_cell = std::max(widest_cell, text_pixels(axis_number(z)));
    }
  }
  KVSIM_CHECK(low <= high, "figure {} has no value", map.name);
  if (low == high) high = low + std::max(std::abs(low), 1.0);  // a single colour needs a range too

  Layout layout{.x_label = map.x_label, .y_label = map.y_label};
  layout.height =
      std::clamp(kCellHeight * static_cast<double>(map.y_values.size()), kMinHeight, kMaxHeight);
  const std::vector<Tick> z_ticks = linear_ticks(low, high, layout.height, Direction::kUp);
  const std::vector<std::string> z_name = lines_within(map.z_label, layout.height);
  const double z_room = kLineHeight * static_cast<double>(z_name.size());
  layout.right = kColourGap + kColourBox + kTicks + widest(z_ticks) + kNameGap + z_room + kEdge;
  const std::vector<std::string> y_names = names_of(map.y_values, kLongestValueName);
  layout.left = kTicks + widest_name(y_names);
  const double width = canvas.plot_width(left_of_plot(layout), layout.right);
  const std::vector<std::string> x_names = names_of(map.x_values, kLongestValueName);
  const double right = canvas.width - layout.right;
  std::string settings = fmt::format(
      "set xrange [-0.5:{}]\nset yrange [-0.5:{}]\nset cbrange [{}:{}]\nunset grid\n"
      "set cbtics {}\n"
      "set colorbox user origin screen {}, graph 0 size screen {}, graph 1\n"
      "{}set xtics {}\nset ytics {}\n",
      number(static_cast<double>(map.x_values.size()) - 0.5),
      number(static_cast<double>(map.y_values.size()) - 0.5), number(low), number(high),
      tick_list(z_ticks), number((right + kColourGap) / canvas.width),
      number(kColourBox / canvas.width), kPalette,
      ticks(x_names, width, widest_name(x_names) + kTickGap),
      ticks(y_names, layout.height, kLineHeight));
  // gnuplot's default position of the scale's name depends on the terminal: with cairo it
  // overlapped the ticks.
  for (std::size_t i = 0; i < z_name.size(); ++i) {
    const double x = canvas.width - kEdge - z_room + kLineHeight * (static_cast<double>(i) + 0.5);
    settings += fmt::format("set label {} at screen {}, graph 0.5 center rotate by 90 noenhanced\n",
                            gnuplot_quote(z_name[i]), number(x / canvas.width));
  }
  std::string plot = fmt::format("plot {} skip 1 using 1:2:($5/{}) with image pixels notitle",
                                 gnuplot_quote(map.name + ".csv"), number(map.z_unit));
  if (widest_cell + kTickGap < width / static_cast<double>(map.x_values.size())) {
    const double middle = low + (high - low) * 0.55;
    for (const bool dark : {true, false}) {
      const std::string cells = cell_block(map, dark, middle);
      if (cells.find(",\"") == std::string::npos) continue;
      settings += cells;
      plot += fmt::format(", \\\n     ${} using 1:2:3 with labels tc rgb '{}' notitle",
                          dark ? "dark" : "light", dark ? "#ffffff" : "#000000");
    }
  }
  return script(map.name, map.title, layout, settings, plot, style);
}

}  // namespace

Figure draw(const HeatMap& map) { return figure_of(map, data_csv(map), script_of); }

}  // namespace kvsim
