#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvsim {

/// The style of text output; features that only a terminal can show are off by default.
struct TextStyle {
  std::size_t width = 80;
  bool colour = false;  // escape sequences of ECMA-48
  bool blocks = false;  // sparklines of block characters
  bool verbose = true;  // everything instead of the main points

  TextStyle() = default;
  TextStyle(std::size_t columns) : width{columns} {}  // NOLINT: a width is a style without colour
};

/// The meaning of a piece of text; colour is never the only sign of it.
enum class Tone : std::uint8_t {
  kPlain,
  kHeading,  // bold
  kGood,     // green: it fits
  kBad       // red: out of memory
};
/// `text` in the tone's colour if `style` has colours, else unchanged.
[[nodiscard]] std::string toned(Tone tone, std::string_view text, const TextStyle& style);

/// The tones of a line: of the whole line or of its last word.
struct LineTones {
  Tone line = Tone::kPlain;
  Tone last_word = Tone::kPlain;
};
/// `text` with the tones of its lines; lines beyond `tones` are plain.
[[nodiscard]] std::string toned_lines(std::string_view text, std::span<const LineTones> tones,
                                      const TextStyle& style);

/// `values` as block characters of eight heights; each column shows the maximum of its values.
/// `top` and above are a full block. At most `columns` wide; empty if there are no values. Errors:
/// ContractError unless top > 0.
[[nodiscard]] std::string sparkline(std::span<const double> values, double top,
                                    std::size_t columns);

}  // namespace kvsim
