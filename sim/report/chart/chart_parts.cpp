#include "sim/report/chart/chart_parts.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim::chart {
namespace {

constexpr double kPixelsPerInch = 96;
constexpr double kPointsPerInch = 72;
constexpr double kPaperPoints = 8;
/// Inches on paper per inch of the layout (kPixelsPerInch).
constexpr double kPaperScale = kPaperPoints / (kFont * kPointsPerInch / kPixelsPerInch);

}  // namespace

Canvas canvas_of(const FigureStyle& style) {
  if (!style.paper) return {};
  return {.width = style.width_in * kPixelsPerInch / kPaperScale, .has_title = false};
}

Ticks ticks_over(double low, double high, int wanted) {
  const double span = high > low ? high - low : std::max(std::abs(high), 1.0);
  const double rough = span / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  return {std::floor(low / step) * step, step, std::ceil(high / step) * step};
}

namespace {

constexpr double kTickGap = 14;  // pixels between two tick names
constexpr double kUpRoom = 34;   // pixels from a tick to the next one above

/// `value` with the number of decimals that `step` needs.
std::string in_steps_of(double value, double step) {
  constexpr double kSmallest = 1e-4;  // smaller steps are written as powers of ten
  constexpr double kPowers = 1e9;     // so are values this large
  if (std::abs(value) < step * 1e-6) return "0";
  if (step < kSmallest || std::abs(value) >= kPowers) return axis_number(value);
  int decimals = 0;
  for (double s = step; decimals < 6 && std::abs(s - std::round(s)) > 1e-6 * s; s *= 10) ++decimals;
  if (decimals == 0) return with_commas(static_cast<std::int64_t>(std::llround(value)));
  return fmt::format("{:.{}f}", value, decimals);
}

/// Whether the names at `pixels[i]` do not touch each other.
bool have_room(const std::vector<Tick>& ticks, const std::vector<double>& pixels,
               Direction direction) {
  for (std::size_t i = 1; i < ticks.size(); ++i) {
    const double needed =
        direction == Direction::kUp
            ? kUpRoom
            : (text_pixels(ticks[i - 1].words) + text_pixels(ticks[i].words)) / 2 + kTickGap;
    if (pixels[i] - pixels[i - 1] < needed) return false;
  }
  return true;
}

/// Drops the last tick if its name, `at` pixels from the plot's left edge, would extend past the
/// canvas.
void keep_on_canvas(std::vector<Tick>& ticks, double at, double pixels, Direction direction) {
  if (direction == Direction::kUp || ticks.size() < 2) return;
  if (at + text_pixels(ticks.back().words) / 2 > pixels + kRightMargin - 2) ticks.pop_back();
}
double log_pixel(double value, double low, double high, double pixels) {
  return std::log(value / low) / std::log(high / low) * pixels;
}

bool have_room_log(const std::vector<Tick>& ticks, double low, double high, double pixels,
                   Direction direction) {
  std::vector<double> at;
  for (const Tick& tick : ticks) {
    at.push_back(log_pixel(tick.at, low, high, pixels));
  }
  return have_room(ticks, at, direction);
}

}  // namespace

std::vector<Tick> linear_ticks(double low, double high, double pixels, Direction direction) {
  constexpr int kMax = 8;
  std::vector<Tick> out;
  for (int wanted = kMax; wanted >= 1; --wanted) {
    const Ticks round = ticks_over(low, high, wanted);
    out.clear();
    std::vector<double> at;
    const double slack = 1e-9 * (high - low);
    for (double k = 0;; ++k) {
      const double value = round.first + k * round.step;
      if (value > high + slack || k > 4 * kMax) break;
      if (value < low - slack) continue;
      out.push_back({value, in_steps_of(value, round.step)});
      at.push_back((value - low) / (high - low) * pixels);
    }
    if (!have_room(out, at, direction)) continue;
    if (!out.empty()) keep_on_canvas(out, at.back(), pixels, direction);
    break;
  }
  return out;
}

