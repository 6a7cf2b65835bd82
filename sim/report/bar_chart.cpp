#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kBarHeight = 58;       // pixels from bar to bar
constexpr double kHalfBar = 0.36;       // of that
constexpr double kTickCharWidth = 8.9;  // pixels; names are mostly small letters
constexpr std::size_t kLongestHeading = 46;
constexpr std::size_t kLongestPart = 22;
constexpr std::size_t kLongestBarLabel = 30;

/// Part names, those without a place of their own in the order of their first use.
std::vector<std::string> part_names(const BarChart& chart) {
  std::vector<std::string> names = chart.part_order;
  for (const ChartBar& bar : chart.bars) {
    for (const auto& [name, value] : bar.parts) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

/// A tick's text is a format to gnuplot: "%" is written twice.
std::string tick_text(const std::string& text) {
  std::string out;
  for (const char c : shortened(text, kLongestBarLabel)) {
    out += c;
    if (c == '%') out += c;
  }
  return gnuplot_quote(out);
}

double longest_bar(const BarChart& chart) {
  double longest = 0;
  for (const ChartBar& bar : chart.bars) {
    double sum = 0;
    for (const auto& [name, value] : bar.parts) sum += value;
    longest = std::max({longest, sum, bar.limit.value_or(0)});
  }
  return longest / chart.unit;
}

}  // namespace

Figure draw(const BarChart& chart) {
  const std::vector<std::string> names = part_names(chart);
  std::size_t widest_label = 4;
  for (const ChartBar& bar : chart.bars) {
    if (bar.heading) continue;
    widest_label = std::max({widest_label, display_width(bar.label), display_width(bar.detail)});
  }
  widest_label = std::min(widest_label, kLongestBarLabel);
  const double left = 20 + kTickCharWidth * static_cast<double>(widest_label);
  const double x_high = std::max(longest_bar(chart) * 1.08, 1e-9);

  // kind 0: a part from `from` to `to`; kind 1: the limit.
  std::string csv = fmt::format("bar,kind,part,from_{0},to_{0},label,part_name\n", chart.column);
  std::string labels;
  std::string tics;
  const std::size_t n = chart.bars.size();
  bool limits = false;
  for (std::size_t i = 0; i < n; ++i) {
    const ChartBar& bar = chart.bars[i];
    const std::string name = clean_text(bar.label);
    if (bar.heading) {
      labels += fmt::format("set label {} at graph 0, first {} left offset 1,0 noenhanced front\n",
                            gnuplot_quote(shortened(name, kLongestHeading)),
                            number(static_cast<double>(i) + 0.2));
      continue;
    }
    tics += fmt::format("{}{}", tics.empty() ? "" : ", ", tick_text(name));
    if (!bar.detail.empty()) tics += ".\"\\n\"." + tick_text(clean_text(bar.detail));
    tics += fmt::format(" {}", i);
    double from = 0;
    for (const auto& [part, value] : bar.parts) {
      const auto k =
          static_cast<std::size_t>(std::find(names.begin(), names.end(), part) - names.begin());
      csv += fmt::format("{},0,{},{},{},{},{}\n", i, k, csv_number(from), csv_number(from + value),
                         csv_field(name), csv_field(clean_text(part)));
      const double amount = value / chart.unit;
      const std::string text = fmt::format("{:.{}f}", amount, amount < 9.95 ? 1 : 0);
      if (part != kAskedFor && amount / x_high * plot_width(left) > text_pixels(text) + 6) {
        labels += fmt::format("set label '{}' at first {}, first {} center tc rgb '{}' front\n",
                              text, number((from + value / 2) / chart.unit), i,
                              kFills[k % kFills.size()].dark ? "#ffffff" : "#000000");
      }
      from += value;
    }
    if (bar.limit) {
      limits = true;
      csv += fmt::format("{},1,,{},{},{},\n", i, csv_number(*bar.limit), csv_number(*bar.limit),
                         csv_field(name));
    }
  }

  const std::string settings = fmt::format(
      "set xlabel {} noenhanced\nset xrange [0:{}]\nset yrange [{}:-0.5]\nset ytics ({}) scale 0\n"
      "set grid noytics xtics\nset style fill solid 1.0 border rgb '#222222'\n{}",
      gnuplot_quote(chart.x_label), number(x_high), number(static_cast<double>(n) - 0.5), tics,
      labels);
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const std::string unit = number(chart.unit);
  std::string plot = "plot ";
  std::vector<std::string> entries;
  const auto has = [](const ChartBar& bar, const std::string& name) {
    return std::any_of(bar.parts.begin(), bar.parts.end(),
                       [&](const auto& part) { return part.first == name; });
  };
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (std::none_of(chart.bars.begin(), chart.bars.end(),
                     [&](const ChartBar& bar) { return has(bar, names[k]); })) {
      continue;
    }
    const std::string label = shortened(clean_text(names[k]), kLongestPart);
    entries.push_back(label);
    plot += fmt::format(
        "{} skip 1 using ($2==0&&$3=={}?($4+$5)/2/{}:NaN):1:($4/{}):($5/{}):($1-{}):($1+{}) with "
        "boxxyerror lc rgb '{}' title {} noenhanced, \\\n     ",
        file, k, unit, unit, unit, number(kHalfBar), number(kHalfBar),
        names[k] == kAskedFor ? "#ffffff" : kFills[k % kFills.size()].colour, gnuplot_quote(label));
  }
  if (limits) {
    entries.push_back(chart.limit_label);
    plot += fmt::format(
        "{} skip 1 using ($2==1?$4/{}:NaN):($1-0.48):(0):(0.96) with vectors nohead lw 3 dt (6,3) "
        "lc "
        "rgb '#000000' title {} noenhanced",
        file, unit, gnuplot_quote(chart.limit_label));
  } else {
    plot.resize(plot.rfind(", \\\n"));
  }
  const Layout layout{left, kBarHeight * static_cast<double>(n), entries};
  return {chart.name, clean_text(chart.title), csv,
          script(chart.name, chart.title, layout, settings, plot)};
}

}  // namespace kvsim
