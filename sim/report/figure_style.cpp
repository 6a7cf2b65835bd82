#include "sim/report/figure_style.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

constexpr double kPixelsPerInch = 96;  // of the layout that scripts have
constexpr double kPaperPoints = 8;
constexpr double kPointsPerInch = 72;

/// A script cut where the terminals begin.
struct Parts {
  std::string head{};  // settings that hold for every terminal
  std::string name{}, plot{};
  double width = 0, height = 0;  // pixels
};

/// The number that begins `text`, which then begins behind it; nullopt where it is none that a
/// script of kvsim's has.
std::optional<double> take_number(std::string_view& text) {
  constexpr double kMost = 1e6;  // pixels, rows
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value >= 0 && value <= kMost)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// The number behind the first `words` of `text`.
std::optional<double> number_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == text.npos) return std::nullopt;
  text.remove_prefix(at + words.size());
  return take_number(text);
}

Parts cut(const std::string& script) {
  const auto fail = [] {
    throw InputError{
        "a figure's script is not as kvsim writes it: no \"set terminal svg size W,H\" with an "
        "output and a plot"};
  };
  // At a line's start, where no text of a user's can stand.
  constexpr std::string_view kTerminal = "\nset terminal svg size ";
  constexpr std::string_view kOutput = "\nset output '";
  constexpr std::string_view kEnd = "\nunset output\n";
  const std::size_t terminal = script.find(kTerminal);
  if (terminal == std::string::npos) fail();
  Parts parts{.head = script.substr(0, terminal + 1)};
  std::string_view sizes{script};
  sizes.remove_prefix(terminal + kTerminal.size());
  const auto width = take_number(sizes);
  if (!width || !sizes.starts_with(',')) fail();
  sizes.remove_prefix(1);
  const auto height = take_number(sizes);
  if (!height || !sizes.starts_with(' ') || *width < 1 || *height < 1) fail();
  parts.width = *width;
  parts.height = *height;
  const std::size_t output = script.find(kOutput, terminal);
  if (output == std::string::npos) fail();
  const std::size_t name = output + kOutput.size();
  const std::size_t name_end = script.find(".svg'\n", name);
  const std::size_t end = script.find(kEnd, name);
  if (name_end == std::string::npos || end == std::string::npos || end < name_end) fail();
  parts.name = script.substr(name, name_end - name);
  const std::size_t plot = name_end + std::string_view{".svg'\n"}.size();
  parts.plot = script.substr(plot, end - plot);
  return parts;
}

double margin(const std::string& head, const std::string& side) {
  const auto value = number_after(head, fmt::format("set {}margin at screen ", side));
  if (!value || *value > 1) throw InputError{"a figure's script has no margins"};
  return *value;
}

/// Whether a line of the head is the title's.
bool is_title(std::string_view line) {
  return line.starts_with("set label ") && line.find(" at screen 0.5, screen ") != line.npos &&
         line.ends_with(" center noenhanced");
}

/// Words that call out a place in the plot: the text between the quotes, where it is one.
std::optional<std::string_view> callout(std::string_view line) {
  if (!line.starts_with("set label '") || line.find(" boxed front") == line.npos) {
    return std::nullopt;
  }
  const std::size_t first = line.find('\'') + 1;
  return line.substr(first, line.find('\'', first) - first);
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// The head laid out anew for a page, and the canvas that it then has.
void lay_out_for_paper(Parts& parts, double width_in, double scale) {
  constexpr std::size_t kLongestInColumn = 20;
  constexpr double kTop = 12;
  constexpr double kLegendRow = 1.1 * chart::kLineHeight;
  const bool narrow = width_in < (FigureStyle::kColumn + FigureStyle::kPage) / 2;
  const double left = margin(parts.head, "l") * parts.width * scale;
  const double right = (1 - margin(parts.head, "r")) * parts.width * scale;
  const double bottom_before = margin(parts.head, "b") * parts.height;
  const double plot = (margin(parts.head, "t") - margin(parts.head, "b")) * parts.height * scale;
  const double rows_before = number_after(parts.head, "maxrows ").value_or(1);
  const auto entries = static_cast<double>(count(parts.plot, " title '"));
  const double rows = narrow ? std::max(1.0, entries) : rows_before;
  const double bottom = (bottom_before + kLegendRow * (rows - rows_before)) * scale;
  const double width = width_in * kPixelsPerInch;
  const double height = std::round(kTop * scale + plot + bottom);
  std::string head;
  bool left_out = false;  // the callout before, whose line to its place goes with it
  for (std::size_t from = 0; from < parts.head.size();) {
    const std::size_t end = std::min(parts.head.find('\n', from), parts.head.size());
    const std::string line = parts.head.substr(from, end - from);
    from = end + 1;
    const auto words = callout(line);
    const bool wide = narrow && words && display_width(*words) > kLongestInColumn;
    const bool its_line = left_out && line.starts_with("set arrow from first ");
    left_out = wide;
    if (is_title(line) || wide || its_line) continue;
    if (line.starts_with("set lmargin")) {
      head += fmt::format("set lmargin at screen {}\n", csv_number(left / width));
    } else if (line.starts_with("set rmargin")) {
      head += fmt::format("set rmargin at screen {}\n", csv_number(1 - right / width));
    } else if (line.starts_with("set tmargin")) {
      head += fmt::format("set tmargin at screen {}\n", csv_number(1 - kTop * scale / height));
    } else if (line.starts_with("set bmargin")) {
      head += fmt::format("set bmargin at screen {}\n", csv_number(bottom / height));
    } else if (line.starts_with("set key at screen")) {
      head += fmt::format(
          "set key at screen 0.5, screen {} center bottom vertical maxrows {} Left reverse samplen "
          "{} noenhanced\n",
          csv_number(8 * scale / height), static_cast<int>(rows), narrow ? 2 : 3);
    } else {
      head += line + "\n";
    }
  }
  parts.head = std::move(head);
  parts.width = width;
  parts.height = height;
}

}  // namespace