namespace {

std::vector<Tick> ticks_of_log(double low, double high, double pixels, Direction direction) {
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<Tick> out;
  const auto fill = [&](const std::vector<double>& factors, int stride) {
    out.clear();
    for (int power = first; power <= last; ++power) {
      if (power % stride != 0) continue;
      for (const double factor : factors) {
        const double value = factor * std::pow(10.0, power);
        if (value < low * 0.999 || value > high * 1.001) continue;
        out.push_back({value, axis_number(value)});
      }
    }
    return have_room_log(out, low, high, pixels, direction);
  };
  if (fill({1, 2, 5}, 1) && out.size() >= 3) return out;
  if (fill({1, 3}, 1) && out.size() >= 3) return out;
  for (int stride = 1; stride <= 16; ++stride) {
    if (fill({1}, stride)) break;
  }
  if (out.size() >= 2) return out;
  if (fill({1, 2, 5}, 1) && out.size() >= 2) return out;
  // Less than a power of ten: round values, as on a linear axis.
  for (int wanted = 6; wanted >= 1; --wanted) {
    const Ticks round = ticks_over(low, high, wanted);
    out.clear();
    for (double value = round.first; value <= high * 1.001; value += round.step) {
      if (value >= low * 0.999 && value > 0) out.push_back({value, in_steps_of(value, round.step)});
    }
    if (have_room_log(out, low, high, pixels, direction)) break;
  }
  return out;
}

}  // namespace

std::vector<Tick> log_ticks(double low, double high, double pixels, Direction direction) {
  std::vector<Tick> out = ticks_of_log(low, high, pixels, direction);
  if (!out.empty()) {
    keep_on_canvas(out, log_pixel(out.back().at, low, high, pixels), pixels, direction);
  }
  return out;
}

std::vector<Tick> doubling_ticks(double low, double high, double pixels) {
  std::vector<Tick> out;
  for (int doublings = 1; doublings <= 16; ++doublings) {
    out.clear();
    for (double x = std::exp2(std::ceil(std::log2(low) - 1e-9)); x <= high * (1 + 1e-9);
         x *= std::exp2(doublings)) {
      out.push_back({x, axis_number(x)});
    }
    if (have_room_log(out, low, high, pixels, Direction::kAcross)) break;
  }
  if (!out.empty()) {
    keep_on_canvas(out, log_pixel(out.back().at, low, high, pixels), pixels, Direction::kAcross);
  }
  return out;
}

std::vector<Tick> whole_ticks(std::vector<Tick> ticks) {
  std::erase_if(ticks, [](const Tick& tick) { return tick.at != std::round(tick.at); });
  for (Tick& tick : ticks) tick.words = in_steps_of(tick.at, 1);
  return ticks;
}

std::string tick_list(const std::vector<Tick>& ticks) {
  std::string out = "(";
  for (const Tick& tick : ticks) {
    out += fmt::format("{}{} {}", out.size() == 1 ? "" : ", ", gnuplot_quote(tick.words),
                       number(tick.at));
  }
  return out + ")";
}

double widest(const std::vector<Tick>& ticks) {
  double max = 0;
  for (const Tick& tick : ticks) max = std::max(max, text_pixels(tick.words));
  return max;
}

std::string axis_number(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e9 || size < 0.99e-4) {
    std::string text = fmt::format("{:.3g}", value);
    // "2e-05" has a redundant digit.
    const std::size_t e = text.find('e');
    if (e != std::string::npos) {
      std::size_t digit = e + 2;
      while (digit + 1 < text.size() && text[digit] == '0') text.erase(digit, 1);
      if (text[e + 1] == '+') text.erase(e + 1, 1);
    }
    return text;
  }
  if (size >= 999.5) return with_commas(static_cast<std::int64_t>(std::llround(value)));
  return fmt::format("{:.3g}", value);
}

bool needs_log(double low, double high) {
  constexpr double kSpan = 20;  // below it, the smallest value is within 5 % of zero on a linear
                                // axis
  return low > 0 && high > kSpan * low;
}

bool is_log_spaced(const std::set<double>& values) {
  constexpr double kWide = 8, kLongestStep = 2.2;
  if (values.empty() || *values.begin() <= 0) return false;
  double before = *values.begin();
  for (const double value : values) {
    if (value > kLongestStep * before) return false;
    before = value;
  }
  return *values.rbegin() >= kWide * *values.begin();
}

