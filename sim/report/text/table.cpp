#include "sim/report/text/table.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "models/units/check.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 12;  // minimum width of a shortened left column

/// The smallest width, at least kNarrowest, at which different cells still differ when shortened.
std::size_t distinguishing_width(std::vector<std::string_view> cells) {
  std::sort(cells.begin(), cells.end());
  std::size_t width = kNarrowest;
  for (std::size_t i = 1; i < cells.size(); ++i) {
    const std::string_view a = cells[i - 1];
    const std::string_view b = cells[i];
    if (a == b) continue;
    const auto differs = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).second;
    const auto same = static_cast<std::size_t>(differs - b.begin());
    width = std::max(width, display_width(b.substr(0, same)) + 2);  // the first difference, and "…"
  }
  return width;
}

/// Ways to fit cells that are too long into their column.
enum class Cut : std::uint8_t { kEnd, kMiddle, kLines };

/// The first way that keeps different cells different at `width` columns.
Cut cut_of(const std::vector<std::string_view>& cells, std::size_t width) {
  const auto all_differ = [&](std::string (*shorten)(std::string_view, std::size_t)) {
    std::map<std::string, std::string_view> seen;
    return std::all_of(cells.begin(), cells.end(), [&](std::string_view cell) {
      return seen.emplace(shorten(cell, width), cell).first->second == cell;
    });
  };
  return all_differ(shortened) ? Cut::kEnd : all_differ(name_text) ? Cut::kMiddle : Cut::kLines;
}

/// Breaks `text` into lines of at most `width` columns, at blanks and within longer words.
std::vector<std::string> folded(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  const auto add = [&](std::string_view part) {
    // A character is at most two columns wide, so each line has at least one.
    for (std::size_t i = 0; i < part.size();) {
      std::size_t next = i + 1;
      while (next < part.size() && (static_cast<unsigned char>(part[next]) & 0xC0U) == 0x80U) {
        ++next;
      }
      const std::string_view character = part.substr(i, next - i);
      if (display_width(lines.back()) + display_width(character) > width) lines.emplace_back();
      lines.back() += character;
      i = next;
    }
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const bool first = lines.back().empty();
    if (!first && display_width(lines.back()) + 1 + display_width(word) > width) {
      lines.emplace_back();
    } else if (!first) {
      lines.back() += ' ';
    }
    add(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

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
  std::vector<bool> shown;
  std::string left_out;
  const auto total = [&](const std::vector<std::size_t>& of) {
    std::size_t sum = 0;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (shown[c]) sum += of[c] + (c > 0 ? kGap : 0);
    }
    return sum;
  };
  // Spare columns are dropped if the others are too wide even at their minimum widths. Those widths
  // keep rows distinguishable if dropping spare columns makes that possible.
  std::vector<std::size_t> min;
  for (const bool distinguishing : {true, false}) {
    min = widths;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].align != Align::kLeft) continue;
      std::vector<std::string_view> cells;
      for (const Row& row : rows_) {
        if (distinguishing && row.section.empty()) cells.emplace_back(row.cells[c]);
      }
      min[c] = std::min(widths[c], distinguishing_width(std::move(cells)));
    }
    shown.assign(columns_.size(), true);
    left_out.clear();
    for (std::size_t c = columns_.size(); c-- > 0 && total(min) > width;) {
      if (!columns_[c].spare) continue;
      shown[c] = false;
      left_out = columns_[c].header + (left_out.empty() ? "" : ", ") + left_out;
    }
    if (total(min) <= width) break;
  }
  while (total(widths) > width) {
    // Shrink the widest shrinkable column first.
    std::size_t* widest = nullptr;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (widths[c] > min[c] && (widest == nullptr || widths[c] > *widest)) widest = &widths[c];
    }
    if (widest == nullptr) break;
    --*widest;
  }
  std::vector<Cut> cuts;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::vector<std::string_view> cells;
    for (const Row& row : rows_) {
      if (row.section.empty()) cells.emplace_back(row.cells[c]);
    }
    const bool left = shown[c] && columns_[c].align == Align::kLeft;
    cuts.push_back(left ? cut_of(cells, widths[c]) : Cut::kEnd);
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
    if (!row.section.empty()) {
      out += shortened(row.section, width) + "\n";
      continue;
    }
    std::vector<std::vector<std::string>> lines;
    std::size_t max = 1;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = row.cells[c];
      lines.push_back(cuts[c] == Cut::kLines ? folded(cell, widths[c])
                      : cuts[c] == Cut::kMiddle
                          ? std::vector<std::string>{name_text(cell, widths[c])}
                          : std::vector<std::string>{cell});
      max = std::max(max, lines.back().size());
    }
    for (std::size_t i = 0; i < max; ++i) {
      add_line([&](std::size_t c) { return i < lines[c].size() ? lines[c][i] : std::string{}; });
    }
  }
  if (!left_out.empty()) {
    for (const std::string& line : wrapped("not shown at this width: " + left_out, width)) {
      out += line + "\n";
    }
  }
  return out;
}

}  // namespace kvsim
