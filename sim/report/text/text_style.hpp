#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvsim {

/// How text is laid out for a reader: features that only a terminal can show are off by default.
struct TextStyle {
  std::size_t width = 80;
  bool colour = false;  // escape sequences of ECMA-48
  bool blocks = false;  // sparklines of block characters
  bool verbose = true;  // all that there is to say, instead of what makes the point

  TextStyle() = default;
  TextStyle(std::size_t columns) : width{columns} {}  // NOLINT: a width is a style without colour
};

/// The meaning of a piece of text; colour is never its only sign.
enum class Tone : std::uint8_t {
  kPlain,
  kHeading,  // bold
  kGood,     // green: it fits
  kBad       // red: out of memory
};
/// `text` in the tone's colour where `style` has colours, else as it is.
[[nodiscard]] std::string toned(Tone tone, std::string_view text, const TextStyle& style);

/// Lines of a finished text, each with a tone for the whole of it or for its last word.
struct LineTones {
  Tone line = Tone::kPlain;
  Tone last_word = Tone::kPlain;
};
/// `text` with the tones of its lines; lines past those of `tones` are plain.
[[nodiscard]] std::string toned_lines(std::string_view text, std::span<const LineTones> tones,
                                      const TextStyle& style);

/// `values` as block characters of eight heights, each column the highest of its share of them;
/// `top` is a full block, what is above it too. At most `columns` wide; empty without values.
/// Errors: ContractError unless top > 0.
[[nodiscard]] std::string sparkline(std::span<const double> values, double top,
                                    std::size_t columns);

}  // namespace kvsim