double text_pixels(std::string_view text) {
  // Advance widths of DejaVu Sans 2.37 (table hmtx), U+0020 to U+007E, in 1/2048 of the font size.
  constexpr double kUnitsPerEm = 2048;
  constexpr std::array<int, 95> kAdvance{
      651,  821,  942,  1716, 1303, 1946, 1597, 563,  799,  799,  1024, 1716, 651,  739,
      651,  690,  1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 690,  690,
      1716, 1716, 1716, 1087, 2048, 1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604,
      604,  1343, 1141, 1767, 1532, 1612, 1235, 1612, 1423, 1300, 1251, 1499, 1401, 2025,
      1403, 1251, 1403, 799,  690,  799,  1716, 1024, 1024, 1255, 1300, 1126, 1300, 1260,
      721,  1300, 1298, 569,  569,  1186, 569,  1995, 1298, 1253, 1300, 1300, 842,  1067,
      803,  1298, 1212, 1675, 1212, 1212, 1075, 1303, 690,  1303, 1716};
  constexpr double kOtherColumn = 0.84;  // em: per column of other characters, such as "±"
  double units = 0;
  std::string others;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      units += kAdvance[byte - 0x20];
    } else {
      others += c;
    }
  }
  return kFont * (units / kUnitsPerEm + kOtherColumn * static_cast<double>(display_width(others)));
}

std::string fitted(std::string_view text, double pixels) {
  std::string out = clean_text(text);
  if (text_pixels(out) <= pixels) return out;
  for (std::size_t columns = display_width(out); columns > 0; --columns) {
    std::string shorter = shortened(out, columns);
    if (text_pixels(shorter) <= pixels) return shorter;
  }
  return "";
}

std::vector<std::string> lines_within(std::string_view text, double pixels) {
  const std::string clean = clean_text(text);
  std::string_view rest{clean};
  std::vector<std::string> lines;
  std::string line;
  while (!rest.empty()) {
    std::size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(end).starts_with(" %")) end = std::min(rest.find(' ', end + 1), rest.size());
    const std::string word = fitted(rest.substr(0, end), pixels);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (word.empty()) continue;
    if (!line.empty() && text_pixels(line + " " + word) > pixels) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string quoted_lines(const std::vector<std::string>& lines) {
  if (lines.empty()) return "''";
  std::vector<std::string> quoted;
  for (const std::string& line : lines) quoted.push_back(gnuplot_quote(line));
  return fmt::format("{}", fmt::join(quoted, ".\"\\n\"."));
}

std::string number(double value) { return csv_number(value); }

namespace {

constexpr double kSample = 75;  // pixels: line and mark in front of a legend entry
/// The width that gnuplot assumes for every character of a legend.
constexpr double kLegendCharacter = 9.94;

double legend_pixels(std::string_view entry) {
  return std::max(text_pixels(entry), kLegendCharacter * static_cast<double>(display_width(entry)));
}
/// Columns that a line of the legend may take.
std::size_t legend_room(const Canvas& canvas) {
  constexpr std::size_t kLongest = 54;
  const double room = canvas.width - 2 * kEdge - kSample;
  return std::min(kLongest, static_cast<std::size_t>(std::max(1.0, room / kLegendCharacter)));
}

/// Columns of the legend below a plot; its entries are in a grid as wide as the canvas.
int legend_columns(const Layout& layout, const Canvas& canvas) {
  double widest_entry = 0;
  for (const std::string& entry : layout.legend) {
    widest_entry = std::max(widest_entry, legend_pixels(entry));
  }
  const double fit = (canvas.width - 2 * kEdge) / (widest_entry + kSample);
  return std::clamp(static_cast<int>(fit), 1, 4);
}

std::vector<std::string> y_lines(const Layout& layout) {
  constexpr double kBeyond = 30;  // pixels that a name may extend past the ends of its axis
  return lines_within(layout.y_label, layout.height + kBeyond);
}

}  // namespace

std::vector<NestedMark> nested(const std::vector<std::vector<ChartPoint>>& points,
                               const std::function<std::pair<double, double>(ChartPoint)>& place) {
  constexpr double kTouch = 7;     // pixels
  constexpr std::size_t kMax = 5;  // marks around one point
  struct At {
    std::size_t series, index;
    double x, y;
  };
  std::vector<At> all;
  for (std::size_t s = 0; s < points.size(); ++s) {
    for (std::size_t i = 0; i < points[s].size(); ++i) {
      const auto [x, y] = place(points[s][i]);
      all.push_back({s, i, x, y});
    }
  }
  std::vector<std::size_t> by_x(all.size());
  for (std::size_t i = 0; i < by_x.size(); ++i) by_x[i] = i;
  std::stable_sort(by_x.begin(), by_x.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].x < all[b].x; });
  std::vector<NestedMark> out;
  std::vector<std::set<std::size_t>> touching(all.size());  // other series
  for (std::size_t i = 0; i < by_x.size(); ++i) {
    const At& a = all[by_x[i]];
    for (std::size_t j = i + 1; j < by_x.size() && all[by_x[j]].x - a.x < kTouch; ++j) {
      const At& b = all[by_x[j]];
      if (a.series == b.series || !(std::abs(a.y - b.y) < kTouch)) continue;
      touching[by_x[i]].insert(b.series);
      touching[by_x[j]].insert(a.series);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const At& a = all[i];
    const std::size_t n = touching[i].size() + 1;
    const auto rank = static_cast<std::size_t>(
        std::distance(touching[i].begin(), touching[i].lower_bound(a.series)));
    // With more than kMax series, select which ones have their marks here.
    const std::size_t ring = n > kMax ? (rank + n - a.index * kMax % n) % n : rank;
    if (ring < kMax) out.push_back({a.series, a.index, points[a.series][a.index], ring});
  }
  return out;
}

