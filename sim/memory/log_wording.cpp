#include "sim/memory/log_wording.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kEquals = " \t\r=:";
constexpr std::string_view kDigits = "0123456789.,";

void skip(std::string_view& line, std::string_view any_of) {
  line.remove_prefix(std::min(line.find_first_not_of(any_of), line.size()));
}

/// Removes the number at the start of `line` and returns it; empty if there is none. "nan" and
/// "inf" are numbers, which readers refuse.
std::string_view take_number(std::string_view& line) {
  const std::size_t sign = line.starts_with('-') ? 1 : 0;
  const std::string_view rest = line.substr(sign);
  const bool is_word = rest.starts_with("nan") || rest.starts_with("inf");
  const std::size_t end =
      is_word ? sign + 3 : std::min(line.find_first_not_of(kDigits, sign), line.size());
  if (end == sign) return {};
  const std::string_view number = line.substr(0, std::min(end, LogWording::kLongestNumber));
  line.remove_prefix(end);
  return number;
}

}  // namespace

LogWording::LogWording(std::string_view pattern) {
  std::size_t end = std::min(pattern.find_first_of("ND~E?"), pattern.size());
  if (end < pattern.size() && pattern[end] == '?') --end;
  KVSIM_CHECK(end > 0, "a wording begins with text: {}", pattern);
  anchor_ = pattern.substr(0, end);
  rest_ = pattern.substr(end);
}

bool LogWording::match(std::string_view line, std::vector<std::string_view>& numbers) const {
  numbers.clear();
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    const char c = rest_[i];
    if (c == '~' || c == 'E') {
      skip(line, c == '~' ? kBlanks : kEquals);
    } else if (c == 'N' || c == 'D') {
      const std::string_view number = take_number(line);
      if (number.empty()) return false;
      if (c == 'N') numbers.push_back(number);
    } else {
      const bool is_optional = i + 1 < rest_.size() && rest_[i + 1] == '?';
      const bool is_there = line.starts_with(c);
      if (!is_there && !is_optional) return false;
      if (is_there) line.remove_prefix(1);
      if (is_optional) ++i;
    }
  }
  return true;
}

bool LogWording::find_in(std::string_view line, std::vector<std::string_view>& numbers) const {
  for (std::size_t at = line.find(anchor_); at != std::string_view::npos;
       at = line.find(anchor_, at + 1)) {
    if (match(line.substr(at + anchor_.size()), numbers)) return true;
  }
  return false;
}

}  // namespace kvsim
