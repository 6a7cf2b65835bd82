#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
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

constexpr double kBarHeight = 58;       // pixels from bar to bar
constexpr double kTickCharWidth = 8.9;  // pixels; names are mostly small letters
constexpr double kTextGap = 8;          // between a bar's end and the text beside it
constexpr std::size_t kLongestHeading = 60;
constexpr std::size_t kLongestBarLabel = 30;

/// Kinds of a CSV line.
enum class Kind : int { kPart = 0, kLimit = 1, kBeside = 2 };

/// Where a bar lies about its row's middle, in rows; bars give way where some have others beside.
struct Band {
  double low = 0, high = 0;
  [[nodiscard]] constexpr double middle() const { return (low + high) / 2; }
};
constexpr Band kBesideBand{0.06, 0.40};

bool any_beside(const BarChart& chart) {
  return std::any_of(chart.bars.begin(), chart.bars.end(),
                     [](const ChartBar& bar) { return bar.beside.has_value(); });
}
Band band_of(const BarChart& chart) {
  return any_beside(chart) ? Band{-0.40, 0.06} : Band{-0.36, 0.36};
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

/// A tick's text is a format to gnuplot: "%" is written twice.
std::string tick_text(const std::string& text) {
  std::string out;
  for (const char c : shortened(text, kLongestBarLabel)) {
    out += c;
    if (c == '%') out += c;
  }
  return gnuplot_quote(out);
}

double sum_of(const ChartBar& bar) {
  double sum = 0;
  for (const auto& [style, value] : bar.parts) sum += value;
  return sum;
}

/// Where a bar ends on the paper.
double end_of(const ChartBar& bar) { return std::min(sum_of(bar), bar.cut.value_or(INFINITY)); }

bool is_cut(const ChartBar& bar) { return bar.cut && sum_of(bar) > *bar.cut; }

/// A limit many times the longest bar would leave the bars no room: the axis's name then has it.
bool limit_fits(const BarChart& chart) {
  constexpr double kFar = 4;
  double longest = 0, limit = 0;
  for (const ChartBar& bar : chart.bars) {
    longest = std::max(longest, sum_of(bar));
    limit = std::max(limit, bar.limit.value_or(0));
  }
  return limit <= kFar * longest;
}

/// "; usable HBM 8,192": in words, where bars have one limit.
std::string far_limit(const BarChart& chart) {
  std::set<double> limits;
  for (const ChartBar& bar : chart.bars) {
    if (bar.limit) limits.insert(*bar.limit);
  }
  if (limits.size() != 1) return "";
  return fmt::format("; {}: {}", chart.limit_label,
                     with_commas(std::llround(*limits.begin() / chart.unit)));
}

double widest_line(const std::string& text) {
  const std::size_t at = text.find('\n');
  return at == std::string::npos
             ? text_pixels(text)
             : std::max(text_pixels(text.substr(0, at)), text_pixels(text.substr(at + 1)));
}

/// The axis's end: every bar and limit is on it, and the texts beside the bars' ends.
double axis_end(const BarChart& chart, double plot_pixels, bool with_limits) {
  constexpr double kMostTexts = 0.6;  // of the plot's width
  double high = 1e-9;
  for (const ChartBar& bar : chart.bars) {
    high = std::max({high, 1.04 * end_of(bar) / chart.unit,
                     with_limits ? 1.04 * bar.limit.value_or(0) / chart.unit : 0.0});
    const auto with_text = [&](double end, const std::string& text) {
      if (text.empty()) return;
      // The text stands clear of the limit's line too.
      if (with_limits && bar.limit) end = std::max(end, *bar.limit);
      const double share = std::min(kMostTexts, (widest_line(text) + kTextGap) / plot_pixels);
      high = std::max(high, end / chart.unit / (1 - share));
    };
    with_text(end_of(bar), bar.end_text);
    if (bar.beside) {
      high = std::max(high, 1.04 * *bar.beside / chart.unit);
      with_text(*bar.beside, bar.beside_text);
    }
  }
  return high;
}

/// Text beside the end of a bar, a label a line; `pixel` is one in units of the axis.
std::string end_label(const std::string& text, double end, double row, double pixel) {
  const std::size_t at = text.find('\n');
  const std::string first = text.substr(0, at);
  const std::string second = at == std::string::npos ? "" : text.substr(at + 1);
  const double half = second.empty() ? 0 : 0.48 * kLineHeight / kBarHeight;
  std::string out;
  const auto put = [&](const std::string& line, double y) {
    out += fmt::format("set label {} at first {}, first {} left noenhanced boxed front\n",
                       gnuplot_quote(line), number(end + kTextGap * pixel), number(y));
  };
  put(first, row - half);
  if (!second.empty()) put(second, row + half);
  return out;
}

/// Two slanted strokes over a bar's end, white between them: more was there.
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

/// What stands on the paper beside the bars themselves, and the CSV.
struct Drawn {
  std::string csv, labels, tics;
};

Drawn lay_out(const BarChart& chart, double x_high, double plot_pixels) {
  Drawn drawn;
  drawn.csv = fmt::format("bar,kind,part,{},{},{},label,part_name\n",
                          csv_field(clean_text("from_" + chart.column)),
                          csv_field(clean_text("to_" + chart.column)),
                          csv_field(clean_text("drawn_to_" + chart.column)));
  const Band band = band_of(chart);
  const double pixel = x_high / plot_pixels;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    const auto row = static_cast<double>(i);
    const std::string name = clean_text(bar.label);
    if (bar.heading) {
      drawn.labels +=
          fmt::format("set label {} at graph 0, first {} left offset 1,0 noenhanced front\n",
                      gnuplot_quote(shortened(name, kLongestHeading)), number(row + 0.2));
      continue;
    }
    drawn.tics += fmt::format("{}{}", drawn.tics.empty() ? "" : ", ", tick_text(name));
    if (!bar.detail.empty()) drawn.tics += ".\"\\n\"." + tick_text(clean_text(bar.detail));
    drawn.tics += fmt::format(" {}", i);
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
      const bool fits = (to - from) / chart.unit / pixel > text_pixels(text) + 6;
      if (bar.inside_numbers && fits && style.fill.colour != "#FFFFFF") {
        drawn.labels += fmt::format(
            "set label '{}' at first {}, first {} center tc rgb '{}'{} front\n", text,
            number((from + to) / 2 / chart.unit), number(row + band.middle()),
            style.fill.dark ? "#ffffff" : "#000000", style.fill.pattern > 0 ? " boxed" : "");
      }
      from += value;
    }
    if (is_cut(bar)) drawn.labels += break_mark(*bar.cut / chart.unit, row, band, pixel);
    if (!bar.end_text.empty()) {
      // The line of the limit would pass through a text that begins just before it.
      double end = end_of(bar);
      const double text_end = end + (widest_line(bar.end_text) + 2 * kTextGap) * pixel * chart.unit;
      if (bar.limit && end <= *bar.limit && text_end > *bar.limit) end = *bar.limit;
      drawn.labels += end_label(bar.end_text, end / chart.unit, row + band.middle(), pixel);
    }
    if (bar.limit) put(Kind::kLimit, "", *bar.limit, *bar.limit, "");
    if (bar.beside) {
      put(Kind::kBeside, "", 0, *bar.beside, chart.beside_label);
      drawn.labels +=
          end_label(bar.beside_text, *bar.beside / chart.unit, row + kBesideBand.middle(), pixel);
    }
  }
  return drawn;
}

}  // namespace