double ring_size(std::size_t ring) {
  constexpr double kStep = 0.8;
  return 1 + kStep * static_cast<double>(ring);
}

double left_of_plot(const Layout& layout) {
  constexpr double kGap = 6;  // between the axis's name and its ticks
  const auto lines = static_cast<double>(y_lines(layout).size());
  return layout.left + (lines > 0 ? kEdge + lines * kLineHeight + kGap : 0);
}

void PlotClauses::add(const std::string& clause, std::string_view text) {
  constexpr std::size_t kMaxLines = 3;
  std::vector<std::string> lines = wrapped(clean_text(text), legend_room(canvas_));
  if (lines.empty()) lines.emplace_back();
  if (lines.size() > kMaxLines) {
    lines.resize(kMaxLines);
    lines.back() = shortened(lines.back() + " ………", legend_room(canvas_));
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    layout_.legend.push_back(lines[i]);
    add(fmt::format("{} title {} noenhanced",
                    i == 0 ? clause : std::string{"NaN with dots lc rgb '#ffffff'"},
                    gnuplot_quote(lines[i])));
  }
}

void PlotClauses::add_entry(const std::string& how, std::string_view text) {
  add("NaN with " + how, text);
}

void PlotClauses::add_remark(std::string_view text) {
  if (!text.empty()) add_entry("dots lc rgb '#ffffff'", text);
}

std::string PlotClauses::str() const {
  return fmt::format("plot {}", fmt::join(clauses_, ", \\\n     "));
}

