// kvsim plot: the figures of results folders again, from their data and scripts, for screen or
// page; of several folders a figure that all of them have, with the lines of all.

#include "sim/cli/command_plot.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/folder.hpp"
#include "sim/cli/figure_options.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/chart.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

fs::path figures_of(const fs::path& result) {
  for (const fs::path& folder : {result / "figures", result}) {
    std::error_code status;
    const fs::file_type type = fs::status(folder, status).type();
    if (type == fs::file_type::none) {
      throw InputError{fmt::format("{}: cannot be read: {}", folder.string(), status.message())};
    }
    if (type == fs::file_type::directory && !files_in(folder, ".gp").empty()) return folder;
  }
  throw InputError{fmt::format("{}: no results folder with figures: there is no figures/*.gp in it",
                               result.string())};
}

/// Figures of a folder, by name.
std::vector<Figure> read_figures(const fs::path& result) {
  const fs::path folder = figures_of(result);
  std::vector<Figure> figures;
  for (const fs::path& script : files_in(folder, ".gp")) {
    fs::path data = script;
    data.replace_extension(".csv");
    figures.push_back({.name = script.stem().string(),
                       .title = "",
                       .csv = read_text(data),
                       .script = read_text(script)});
  }
  std::sort(figures.begin(), figures.end(),
            [](const Figure& a, const Figure& b) { return a.name < b.name; });
  return figures;
}

/// Those that --figure names, whole or by their beginning. Errors: InputError where it names none.
void keep_wanted(const Arguments& arguments, std::vector<Figure>& figures) {
  const std::vector<std::string> wanted = arguments.list("figure");
  if (wanted.empty()) return;
  std::vector<std::string> known;
  for (const Figure& figure : figures) known.push_back(figure.name);
  for (const std::string& name : wanted) {
    const bool some = std::any_of(known.begin(), known.end(),
                                  [&](const std::string& one) { return one.starts_with(name); });
    if (!some) throw InputError{fmt::format("--figure: {}", unknown_name("figure", name, known))};
  }
  std::erase_if(figures, [&](const Figure& figure) {
    return std::none_of(wanted.begin(), wanted.end(),
                        [&](const std::string& name) { return figure.name.starts_with(name); });
  });
}

/// One line of a CSV; fields may stand in double quotes.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

/// Lines of a line chart's CSV: series,kind,X,Y,label. `kind` 0: a point of the line; 1: a lone
/// mark; 2: where memory ran out.
struct LinesOfFigure {
  std::string x_column, y_column;
  std::vector<ChartLine> lines;
};

LinesOfFigure read_lines(const Figure& figure, const std::string& prefix,
                         const std::string& place) {
  std::istringstream in{figure.csv};
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> head = fields_of(line);
  if (head.size() < 5 || head[0] != "series" || head[1] != "kind" || head[4] != "label") {
    throw InputError{fmt::format(
        "{}: {} is no figure of lines: several results are drawn together as lines alone", place,
        figure.name)};
  }
  LinesOfFigure out{head[2], head[3], {}};
  std::string series;
  for (std::size_t number = 2; std::getline(in, line); ++number) {
    const std::vector<std::string> fields = fields_of(line);
    const auto x = fields.size() >= 5 ? parse_number(fields[2]) : std::nullopt;
    const auto y = fields.size() >= 5 ? parse_number(fields[3]) : std::nullopt;
    if (!x || !y) {
      throw InputError{fmt::format("{}: {}.csv:{}: expected series,kind,{},{},label, got \"{}\"",
                                   place, figure.name, number, head[2], head[3], line)};
    }
    if (out.lines.empty() || series != fields[0]) {
      series = fields[0];
      out.lines.push_back({.label = fmt::format("{}{}", prefix, fields[4])});
    }
    ChartLine& last = out.lines.back();
    if (fields[1] == "0") last.points.push_back({*x, *y});
    if (fields[1] == "1") last.lone_mark = ChartPoint{*x, *y};
    if (fields[1] == "2") last.end = ChartPoint{*x, *y};
  }
  return out;
}

/// "memory_vs_length" of "memory_vs_length_fp16-batch-4".
std::string kind_of(const std::string& name) {
  for (const char* kind : {"memory_vs_length", "throughput_vs_length", "peak_vs_final_length",
                           "cache_per_layer", "error_vs_step", "bytes_vs_step"}) {
    if (name.starts_with(kind)) return kind;
  }
  return name;
}

/// What to call the results: their folders' names, whole paths where these are alike.
std::vector<std::string> names_of(const std::vector<std::string>& results) {
  std::vector<std::string> names;
  for (const std::string& result : results) {
    fs::path path = fs::path{result}.lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    names.push_back(path.filename().string());
  }
  if (std::set<std::string>{names.begin(), names.end()}.size() != names.size()) return results;
  return names;
}