const std::vector<std::string>& figure_formats() {
  static const std::vector<std::string> formats{"svg", "png", "pdf"};
  return formats;
}

bool FigureStyle::is_default() const {
  return !paper && formats == std::vector<std::string>{"svg", "png"};
}

std::string styled_script(const std::string& script, const FigureStyle& style) {
  if (style.is_default()) return script;
  Parts parts = cut(script);
  const double points = chart::kFont * kPointsPerInch / kPixelsPerInch;  // of the script's text
  const double scale = style.paper ? kPaperPoints / points : 1;
  if (style.paper) lay_out_for_paper(parts, style.width_in, scale);
  const double thin = style.paper ? 0.8 * scale : 1;
  const double pixels = chart::kFont * scale;
  std::string out = parts.head;
  for (const std::string& format : style.formats) {
    // Each terminal has its own size of text, lines and marks: these even them out.
    double mark = 0;
    if (format == "svg") {
      out += fmt::format(
          "set terminal svg size {:.0f},{:.0f} noenhanced font 'DejaVu Sans,{}' dashlength 0.6 "
          "background '#ffffff' linewidth {}\n",
          parts.width, parts.height, csv_number(pixels), csv_number(1.3 * thin));
      mark = scale;
      out += fmt::format("mark = {}; spot = {}; sign = {}\n", csv_number(0.55 * mark),
                         csv_number(0.62 * mark), csv_number(1.05 * mark));
      out += fmt::format("set key spacing 0.87\nset xtics offset 0,{}\nset xlabel offset 0,{}\n",
                         csv_number(0.35), csv_number(0.85));
    } else {
      if (format == "png") {
        out += fmt::format(
            "set terminal pngcairo size {:.0f},{:.0f} noenhanced font 'DejaVu Sans,{}' dashlength "
            "0.6 fontscale {} linewidth {} pointscale {} background '#ffffff'\n",
            parts.width * chart::kPngScale, parts.height * chart::kPngScale, csv_number(pixels),
            csv_number(0.75 * chart::kPngScale), csv_number(1.3 * thin * chart::kPngScale),
            chart::kPngScale);
      } else {
        // Of a page, in inches: pdfcairo takes text in pixels of 1/96 inch, a line's width in half
        // points.
        out += fmt::format(
            "set terminal pdfcairo size {}in,{}in noenhanced font 'DejaVu Sans,{}' dashlength 0.6 "
            "fontscale 0.75 linewidth {} pointscale {} background '#ffffff'\n",
            csv_number(parts.width / kPixelsPerInch), csv_number(parts.height / kPixelsPerInch),
            csv_number(points * scale), csv_number(1.3 * thin * 1.5), csv_number(0.75));
      }
      mark = scale;
      out += fmt::format("mark = {}; spot = {}; sign = {}\n", csv_number(0.9 * mark),
                         csv_number(1.26 * mark), csv_number(1.6 * mark));
      out += "set key spacing 1.1\nset xtics offset 0,0\nset xlabel offset 0,0\n";
    }
    out += fmt::format("set output '{}.{}'\n{}\nunset output\n", parts.name, format, parts.plot);
  }
  return out;
}

}  // namespace kvsim
