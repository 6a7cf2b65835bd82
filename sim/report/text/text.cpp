#include "sim/report/text/text.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace kvsim {
namespace {

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 1;  // bytes
  bool valid = false;
};

/// The code point at `at`; if it is not valid UTF-8, one byte and marked invalid.
CodePoint decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first, 1, true};
  std::size_t length = 0;
  char32_t value = 0;
  if (first >= 0xC2 && first < 0xE0) {
    length = 2;
    value = first & 0x1FU;
  } else if (first >= 0xE0 && first < 0xF0) {
    length = 3;
    value = first & 0x0FU;
  } else if (first >= 0xF0 && first < 0xF5) {
    length = 4;
    value = first & 0x07U;
  }
  if (length == 0 || at + length > text.size()) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return {};
    value = (value << 6U) | (byte(at + i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  if (overlong || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {value, length, true};
}

struct Range {
  char32_t first, last;
};

constexpr std::array kNoWidth{Range{0x0300, 0x036F}, Range{0x0483, 0x0489},  Range{0x0591, 0x05BD},
                              Range{0x0610, 0x061A}, Range{0x064B, 0x065F},  Range{0x0E31, 0x0E31},
                              Range{0x0E34, 0x0E3A}, Range{0x1AB0, 0x1AFF},  Range{0x1DC0, 0x1DFF},
                              Range{0x200B, 0x200F}, Range{0x202A, 0x202E},  Range{0x2060, 0x2064},
                              Range{0x20D0, 0x20FF}, Range{0xFE00, 0xFE0F},  Range{0xFE20, 0xFE2F},
                              Range{0xFEFF, 0xFEFF}, Range{0xE0100, 0xE01EF}};
constexpr std::array kWide{
    Range{0x1100, 0x115F},   Range{0x2E80, 0x303E},   Range{0x3041, 0x33FF},
    Range{0x3400, 0x4DBF},   Range{0x4E00, 0x9FFF},   Range{0xA000, 0xA4CF},
    Range{0xAC00, 0xD7A3},   Range{0xF900, 0xFAFF},   Range{0xFE30, 0xFE6F},
    Range{0xFF00, 0xFF60},   Range{0xFFE0, 0xFFE6},   Range{0x1F300, 0x1F64F},
    Range{0x1F680, 0x1F6FF}, Range{0x1F900, 0x1FAFF}, Range{0x20000, 0x3FFFD}};

template <std::size_t N>
bool within(const std::array<Range, N>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](Range r) { return c >= r.first && c <= r.last; });
}

bool is_control(char32_t c) {
  // Directional marks and overrides would change how the text is displayed.
  const bool turns = c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
                     (c >= 0x2066 && c <= 0x2069);
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || turns;
}

std::size_t columns(char32_t c) {
  if (is_control(c) || within(kNoWidth, c)) return 0;
  return within(kWide, c) ? 2 : 1;
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (!c.valid)
      out += '?';
    else if (is_control(c.value))
      out += ' ';
    else
      out += text.substr(at, c.length);
    at += c.length;
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    width += c.valid ? columns(c.value) : 1;
    at += c.length;
  }
  return width;
}

std::string shortened(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string{text};
  if (width == 0) return "";
  std::string out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    const std::size_t take = c.valid ? columns(c.value) : 1;
    if (used + take > width - 1) break;
    out += text.substr(at, c.length);
    used += take;
    at += c.length;
  }
  return out + "…";
}

std::string name_text(std::string_view text, std::size_t width) {
  const std::string clean = clean_text(text);
  if (display_width(clean) <= width) return clean;
  // Names differ at their ends as often as at their beginnings.
  const std::size_t tail_columns = width / 3;
  std::string_view tail;
  for (std::size_t at = clean.size(); at > 0;) {
    --at;
    if ((static_cast<unsigned char>(clean[at]) & 0xC0U) == 0x80U) continue;  // inside a character
    const std::string_view from{std::string_view{clean}.substr(at)};
    if (display_width(from) > tail_columns) break;
    tail = from;
  }
  return shortened(clean, width - display_width(tail)).append(tail);
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    std::string word = shortened(text.substr(0, end), width);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!line.empty() && display_width(line) + 1 + display_width(word) > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string amount(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "-";
  if (size >= 1000) return with_commas(std::llround(value));
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 0.0995 || size == 0) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}
std::string amount(const std::optional<double>& value) { return value ? amount(*value) : "-"; }

std::string paragraph(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  // Lines after the first are indented.
  for (const std::string& line : wrapped(clean_text(text), width - std::min(width / 2, indent))) {
    if (!out.empty()) out.append(indent, ' ');
    out += line + "\n";
  }
  return out;
}

std::string slug(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string out;
  for (const char c : text) {
    if (out.size() == kLongest) break;
    const bool upper = c >= 'A' && c <= 'Z';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
    if (upper)
      out += static_cast<char>(c - 'A' + 'a');
    else if (plain && !(out.empty() && c == '.'))
      out += c;
    else if (c == ',')  // as in 18,000
      continue;
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "unnamed" : out;
}

}  // namespace kvsim
