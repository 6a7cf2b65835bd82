#include "sim/report/folder/summary_blocks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/text/text.hpp"

namespace kvsim {
std::string notes_block(const std::vector<std::string>& notes, std::size_t width) {
  std::string out;
  for (const std::string& note : notes) out += paragraph("note: " + note, width, 6);
  return out;
}

std::string finding_block(const std::string& finding, std::size_t width) {
  return finding.empty() ? "" : "\n" + paragraph("Finding: " + finding, width, 2);
}

std::string files_block(const ResultsFolder* written, std::size_t width) {
  if (written == nullptr) return "";
  const std::string folder = clean_text(written->folder.string());
  std::string out = fmt::format("\nresults  {}/result.json\n", folder);
  if (written->page) out += fmt::format("page     {}/{}\n", folder, kPageFile);
  return out + figure_lines(*written) + notes_block(written->notes, width);
}

std::string brief_files_block(const ResultsFolder* written, std::size_t width) {
  const std::string more = "more: -v";
  if (written == nullptr) return more + "\n";
  std::vector<std::string> what;
  if (written->page) what.emplace_back(kPageFile);
  what.emplace_back("result.json");
  if (!written->figures.empty()) {
    what.push_back(fmt::format("figures ({})", written->figures.size()));
  }
  return notes_block(written->notes, width) +
         paragraph(fmt::format("written: {}/{}; {}", clean_text(written->folder.string()),
                               fmt::join(what, ", "), more),
                   width);
}

}  // namespace kvsim