Figure draw(const BarChart& chart) {
  std::size_t widest_label = 4;
  for (const ChartBar& bar : chart.bars) {
    if (bar.heading) continue;
    widest_label = std::max({widest_label, display_width(bar.label), display_width(bar.detail)});
  }
  widest_label = std::min(widest_label, kLongestBarLabel);
  const double left = 28 + kTickCharWidth * static_cast<double>(widest_label);
  const bool with_limits = limit_fits(chart);
  const double x_high = axis_end(chart, plot_width(left), with_limits);
  const Drawn drawn = lay_out(chart, x_high, plot_width(left));

  const std::string settings = fmt::format(
      "set style textbox opaque noborder margins 0.2,0.2\n"
      "set xlabel {} noenhanced\nset xrange [0:{}]\nset yrange [{}:-0.5]\nset ytics ({}) scale 0\n"
      "set grid noytics xtics\nset style fill solid 1.0 border rgb '#222222'\n{}",
      gnuplot_quote(chart.x_label + (with_limits ? "" : far_limit(chart))), number(x_high),
      number(static_cast<double>(chart.bars.size()) - 0.5), drawn.tics, drawn.labels);
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const std::string unit = number(chart.unit);
  std::vector<std::string> clauses;
  std::vector<std::string> entries;
  const auto boxes = [&](const std::string& rows, Band band, const std::string& fill,
                         std::string_view colour, std::string_view title) {
    entries.emplace_back(title);
    clauses.push_back(fmt::format(
        "{0} skip 1 using ({1}?$4/{2}:NaN):1:($4/{2}):($6/{2}):($1+{3}):($1+{4}) with boxxyerror "
        "fs {5} border rgb '#222222' lc rgb '{6}' title {7} noenhanced",
        file, rows, unit, number(band.low), number(band.high), fill, colour, gnuplot_quote(title)));
  };
  for (std::size_t k = 0; k < chart.styles.size(); ++k) {
    if (!is_used(chart, chart.styles[k])) continue;
    const Fill fill = chart.styles[k].fill;
    boxes(fmt::format("$2==0&&$3=={}", k), band_of(chart),
          fill.pattern > 0 ? fmt::format("pattern {}", fill.pattern) : "solid 1.0", fill.colour,
          chart.styles[k].words);
  }
  if (any_beside(chart)) boxes("$2==2", kBesideBand, "pattern 5", "#777777", chart.beside_label);
  const bool any_limit = std::any_of(chart.bars.begin(), chart.bars.end(),
                                     [](const ChartBar& bar) { return bar.limit.has_value(); });
  if (any_limit && with_limits) {
    entries.push_back(chart.limit_label);
    clauses.push_back(fmt::format(
        "{} skip 1 using ($2==1?$4/{}:NaN):($1-0.48):(0):(0.96) with vectors nohead lw 3 dt (6,3) "
        "lc rgb '#000000' title {} noenhanced",
        file, unit, gnuplot_quote(chart.limit_label)));
  }
  const Layout layout{left, kBarHeight * static_cast<double>(chart.bars.size()), entries};
  Figure figure{chart.name, clean_text(chart.title), drawn.csv,
                script(chart.name, chart.title, layout, settings,
                       fmt::format("plot {}", fmt::join(clauses, ", \\\n     ")))};
  figure.page = page_chart(chart);
  figure.chart = chart_json(chart);
  return figure;
}

}  // namespace kvsim
