#include "sim/report/folder/results_folder.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/text/text.hpp"

namespace kvsim {
std::string figure_lines(const ResultsFolder& written) {
  // One of the drawn formats represents all of them: the one that terminals and mail programs open.
  std::vector<std::string> formats;
  for (const char* format : {".png", ".svg", ".pdf"}) {
    const bool used = std::any_of(written.figures.begin(), written.figures.end(),
                                  [&](const std::string& name) { return name.ends_with(format); });
    if (used) formats.emplace_back(format);
  }
  if (formats.empty()) return "";
  std::string out;
  for (const std::string& name : written.figures) {
    if (!name.ends_with(formats.front())) continue;
    out += fmt::format("figure   {}/{}\n", clean_text(written.folder.string()), name);
  }
  formats.erase(formats.begin());
  if (formats.empty()) return out;
  return out + fmt::format("         (each as {} too)\n", fmt::join(formats, " and "));
}

void write_page(const AtomicFolder& building, const std::string& text, ResultsFolder& written) {
  building.write(kPageFile, text);
  written.page = true;
}

ResultsFolder draw_into(const AtomicFolder& building, const FigureSet& set,
                        const std::filesystem::path& folder, const FolderOptions& options) {
  ResultsFolder out{folder, {}, set.notes};
  if (!options.figures || set.figures.empty()) return out;
  const std::filesystem::path place = building.make_folder("figures");
  const DrawnFigures drawn = draw_figures(set.figures, place, options.gnuplot, options.style);
  for (const std::string& file : drawn.files) out.figures.push_back("figures/" + file);
  out.notes.insert(out.notes.end(), drawn.notes.begin(), drawn.notes.end());
  return out;
}

void check_results_folder(const std::filesystem::path& folder) { const AtomicFolder trial{folder}; }

}  // namespace kvsim