std::string script(const std::string& name, const std::string& title, const Layout& layout,
                   const std::string& settings, const std::string& plot, const FigureStyle& style) {
  constexpr double kTopGap = 14;
  constexpr double kTopOfPlot = 16;  // half of the uppermost tick's name
  constexpr double kLegendRow = 1.1 * kLineHeight;
  constexpr double kAxisText = 66;  // tick labels and the axis's name in one line
  const Canvas canvas = canvas_of(style);
  std::vector<std::string> lines;
  if (canvas.has_title) lines = lines_within(title, canvas.width - 4 * kEdge);
  int columns = legend_columns(layout, canvas);
  const auto rows_of = [&] {
    return std::max((static_cast<int>(layout.legend.size()) + columns - 1) / columns, 1);
  };
  // gnuplot limits a vertical legend to as many rows as the plot is high and cuts the rest. It
  // limits a horizontal legend to as many columns as the plot is wide.
  constexpr double kSlack = 1.25;  // row heights differ by terminal
  const bool is_short = kSlack * kLegendRow * rows_of() > layout.height;
  if (is_short) columns = 1;
  const int rows = rows_of();
  const std::string order =
      is_short ? "horizontal maxcols 1" : fmt::format("vertical maxrows {}", rows);
  const double left = left_of_plot(layout);
  const double right = canvas.width - layout.right;
  const double middle = (left + right) / 2;
  const double x_room = 2 * std::min(middle, canvas.width - middle) - 2 * kEdge;
  const std::vector<std::string> x_lines = lines_within(layout.x_label, x_room);
  const double top = kTopGap + kTopOfPlot + kLineHeight * static_cast<double>(lines.size());
  const double bottom =
      kAxisText + kLineHeight * (std::max<double>(static_cast<double>(x_lines.size()), 1) - 1) +
      12 + kLegendRow * rows;
  const double height = std::round(top + layout.height + bottom);
  std::string out = fmt::format(
      "# Drawn by kvsim; `gnuplot {}.gp` in this folder draws it again.\n"
      "reset session\n"
      "set encoding utf8\n"
      "set datafile separator ','\n"
      "set datafile commentschars ''\n"
      "set border 3 lw 1.2 lc rgb '#333333'\n"
      "set tics nomirror out\n"
      "set grid lc rgb '#dddddd' lw 1 lt 1 dt solid\n"
      "set key at screen 0.5, screen {} center bottom {} Left reverse samplen 3 "
      "noenhanced\n"
      "set lmargin at screen {}\nset rmargin at screen {}\n"
      "set tmargin at screen {}\nset bmargin at screen {}\n"
      "set xlabel {} noenhanced\n",
      name, number(kEdge / height), order, number(left / canvas.width),
      number(right / canvas.width), number(1 - top / height), number(bottom / height),
      quoted_lines(x_lines));
  // The name of the vertical axis: gnuplot's default position depends on the terminal.
  const std::vector<std::string> upward = y_lines(layout);
  for (std::size_t i = 0; i < upward.size(); ++i) {
    const double x = kEdge + kLineHeight * (static_cast<double>(i) + 0.5);
    out += fmt::format("set label {} at screen {}, graph 0.5 center rotate by 90 noenhanced\n",
                       gnuplot_quote(upward[i]), number(x / canvas.width));
  }
  // The title is centred on the canvas, regardless of the plot's margins.
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double y = kTopGap + kLineHeight * (static_cast<double>(i) + 0.5);
    out += fmt::format("set label {} at screen 0.5, screen {} center noenhanced\n",
                       gnuplot_quote(lines[i]), number(1 - y / height));
  }
  out += settings;
  const double scale = style.paper ? kPaperScale : 1;
  const double line_width = 1.3 * (style.paper ? 0.8 * scale : 1);
  const double font = kFont * scale;
  const double wide = canvas.width * scale;
  const double tall = height * scale;
  for (const std::string& format : style.formats) {
    // Terminals differ in character heights and mark sizes; these settings compensate for that.
    const bool svg = format == "svg";
    const std::string text = fmt::format("noenhanced font 'DejaVu Sans,{}' dashlength 0.6",
                                         number(format == "pdf" ? font * 0.75 : font));
    if (svg) {
      out +=
          fmt::format("set terminal svg size {:.0f},{:.0f} {} background '#ffffff' linewidth {}\n",
                      wide, tall, text, number(line_width));
    } else if (format == "png") {
      // A point of text is 1/72 inch here; a pixel is 1/96 inch in the SVG.
      out += fmt::format(
          "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {{\n"
          "  set terminal pngcairo size {0:.0f},{1:.0f} {2} fontscale {3} linewidth {4} pointscale "
          "{5} background '#ffffff'\n"
          "}} else {{\n"
          "  set terminal png size {0:.0f},{1:.0f} noenhanced linewidth {4}\n"
          "}}\n",
          wide * kPngScale, tall * kPngScale, text, number(0.75 * kPngScale),
          number(line_width * kPngScale), kPngScale);
    } else {
      // In inches. pdfcairo expects text sizes in pixels of 1/96 inch and line widths in half
      // points.
      out += fmt::format(
          "set terminal pdfcairo size {}in,{}in {} fontscale 0.75 linewidth {} pointscale 0.75 "
          "background '#ffffff'\n",
          number(wide / kPixelsPerInch), number(tall / kPixelsPerInch), text,
          number(line_width * 1.5));
    }
    out += fmt::format("mark = {}; spot = {}; sign = {}\n", number((svg ? 0.55 : 0.9) * scale),
                       number((svg ? 0.62 : 1.26) * scale), number((svg ? 1.05 : 1.6) * scale));
    out += svg ? "set key spacing 0.87\nset xtics offset 0,0.35\nset xlabel offset 0,0.85\n"
               : "set key spacing 1.1\nset xtics offset 0,0\nset xlabel offset 0,0\n";
    out += fmt::format("set output '{}.{}'\n{}\nunset output\n", name, format, plot);
  }
  return out;
}

}  // namespace kvsim::chart
