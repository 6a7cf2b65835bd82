#include "sim/cli/options/figure_options.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {

std::vector<std::string> read_formats(const Arguments& arguments) {
  if (!arguments.has("formats")) return FigureStyle{}.formats;
  std::vector<std::string> formats;
  for (const std::string& format : arguments.list("formats")) {
    const auto& known = figure_formats();
    if (std::find(known.begin(), known.end(), format) == known.end()) {
      throw InputError{fmt::format("--formats: {}", unknown_name("format", format, known))};
    }
    if (std::find(formats.begin(), formats.end(), format) != formats.end()) {
      throw InputError{fmt::format("--formats: {} is given twice", format)};
    }
    formats.push_back(format);
  }
  return formats;
}

Option formats_option() {
  return {"formats",
          0,
          "NAMES",
          false,
          "of figures: svg, png, pdf, joined by commas (svg,png)",
          Option::Values::kWords,
          figure_formats()};
}

FolderOptions folder_options(const Arguments& arguments, bool figures) {
  const bool none = arguments.has("no-figures");
  if (none && arguments.has("formats")) {
    throw InputError{"--formats and --no-figures contradict each other"};
  }
  FolderOptions options{
      .figures = figures && !none, .gnuplot = {}, .page = !none && !arguments.has("no-report")};
  options.style.formats = read_formats(arguments);
  return options;
}

void refuse_formats_without_folder(const Arguments& arguments, bool folder) {
  if (!folder && arguments.has("formats")) {
    throw InputError{"--formats: figures go into a results folder, and none is written: -o DIR"};
  }
}

}  // namespace kvsim
