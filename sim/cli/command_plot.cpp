// kvsim plot: draws the figures of results folders again from their documents, for screen or paper.
// For several folders, combines the figures that all of them have. Scripts in these folders are not
// run.

#include "sim/cli/command_plot.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/folder.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/chart/figure_document.hpp"
#include "sim/report/chart/figure_overlay.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// Documents of figures in a folder.
std::vector<fs::path> documents_in(const fs::path& folder) {
  std::vector<fs::path> files = files_in(folder, ".json");
  std::erase_if(files, [](const fs::path& file) {
    return !file.filename().string().ends_with(kFigureSuffix);
  });
  return files;
}

fs::path figures_of(const fs::path& result) {
  bool scripts = false;
  for (const fs::path& folder : {result / "figures", result}) {
    std::error_code status;
    const fs::file_type type = fs::status(folder, status).type();
    if (type == fs::file_type::none) {
      throw InputError{fmt::format("{}: cannot be read: {}", folder.string(), status.message())};
    }
    if (type != fs::file_type::directory) continue;
    if (!documents_in(folder).empty()) return folder;
    scripts = scripts || !files_in(folder, ".gp").empty();
  }
  if (scripts) {
    throw InputError{
        fmt::format("{}: scripts of figures (*.gp) without their documents (*{}): an older kvsim "
                    "drew them, and foreign scripts are not run; run the scenario again",
                    result.string(), kFigureSuffix)};
  }
  throw InputError{fmt::format("{}: not a results folder with figures: it contains no figures/*{}",
                               result.string(), kFigureSuffix)};
}

/// Figures of a folder, by name.
std::vector<StoredFigure> read_figures(const fs::path& result, std::set<std::string>& words) {
  std::vector<StoredFigure> figures;
  for (const fs::path& file : documents_in(figures_of(result))) {
    const Field document = Field::read_file(file);
    figures.push_back(read_figure(document, words));
    const std::string name = file.filename().string();
    if (name_of(figures.back().chart) + kFigureSuffix != name) {
      document.at("name").expected(
          fmt::format("the file's name, {}", name.substr(0, name.find(kFigureSuffix))));
    }
  }
  std::sort(figures.begin(), figures.end(), [](const StoredFigure& a, const StoredFigure& b) {
    return name_of(a.chart) < name_of(b.chart);
  });
  return figures;
}

/// Keeps the figures whose name or name prefix is in --figure. Errors: InputError if no result has
/// a matching figure.
void keep_wanted(const Arguments& arguments, std::vector<FiguresOfResult>& results) {
  const std::vector<std::string> wanted = arguments.list("figure");
  if (wanted.empty()) return;
  std::set<std::string> names;
  for (const FiguresOfResult& result : results) {
    for (const StoredFigure& figure : result.figures) names.insert(name_of(figure.chart));
  }
  const std::vector<std::string> known{names.begin(), names.end()};
  for (const std::string& name : wanted) {
    const bool some = std::any_of(known.begin(), known.end(),
                                  [&](const std::string& one) { return one.starts_with(name); });
    if (!some) throw InputError{fmt::format("--figure: {}", unknown_name("figure", name, known))};
  }
  for (FiguresOfResult& result : results) {
    std::erase_if(result.figures, [&](const StoredFigure& figure) {
      return std::none_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
        return name_of(figure.chart).starts_with(name);
      });
    });
  }
}

bool all_differ(const std::vector<std::string>& names) {
  return std::set<std::string>{names.begin(), names.end()}.size() == names.size();
}

/// Names of the results: the shortest path suffixes that distinguish them, shortened at the front
/// if long. Errors: InputError if one is given twice.
std::vector<std::string> names_of(const std::vector<std::string>& results) {
  constexpr std::size_t kLongest = 28;  // a legend's entry has 54 columns
  std::vector<fs::path> paths;
  std::size_t deepest = 1;
  for (const std::string& result : results) {
    std::error_code status;
    fs::path path = fs::weakly_canonical(result, status);
    if (status) path = fs::path{result}.lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    if (path.filename() == "figures") path = path.parent_path();
    const auto twice = std::find(paths.begin(), paths.end(), path);
    if (twice != paths.end()) throw InputError{fmt::format("{}: is given twice", result)};
    deepest = std::max(deepest, static_cast<std::size_t>(std::distance(path.begin(), path.end())));
    paths.push_back(std::move(path));
  }
  std::vector<std::string> names;
  for (std::size_t folders = 1; folders <= deepest; ++folders) {
    names.clear();
    for (const fs::path& path : paths) {
      const auto n = static_cast<std::size_t>(std::distance(path.begin(), path.end()));
      fs::path tail;
      for (auto part =
               std::next(path.begin(), static_cast<std::ptrdiff_t>(n - std::min(n, folders)));
           part != path.end(); ++part) {
        tail /= *part;
      }
      names.push_back(clean_text(tail.string()));
    }
    if (all_differ(names)) break;
  }
  std::vector<std::string> shorter;
  for (const std::string& name : names) shorter.push_back(shortened(name, kLongest));
  return all_differ(shorter) ? shorter : names;
}

