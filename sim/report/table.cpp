#include "sim/report/table.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 12;  // that a left column is shortened to

}  // namespace

Table::Table(std::vector<Column> columns) : columns_{std::move(columns)} {}

void Table::add_row(std::vector<std::string> cells) {
  KVSIM_CHECK(cells.size() == columns_.size(), "{} cells for {} columns", cells.size(),
              columns_.size());
  for (std::string& cell : cells) cell = clean_text(cell);
  rows_.push_back({std::move(cells), ""});
}

void Table::add_section(const std::string& heading) {
  if (!heading.empty()) rows_.push_back({{}, clean_text(heading)});
}

std::string Table::str(std::size_t width) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t widest =
        std::max(display_width(columns_[c].header), display_width(columns_[c].unit));
    for (const Row& row : rows_) {
      if (row.section.empty()) widest = std::max(widest, display_width(row.cells[c]));
    }
    widths.push_back(widest);
  }
  std::size_t total = columns_.empty() ? 0 : kGap * (columns_.size() - 1);
  for (const std::size_t w : widths) total += w;
  while (total > width) {
    // The widest of the shrinkable columns gives way first.
    std::size_t* widest = nullptr;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].align == Align::kLeft && widths[c] > kNarrowest &&
          (widest == nullptr || widths[c] > *widest)) {
        widest = &widths[c];
      }
    }
    if (widest == nullptr) break;
    --*widest;
    --total;
  }
  std::vector<bool> shown(columns_.size(), true);
  std::string left_out;
  for (std::size_t c = columns_.size(); c-- > 0 && total > width;) {
    if (!columns_[c].spare) continue;
    shown[c] = false;
    total -= widths[c] + kGap;
    left_out = columns_[c].header + (left_out.empty() ? "" : ", ") + left_out;
  }
  std::string out;
  const auto add_line = [&](const auto& cell) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (!shown[c]) continue;
      const bool left = columns_[c].align == Align::kLeft;
      const std::string text = left ? shortened(cell(c), widths[c]) : cell(c);
      const std::size_t used = display_width(text);
      const std::string pad(widths[c] > used ? widths[c] - used : 0, ' ');
      if (c > 0) line.append(kGap, ' ');
      line += left ? text + pad : pad + text;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](std::size_t c) { return columns_[c].header; });
  const bool units = std::any_of(columns_.begin(), columns_.end(),
                                 [](const Column& column) { return !column.unit.empty(); });
  if (units) add_line([&](std::size_t c) { return columns_[c].unit; });
  for (const Row& row : rows_) {
    if (row.section.empty())
      add_line([&](std::size_t c) { return row.cells[c]; });
    else
      out += shortened(row.section, width) + "\n";
  }
  if (!left_out.empty()) {
    for (const std::string& line : wrapped("not shown at this width: " + left_out, width)) {
      out += line + "\n";
    }
  }
  return out;
}

}  // namespace kvsim
