#pragma once

// Contents of an SVG that gnuplot drew: its size, texts and marks.

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::test {

struct SvgText {
  std::string text{};
  double x = 0, y = 0;     // of the anchor on the base line, pixels
  double size = 0;         // pixels
  std::string anchor{};    // "start", "middle", "end"
  bool is_upright = true;  // false: rotated by 90 degrees, reading upwards
};
struct SvgMark {
  std::string shape{};  // "gpPt6"
  double x = 0, y = 0;
};
struct SvgFigure {
  double width = 0, height = 0;  // pixels
  std::vector<SvgText> texts{};
  std::vector<SvgMark> marks{};
};

namespace svg {

/// Text between the first `before` at or after `from` and the next `after`; empty if there is none.
inline std::string between(std::string_view text, std::string_view before, std::string_view after,
                           std::size_t from = 0) {
  const std::size_t start = text.find(before, from);
  if (start == text.npos) return "";
  const std::size_t at = start + before.size();
  const std::size_t end = text.find(after, at);
  return end == text.npos ? "" : std::string{text.substr(at, end - at)};
}
inline double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

inline std::string unescaped(std::string text) {
  constexpr std::string_view kEscapes[][2] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}};
  for (const auto& [escape, character] : kEscapes) {
    for (std::size_t at = text.find(escape); at != text.npos; at = text.find(escape, at + 1)) {
      text.replace(at, escape.size(), character);
    }
  }
  return text;
}

}  // namespace svg

inline SvgFigure read_svg(const std::string& file) {
  SvgFigure out;
  out.width = svg::number(svg::between(file, "width=\"", "\""));
  out.height = svg::number(svg::between(file, "height=\"", "\""));
  const std::size_t body = file.find("</defs>");
  for (std::size_t at = file.find("<use ", body); at != file.npos;
       at = file.find("<use ", at + 1)) {
    const std::string element = file.substr(at, file.find("/>", at) - at);
    const std::string place = svg::between(element, "translate(", ")");
    out.marks.push_back({svg::between(element, "href='#", "'"), svg::number(place),
                         svg::number(place.substr(place.find(',') + 1))});
  }
  for (std::size_t at = file.find("<g transform=", body); at != file.npos;
       at = file.find("<g transform=", at + 1)) {
    const std::string head = file.substr(at, file.find('>', at) - at);
    const std::size_t end = file.find("</g>", at);
    const std::string place = svg::between(head, "translate(", ")");
    SvgText text{.x = svg::number(place),
                 .y = svg::number(place.substr(place.find(',') + 1)),
                 .size = svg::number(svg::between(head, "font-size=\"", "\"")),
                 .anchor = svg::between(head, "text-anchor=\"", "\""),
                 .is_upright = head.find("rotate(") == head.npos};
    const std::string inner = file.substr(at, end - at);
    const std::size_t open = inner.find("<text>");
    if (open == inner.npos) continue;
    text.text = svg::unescaped(svg::between(inner, "<text>", "</text>"));
    if (!text.text.empty()) out.texts.push_back(text);
  }
  return out;
}

}  // namespace kvsim::test