/// Figures of the results: all figures of a single result, or the common figures of several.
std::vector<Figure> figures_to_draw(const Arguments& arguments,
                                    const std::vector<std::string>& folders,
                                    std::set<std::string>& words, std::vector<std::string>& notes) {
  std::vector<FiguresOfResult> results;
  const std::vector<std::string> names = names_of(folders);
  for (std::size_t i = 0; i < folders.size(); ++i) {
    results.push_back({names[i], read_figures(folders[i], words)});
  }
  keep_wanted(arguments, results);
  std::vector<Figure> figures;
  if (results.size() == 1) {
    for (const StoredFigure& stored : results.front().figures) {
      figures.push_back(draw(stored.chart));
      figures.back().kind = stored.kind;
    }
    return figures;
  }
  const Overlaid overlaid = overlay_results(results);
  for (const AnyChart& chart : overlaid.charts) figures.push_back(draw(chart));
  if (figures.empty()) {
    throw InputError{fmt::format("plot: no figure can be drawn of all of the results: {}",
                                 fmt::join(overlaid.notes, "; "))};
  }
  for (const std::string& note : overlaid.notes) notes.push_back(note + " (not drawn)");
  return figures;
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
    if (!style.paper) throw InputError{"--width", "--style paper", "--style screen"};
    constexpr double kNarrowest = 2.5;
    constexpr double kWidest = 12;
    style.width_in = *arguments.number("width", kNarrowest, kWidest);
  }
  return style;
}

/// Throws InputError if files would replace figures that kvsim did not draw. Figures of kvsim have
/// their document next to them.
void check_replaceable(const fs::path& folder, const std::vector<std::string>& files) {
  std::error_code status;
  for (const std::string& file : files) {
    if (!fs::exists(folder / file, status)) continue;
    const std::string document = file.substr(0, file.find('.')) + std::string{kFigureSuffix};
    if (fs::exists(folder / document, status)) continue;
    throw InputError{
        fmt::format("{}: already exists, and kvsim did not draw it; choose another folder",
                    (folder / file).string())};
  }
}

int run_plot(const Arguments& arguments) {
  constexpr std::size_t kMaxResults = 16;
  arguments.expect_words(1, kMaxResults, "a results folder");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"plot", "-o DIR for the figures", "none"};
  const FigureStyle style = read_style(arguments);
  const std::vector<std::string>& results = arguments.words();
  for (const std::string& result : results) {
    std::error_code status;
    if (fs::equivalent(figures_of(result), *out, status) || fs::equivalent(result, *out, status)) {
      throw InputError{
          fmt::format("{}: contains the figures that are read; choose another folder", *out)};
    }
  }
  std::set<std::string> words;  // of parts of bars and bands
  std::vector<std::string> notes;
  const std::vector<Figure> figures = figures_to_draw(arguments, results, words, notes);
  AtomicFiles files{*out};
  const DrawnFigures drawn = draw_figures(figures, files.partial(), {}, style);
  if (drawn.failed) throw InputError{fmt::format("{}: {}", *out, fmt::join(drawn.notes, "; "))};
  check_replaceable(*out, drawn.files);
  files.adopt();
  files.commit();
  std::string text;
  for (const std::string& file : drawn.files) {
    text += fmt::format("{}\n", (fs::path{*out} / file).string());
  }
  notes.insert(notes.end(), drawn.notes.begin(), drawn.notes.end());
  for (const std::string& note : notes) {
    write_err(fmt::format("kvsim: {}\n", clean_text(note)));
  }
  if (!arguments.has("quiet")) write_out(text);
  const bool some = std::any_of(drawn.files.begin(), drawn.files.end(), [](std::string_view file) {
    return !file.ends_with(".csv") && !file.ends_with(".gp") && !file.ends_with(kFigureSuffix);
  });
  return some ? kDone : kBadInput;
}

}  // namespace

Command plot_command() {
  return {
      .name = "plot",
      .summary = "redraw the figures of results: other formats, for paper, several results in one",
      .usage =
          "kvsim plot RESULT… -o DIR [options]\n"
          "  RESULT  a results folder, or one that plot wrote; for several, the figures\n"
          "          common to all, each with the lines, marks and bars of all",
      .examples =
          "kvsim plot kvsim-out/zeromerge-a800 -o paper --style paper --formats pdf\n"
          "kvsim plot kvsim-out/a kvsim-out/b -o both --figure memory_vs_length",
      .options = {{"out", 'o', "DIR", false, "folder for figures, their data and scripts",
                   Option::Values::kFolders},
                  formats_option(),
                  {"style",
                   0,
                   "STYLE",
                   false,
                   "screen, or paper: 8-point text, thin lines, no title (screen)",
                   Option::Values::kWords,
                   {"screen", "paper"}},
                  {"width", 0, "INCHES", false, "for paper: 3.3 is a column, 6.9 a page (6.9)"},
                  {"figure", 0, "NAME", true, "only these figures, by name or start of a name"},
                  {"quiet", 'q', "", false, "do not list the files"}},
      .run = run_plot};
}

}  // namespace kvsim
