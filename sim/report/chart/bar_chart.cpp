#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/chart_parts.hpp"
#include "sim/report/chart/drawn_chart.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are internal

constexpr double kTextGap = 8;  // pixels between a bar's end and the text next to it

/// Kinds of a CSV line.
enum class Kind : int { kPart = 0, kLimit = 1, kCompared = 2, kRange = 3 };

using Lines = std::vector<std::string>;

/// At most two lines of at most `pixels`.
Lines two_lines(const std::string& text, double pixels) {
  Lines lines = lines_within(text, pixels);
  if (lines.size() <= 2) return lines;
  std::string rest;
  for (std::size_t i = 1; i < lines.size(); ++i) rest += (i > 1 ? " " : "") + lines[i];
  return {lines.front(), fitted(rest, pixels)};
}

/// A bar's label, left of the plot, and the text next to the bar's end.
struct BarWords {
  Lines name{}, end{}, compared{};
};

/// The plot's position and the bars' texts on a canvas.
struct Frame {
  double left = 0, width = 0;  // pixels
  double row = 0;              // distance between bars
  std::vector<BarWords> words{};
};

Lines lines_of_end(const std::string& text, double pixels) {
  Lines out;
  std::size_t from = 0;
  while (from <= text.size() && !text.empty()) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    for (std::string& line : lines_within(text.substr(from, end - from), pixels)) {
      out.push_back(std::move(line));
    }
    from = end + 1;
  }
  return out;
}

double widest_of(const Lines& lines) {
  double max = 0;
  for (const std::string& line : lines) max = std::max(max, text_pixels(line));
  return max;
}

Frame frame_of(const BarChart& chart, const Canvas& canvas) {
  constexpr double kLongestName = 267, kMaxOfCanvas = 0.4;
  constexpr double kMaxOfPlot = 0.5;  // share of the plot that a text next to a bar may take
  constexpr double kBeforeNames = 12, kAfterNames = 16;
  constexpr double kMinRow = 58, kBetweenRows = 16;
  const double room = std::min(kLongestName, kMaxOfCanvas * canvas.width);
  Frame frame;
  frame.words.resize(chart.bars.size());
  double widest = 0;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    if (bar.heading) continue;
    Lines& name = frame.words[i].name;
    name = two_lines(bar.label, room);
    for (std::string& line : two_lines(bar.detail, room)) name.push_back(std::move(line));
    widest = std::max(widest, widest_of(name));
  }
  frame.left = kBeforeNames + widest + kAfterNames;
  frame.width = canvas.plot_width(frame.left);
  std::size_t max_lines = 1;
  bool has_compared = false;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    BarWords& words = frame.words[i];
    words.end = lines_of_end(bar.end_text, kMaxOfPlot * frame.width);
    if (bar.compared) words.compared = lines_of_end(bar.compared_text, kMaxOfPlot * frame.width);
    has_compared = has_compared || bar.compared.has_value();
    max_lines = std::max({max_lines, words.name.size(), words.end.size() + words.compared.size()});
  }
  frame.row = std::max(kMinRow, kLineHeight * static_cast<double>(max_lines) + kBetweenRows);
  return frame;
}

/// A bar's offset from the middle of its row, in rows; several bars of a row are moved apart.
struct Band {
  double low = 0, high = 0;
  [[nodiscard]] constexpr double middle() const { return (low + high) / 2; }
};
constexpr Band kComparedBand{0.06, 0.40};

bool has_compared(const BarChart& chart) {
  return std::any_of(chart.bars.begin(), chart.bars.end(),
                     [](const ChartBar& bar) { return bar.compared.has_value(); });
}
Band band_of(const BarChart& chart) {
  return has_compared(chart) ? Band{-0.40, 0.06} : Band{-0.36, 0.36};
}

/// A style's number among `styles`.
std::size_t index_of(const std::vector<PartStyle>& styles, const PartStyle& style) {
  const auto found = std::find_if(styles.begin(), styles.end(), [&](const PartStyle& other) {
    return other.words == style.words;
  });
  KVSIM_CHECK(found != styles.end(), "a bar has a part \"{}\" that its chart has no style for",
              style.words);
  return static_cast<std::size_t>(found - styles.begin());
}

