#include "models/units/number_text.hpp"

#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <version>

namespace kvsim {

#ifdef __cpp_lib_to_chars

std::from_chars_result number_from_chars(const char* first, const char* last, double& value,
                                         bool fixed) {
  return std::from_chars(first, last, value,
                         fixed ? std::chars_format::fixed : std::chars_format::general);
}

#else

namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

/// Returns the end of the longest decimal number at the start of `text`; 0 if there is none.
std::size_t end_of_number(std::string_view text, bool fixed) {
  std::size_t at = text.starts_with('-') ? 1 : 0;
  const std::size_t begin = at;
  while (at < text.size() && digit(text[at])) ++at;
  std::size_t digits = at - begin;
  if (at < text.size() && text[at] == '.') {
    std::size_t after = at + 1;
    while (after < text.size() && digit(text[after])) ++after;
    digits += after - at - 1;
    if (digits > 0) at = after;
  }
  if (digits == 0) return 0;
  if (fixed || at == text.size() || (text[at] != 'e' && text[at] != 'E')) return at;
  std::size_t power = at + 1;
  if (power < text.size() && (text[power] == '-' || text[power] == '+')) ++power;
  if (power == text.size() || !digit(text[power])) return at;
  while (power < text.size() && digit(text[power])) ++power;
  return power;
}

}  // namespace

// std::from_chars accepts "inf" and "nan"; they are rejected here, as no caller allows them.
std::from_chars_result number_from_chars(const char* first, const char* last, double& value,
                                         bool fixed) {
  const std::string_view text{first, static_cast<std::size_t>(last - first)};
  const std::size_t size = end_of_number(text, fixed);
  if (size == 0) return {first, std::errc::invalid_argument};
  const double read = std::strtod(std::string{text.substr(0, size)}.c_str(), nullptr);
  if (!std::isfinite(read)) return {first + size, std::errc::result_out_of_range};
  value = read;
  return {first + size, std::errc{}};
}

#endif

}  // namespace kvsim
