#include "sim/report/text/text_style.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "models/units/check.hpp"

namespace kvsim {

std::string toned(Tone tone, std::string_view text, const TextStyle& style) {
  if (!style.colour || tone == Tone::kPlain || text.empty()) return std::string{text};
  const std::string_view code = tone == Tone::kHeading ? "1" : tone == Tone::kGood ? "32" : "31";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string toned_lines(std::string_view text, std::span<const LineTones> tones,
                        const TextStyle& style) {
  std::string out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const LineTones tone = number < tones.size() ? tones[number] : LineTones{};
    ++number;
    if (tone.line != Tone::kPlain) {
      out += toned(tone.line, line, style);
    } else {
      const std::size_t blank = line.rfind(' ');
      const std::size_t word = blank == std::string_view::npos ? 0 : blank + 1;
      out += line.substr(0, word);
      out += toned(tone.last_word, line.substr(word), style);
    }
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string sparkline(std::span<const double> values, double top, std::size_t columns) {
  KVSIM_CHECK(top > 0, "a sparkline up to {}", top);
  constexpr std::array kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr double kLevels = kBlocks.size();
  std::string out;
  const std::size_t n = values.size();
  const std::size_t wide = std::min(n, columns);
  for (std::size_t c = 0; c < wide; ++c) {
    const std::size_t first = c * n / wide;
    const std::size_t end = std::max(first + 1, (c + 1) * n / wide);
    const double highest = *std::max_element(values.begin() + static_cast<std::ptrdiff_t>(first),
                                             values.begin() + static_cast<std::ptrdiff_t>(end));
    const double level = std::clamp(std::ceil(highest / top * kLevels) - 1, 0.0, kLevels - 1);
    out += kBlocks[static_cast<std::size_t>(level)];
  }
  return out;
}

}  // namespace kvsim