bool is_used(const BarChart& chart, const PartStyle& style) {
  return std::any_of(chart.bars.begin(), chart.bars.end(), [&](const ChartBar& bar) {
    return std::any_of(bar.parts.begin(), bar.parts.end(),
                       [&](const auto& part) { return part.first.words == style.words; });
  });
}

/// A bar's name, one label per line: gnuplot cuts tick texts at 50 characters.
std::string name_label(const Lines& lines, double row, const Frame& frame, const Canvas& canvas) {
  constexpr double kGap = 12;  // pixels between the name and the plot
  double y = row - kLineHeight * (static_cast<double>(lines.size()) - 1) / 2 / frame.row;
  std::string out;
  for (const std::string& line : lines) {
    out += fmt::format("set label {} at screen {}, first {} right noenhanced tc rgb '#333333'\n",
                       gnuplot_quote(line), number((frame.left - kGap) / canvas.width), number(y));
    y += kLineHeight / frame.row;
  }
  return out;
}

/// A heading, at most two lines as wide as the canvas.
std::string heading_label(const std::string& text, double row, const Frame& frame,
                          const Canvas& canvas) {
  const Lines lines = two_lines(text, canvas.width - 2 * kEdge);
  double y = row + 0.25 - kLineHeight * (static_cast<double>(lines.size()) - 1) / frame.row;
  std::string out;
  for (const std::string& line : lines) {
    out += fmt::format("set label {} at screen {}, first {} left noenhanced boxed front\n",
                       gnuplot_quote(line), number(kEdge / canvas.width), number(y));
    y += kLineHeight / frame.row;
  }
  return out;
}

double sum_of(const ChartBar& bar) {
  double sum = 0;
  for (const auto& [style, value] : bar.parts) sum += value;
  return sum;
}

/// The end of a bar, or of its range line, in the figure.
double end_of(const ChartBar& bar) {
  const double end = std::min(sum_of(bar), bar.cut.value_or(INFINITY));
  return bar.range ? std::max(end, bar.range->high) : end;
}

bool is_cut(const ChartBar& bar) { return bar.cut && sum_of(bar) > *bar.cut; }

/// If a limit is many times the longest bar, the bars would be too short: the axis's name states
/// it.
bool limit_fits(const BarChart& chart) {
  constexpr double kFar = 4;
  double longest = 0, limit = 0;
  for (const ChartBar& bar : chart.bars) {
    longest = std::max(longest, sum_of(bar));
    limit = std::max(limit, bar.limit.value_or(0));
  }
  return limit <= kFar * longest;
}

/// "; usable HBM 8,192": the limit as text if all bars share one.
std::string far_limit(const BarChart& chart) {
  std::set<double> limits;
  for (const ChartBar& bar : chart.bars) {
    if (bar.limit) limits.insert(*bar.limit);
  }
  if (limits.size() != 1) return "";
  return fmt::format("; {}: {}", chart.limit_label,
                     with_commas(std::llround(*limits.begin() / chart.unit)));
}

/// The end of the axis: all bars, ranges, limits and the texts next to the bars' ends fit.
double axis_end(const BarChart& chart, const Frame& frame, bool with_limits) {
  constexpr double kClear = 1.04;
  double high = 1e-9;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    const auto see = [&](double end, const Lines& text) {
      high = std::max(high, kClear * end / chart.unit);
      if (text.empty()) return;
      // The text must not touch the limit's line either.
      if (with_limits && bar.limit) end = std::max(end, *bar.limit);
      const double share = (widest_of(text) + 2 * kTextGap) / frame.width;
      high = std::max(high, end / chart.unit / (1 - share));
    };
    see(end_of(bar), frame.words[i].end);
    if (with_limits && bar.limit) see(*bar.limit, {});
    if (bar.compared) see(*bar.compared, frame.words[i].compared);
  }
  return high;
}

/// Text next to the end of a bar, one label per line; `pixel` is one pixel in units of the axis.
std::string end_label(const Lines& lines, double end, double row, double pixel, double bar_height) {
  const double line_height = 0.96 * kLineHeight / bar_height;
  double y = row - line_height * (static_cast<double>(lines.size()) - 1) / 2;
  std::string out;
  for (const std::string& line : lines) {
    out += fmt::format("set label {} at first {}, first {} left noenhanced boxed front\n",
                       gnuplot_quote(line), number(end + kTextGap * pixel), number(y));
    y += line_height;
  }
  return out;
}

