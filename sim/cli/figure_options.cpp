#include "sim/cli/figure_options.hpp"

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

}  // namespace kvsim