/// Figures of the same kind in all results, each with the lines of all.
std::vector<Figure> overlaid(const Arguments& arguments, const std::vector<std::string>& results) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const std::vector<std::string> names = names_of(results);
  std::vector<std::vector<Figure>> figures;
  for (const std::string& result : results) {
    figures.push_back(read_figures(result));
    keep_wanted(arguments, figures.back());
  }
  std::vector<Figure> out;
  std::set<std::string> done;
  for (const Figure& first : figures.front()) {
    const std::string kind = kind_of(first.name);
    if (!first.csv.starts_with("series,kind,") || !done.insert(kind).second) continue;
    LineChart chart{.name = kind};
    bool everywhere = true;
    for (std::size_t r = 0; r < results.size(); ++r) {
      bool here = false;
      for (const Figure& figure : figures[r]) {
        if (kind_of(figure.name) != kind || !figure.csv.starts_with("series,kind,")) continue;
        // Several of one kind differ in what their names end in.
        const bool several =
            std::count_if(figures[r].begin(), figures[r].end(),
                          [&](const auto& f) { return kind_of(f.name) == kind; }) > 1;
        const std::string suffix = several ? figure.name.substr(kind.size()) : "";
        LinesOfFigure lines =
            read_lines(figure, fmt::format("{}{}: ", names[r], suffix), results[r]);
        if (!chart.x_column.empty() &&
            (lines.x_column != chart.x_column || lines.y_column != chart.y_column)) {
          throw InputError{fmt::format("{}: {} has other columns than in {}", results[r],
                                       figure.name, results.front())};
        }
        chart.x_column = lines.x_column;
        chart.y_column = lines.y_column;
        for (ChartLine& line : lines.lines) chart.lines.push_back(std::move(line));
        here = true;
      }
      everywhere = everywhere && here;
    }
    if (!everywhere) continue;
    const bool bytes = chart.y_column.ends_with("bytes");
    chart.y_unit = bytes ? kGiB : 1;
    chart.x_label = chart.x_column == "tokens" ? "tokens per sequence" : chart.x_column;
    chart.y_label = bytes ? "HBM (GiB)" : chart.y_column;
    std::replace(chart.y_label.begin(), chart.y_label.end(), '_', ' ');
    chart.title = kind;
    std::replace(chart.title.begin(), chart.title.end(), '_', ' ');
    for (const ChartLine& line : chart.lines) {
      if (line.lone_mark) chart.lone_mark_label = "prefill peak (open)";
      if (line.end) chart.end_label = "out of memory";
    }
    out.push_back(draw(chart));
  }
  if (out.empty()) {
    throw InputError{
        "plot: no figure of lines is in all of the results; one result at a time draws the others"};
  }
  return out;
}

FigureStyle read_style(const Arguments& arguments) {
  FigureStyle style;
  style.formats = read_formats(arguments);
  const std::string word = arguments.value("style").value_or("screen");
  if (word != "screen" && word != "paper") {
    throw InputError{"--style", "screen or paper", fmt::format("\"{}\"", word)};
  }
  style.paper = word == "paper";
  if (arguments.has("width")) {
    if (!style.paper) throw InputError{"--width", "--style paper beside it", "--style screen"};
    constexpr double kNarrowest = 2.5;
    constexpr double kWidest = 12;
    style.width_in = *arguments.number("width", kNarrowest, kWidest);
  }
  return style;
}

int run_plot(const Arguments& arguments) {
  constexpr std::size_t kMostResults = 16;
  arguments.expect_words(1, kMostResults, "a results folder");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"plot", "-o DIR, where the figures go", "none"};
  const FigureStyle style = read_style(arguments);
  const std::vector<std::string>& results = arguments.words();
  std::vector<Figure> figures;
  if (results.size() == 1) {
    figures = read_figures(results.front());
    keep_wanted(arguments, figures);
    std::error_code status;
    if (fs::equivalent(figures_of(results.front()), *out, status)) {
      throw InputError{
          fmt::format("{}: holds the scripts that are read; another folder is needed", *out)};
    }
  } else {
    figures = overlaid(arguments, results);
  }
  for (const Figure& figure : figures)
    (void)styled_script(figure.script, style);  // before any file
  std::error_code status;
  fs::create_directories(*out, status);
  if (status) throw InputError{fmt::format("{}: {}", *out, status.message())};
  const DrawnFigures drawn = draw_figures(figures, *out, {}, style);
  std::string text;
  for (const std::string& file : drawn.files) {
    text += fmt::format("{}\n", (fs::path{*out} / file).string());
  }
  for (const std::string& note : drawn.notes) {
    write_err(fmt::format("kvsim: {}\n", clean_text(note)));
  }
  if (!arguments.has("quiet")) write_out(text);
  return drawn.files.empty() ? kBadInput : kDone;
}

}  // namespace

Command plot_command() {
  return {.name = "plot",
          .summary = "the figures of results again: other formats, for a page, of several together",
          .usage =
              "kvsim plot RESULT… -o DIR [options]\n"
              "  RESULT  a results folder; of several, the figures of lines that all have",
          .examples =
              "kvsim plot kvsim-out/zeromerge-a800 -o paper --style paper --formats pdf\n"
              "kvsim plot kvsim-out/a kvsim-out/b -o both --figure memory_vs_length",
          .options = {{"out", 'o', "DIR", false, "where figures, their data and scripts go",
                       Option::Values::kFolders},
                      formats_option(),
                      {"style",
                       0,
                       "STYLE",
                       false,
                       "screen, or paper: 8-point text, thin lines, no title (screen)",
                       Option::Values::kWords,
                       {"screen", "paper"}},
                      {"width", 0, "INCHES", false, "of paper: 3.3 is a column, 6.9 a page (6.9)"},
                      {"figure", 0, "NAME", true, "these alone, by name or its beginning"},
                      {"quiet", 'q', "", false, "do not list the files"}},
          .run = run_plot};
}

}  // namespace kvsim