/// Two slanted strokes over a bar's end with white between them: the bar was cut.
std::string break_mark(double end, double row, Band band, double pixel) {
  const double x = end - 13 * pixel;
  const double slant = 5 * pixel, gap = 6 * pixel;
  const double low = row + band.low - 0.06, high = row + band.high + 0.06;
  std::string out = fmt::format(
      "set object polygon from first {0}, first {4} to first {1}, first {4} to first {2}, first "
      "{5} "
      "to first {3}, first {5} to first {0}, first {4} fc rgb '#ffffff' fs solid noborder front\n",
      number(x + slant), number(x + slant + gap), number(x - slant + gap), number(x - slant),
      number(low), number(high));
  for (const double shift : {0.0, gap}) {
    out += fmt::format(
        "set arrow from first {}, first {} to first {}, first {} nohead lw 1.4 lc rgb '#222222' "
        "front\n",
        number(x + slant + shift), number(low), number(x - slant + shift), number(high));
  }
  return out;
}

/// The figure's labels, plus the CSV.
struct Drawn {
  std::string csv, labels;
};

Drawn lay_out(const BarChart& chart, const Frame& frame, double x_high, const Canvas& canvas) {
  Drawn drawn;
  drawn.csv = fmt::format("bar,kind,part,{},{},{},label,part_name\n",
                          csv_field(clean_text("from_" + chart.column)),
                          csv_field(clean_text("to_" + chart.column)),
                          csv_field(clean_text("drawn_to_" + chart.column)));
  const Band band = band_of(chart);
  const double pixel = x_high / frame.width;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    const auto row = static_cast<double>(i);
    const std::string name = clean_text(bar.label);
    if (bar.heading) {
      drawn.labels += heading_label(name, row, frame, canvas);
      continue;
    }
    drawn.labels += name_label(frame.words[i].name, row, frame, canvas);
    const auto put = [&](Kind kind, const std::string& part, double from, double to,
                         std::string_view words) {
      drawn.csv += fmt::format("{},{},{},{},{},{},{},{}\n", i, static_cast<int>(kind), part,
                               csv_number(from), csv_number(to),
                               csv_number(std::min(to, bar.cut.value_or(INFINITY))),
                               csv_field(name), csv_field(std::string{words}));
    };
    double from = 0;
    for (const auto& [style, value] : bar.parts) {
      put(Kind::kPart, fmt::format("{}", index_of(chart.styles, style)), from, from + value,
          style.words);
      const double to = std::min(from + value, bar.cut.value_or(INFINITY));
      const double amount = value / chart.unit;
      const std::string text = fmt::format("{:.{}f}", amount, amount < 9.95 ? 1 : 0);
      const bool fits = !bar.range && (to - from) / chart.unit / pixel > text_pixels(text) + 6;
      if (bar.inside_numbers && fits && style.fill.colour != "#FFFFFF") {
        drawn.labels += fmt::format(
            "set label '{}' at first {}, first {} center tc rgb '{}'{} front\n", text,
            number((from + to) / 2 / chart.unit), number(row + band.middle()),
            style.fill.dark ? "#ffffff" : "#000000", style.fill.pattern > 0 ? " boxed" : "");
      }
      from += value;
    }
    if (is_cut(bar)) drawn.labels += break_mark(*bar.cut / chart.unit, row, band, pixel);
    const BarWords& words_at = frame.words[i];
    if (!words_at.end.empty()) {
      // The limit's line would cross a text that begins just left of it.
      double end = end_of(bar);
      const double text_end = end + (widest_of(words_at.end) + 2 * kTextGap) * pixel * chart.unit;
      if (bar.limit && end <= *bar.limit && text_end > *bar.limit) end = *bar.limit;
      drawn.labels +=
          end_label(words_at.end, end / chart.unit, row + band.middle(), pixel, frame.row);
    }
    if (bar.range) put(Kind::kRange, "", bar.range->low, bar.range->high, chart.range_label);
    if (bar.limit) put(Kind::kLimit, "", *bar.limit, *bar.limit, "");
    if (bar.compared) {
      put(Kind::kCompared, "", 0, *bar.compared, chart.compared_label);
      drawn.labels += end_label(words_at.compared, *bar.compared / chart.unit,
                                row + kComparedBand.middle(), pixel, frame.row);
    }
  }
  return drawn;
}

std::string script_of(const BarChart& chart, const FigureStyle& style) {
  const Canvas canvas = canvas_of(style);
  const Frame frame = frame_of(chart, canvas);
  const bool with_limits = limit_fits(chart);
  const double x_high = axis_end(chart, frame, with_limits);
  const Drawn drawn = lay_out(chart, frame, x_high, canvas);
  Layout layout{.left = frame.left,
                .height = frame.row * static_cast<double>(chart.bars.size()),
                .x_label = chart.x_label + (with_limits ? "" : far_limit(chart))};
  std::vector<Tick> ticks = linear_ticks(0, x_high, frame.width, Direction::kAcross);
  const bool counts = std::all_of(chart.bars.begin(), chart.bars.end(), [&](const ChartBar& bar) {
    const double end = sum_of(bar) / chart.unit;
    return end == std::round(end);
  });
  if (counts) ticks = whole_ticks(std::move(ticks));
  const std::string settings = fmt::format(
      "set style textbox opaque noborder margins 0.2,0.2\n"
      "set xrange [0:{}]\nset xtics {}\nset yrange [{}:-0.5]\nunset ytics\n"
      "set grid noytics xtics\nset style fill solid 1.0 border rgb '#222222'\n{}",
      number(x_high), tick_list(ticks), number(static_cast<double>(chart.bars.size()) - 0.5),
      drawn.labels);
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const std::string unit = number(chart.unit);
  PlotClauses clauses{layout, canvas};
  const auto boxes = [&](const std::string& rows, Band band, const std::string& fill,
                         std::string_view colour, std::string_view title) {
    clauses.add(
        fmt::format("{0} skip 1 using ({1}?$4/{2}:NaN):1:($4/{2}):($6/{2}):($1+{3}):($1+{4}) with "
                    "boxxyerror fs {5} border rgb '#222222' lc rgb '{6}'",
                    file, rows, unit, number(band.low), number(band.high), fill, colour),
        title);
  };
  for (std::size_t k = 0; k < chart.styles.size(); ++k) {
    if (!is_used(chart, chart.styles[k])) continue;
    const Fill fill = chart.styles[k].fill;
    boxes(fmt::format("$2==0&&$3=={}", k), band_of(chart),
          fill.pattern > 0 ? fmt::format("pattern {}", fill.pattern) : "solid 1.0", fill.colour,
          chart.styles[k].words);
  }
  if (has_compared(chart))
    boxes("$2==2", kComparedBand, "pattern 5", "#777777", chart.compared_label);
  const auto any = [&](auto member) {
    return std::any_of(chart.bars.begin(), chart.bars.end(),
                       [&](const ChartBar& bar) { return (bar.*member).has_value(); });
  };
  if (any(&ChartBar::limit) && with_limits) {
    clauses.add(
        fmt::format("{} skip 1 using ($2==1?$4/{}:NaN):($1-0.48):(0):(0.96) with vectors nohead lw "
                    "3 dt (6,3) lc rgb '#000000'",
                    file, unit),
        chart.limit_label);
  }
  if (any(&ChartBar::range)) {
    const auto ranges = [&](double width, const char* colour) {
      return fmt::format(
          "{} skip 1 using ($2=={}?$4/{}:NaN):($1+{}):(($5-$4)/{}):(0) with vectors heads size "
          "screen 0.008,90 lw {} lc rgb '{}'",
          file, static_cast<int>(Kind::kRange), unit, number(band_of(chart).middle()), unit,
          number(width), colour);
    };
    // White under black, so that it is visible on dark bars too.
    clauses.add(ranges(5, "#ffffff") + " notitle");
    clauses.add(ranges(2, "#000000"), chart.range_label);
  }
  return script(chart.name, chart.title, layout, settings, clauses.str(), style);
}

}  // namespace

Figure draw(const BarChart& chart) {
  // The CSV does not depend on the style.
  const Canvas canvas;
  const Frame frame = frame_of(chart, canvas);
  const double x_high = axis_end(chart, frame, limit_fits(chart));
  return figure_of(chart, lay_out(chart, frame, x_high, canvas).csv, script_of);
}

}  // namespace kvsim
