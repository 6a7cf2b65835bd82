#include "validation/served/served_text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string out{text};
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view trimmed_text(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Returns the digits at `at` as a number and moves `at` past them; -1 if there are none or too
/// many.
std::int64_t digits(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  std::int64_t value = -1;
  if (at > begin && at - begin <= 12) {
    std::from_chars(text.data() + begin, text.data() + at, value);
  }
  return value;
}

}  // namespace

std::string plain_cell(std::string_view cell) {
  std::string out;
  int depth = 0;
  for (const char c : cell) {
    if (c == '(') ++depth;
    if (depth == 0) out += c;
    if (c == ')' && depth > 0) --depth;
  }
  return lower(trimmed_text(out));
}

std::string bracketed(std::string_view cell) {
  const auto open = cell.rfind('(');
  const auto close = cell.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  return lower(trimmed_text(cell.substr(open + 1, close - open - 1)));
}

std::optional<double> cell_number(std::string_view cell) {
  const std::string text = plain_cell(cell);
  double value = 0;
  const auto [end, failure] = number_from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || failure != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> cell_count(std::string_view cell) {
  const auto value = cell_number(cell);
  constexpr double kLargest = 1e9;
  if (!value || *value < 1 || *value > kLargest || *value != std::floor(*value)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*value);
}

bool EngineOption::is_on() const {
  const std::string word = plain_cell(value);
  return value.empty() || word == "true" || word == "on" || word == "enabled" || word == "1" ||
         word == "yes";
}

std::optional<double> EngineOption::number() const { return cell_number(value); }

std::vector<EngineOption> parse_options(std::string_view cell) {
  std::vector<EngineOption> options;
  while (!cell.empty()) {
    const auto end = std::min(cell.find(';'), cell.size());
    std::string_view part = trimmed_text(cell.substr(0, end));
    cell.remove_prefix(std::min(end + 1, cell.size()));
    if (part.empty()) continue;
    const auto equal = std::min(part.find('='), part.size());
    EngineOption option;
    option.name = lower(trimmed_text(part.substr(0, equal)));
    while (option.name.starts_with('-')) option.name.erase(0, 1);
    std::replace(option.name.begin(), option.name.end(), '-', '_');
    if (equal < part.size()) option.value = trimmed_text(part.substr(equal + 1));
    options.push_back(std::move(option));
  }
  return options;
}

std::vector<EngineOption> parse_sibling_options(std::string_view cell) {
  constexpr std::string_view kMark = " in siblings";
  std::vector<EngineOption> options;
  while (!cell.empty()) {
    const auto end = std::min(cell.find(';'), cell.size());
    const std::string_view part = cell.substr(0, end);
    cell.remove_prefix(std::min(end + 1, cell.size()));
    const std::string remark = bracketed(part);
    if (!remark.ends_with(kMark)) continue;
    const std::string value = remark.substr(0, remark.size() - kMark.size());
    for (EngineOption& option : parse_options(plain_cell(part) + "=" + value)) {
      options.push_back(std::move(option));
    }
  }
  return options;
}

namespace {

/// Returns the month whose name is at the end of `before`: 11 for "wheel of Nov "; 0 if there is
/// none.
std::int64_t named_month(std::string_view before) {
  constexpr std::string_view kMonths = "janfebmaraprmayjunjulaugsepoctnovdec";
  while (before.ends_with(' ')) before.remove_suffix(1);
  const std::size_t begin = before.find_last_of(" (,;") + 1;  // npos + 1 is 0
  std::string word;
  for (const char c : before.substr(begin)) {
    word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  constexpr std::size_t kLetters = 3;
  if (word.size() < kLetters) return 0;
  const std::size_t at = kMonths.find(word.substr(0, kLetters));
  return at == std::string_view::npos || at % kLetters != 0
             ? 0
             : static_cast<std::int64_t>(at / kLetters) + 1;
}

}  // namespace

std::optional<double> parse_date(std::string_view cell) {
  for (std::size_t at = 0; at + 4 <= cell.size(); ++at) {
    if (!is_digit(cell[at]) || (at > 0 && is_digit(cell[at - 1]))) continue;
    std::size_t end = at;
    const std::int64_t number = digits(cell, end);
    std::int64_t year = number;
    std::int64_t month = 0;
    if (end - at == 8) {  // 20260213
      year = number / 10000;
      month = number / 100 % 100;
    } else if (end - at != 4) {
      continue;
    } else if (end < cell.size() && cell[end] == '-') {
      std::size_t of_month = end + 1;
      const std::int64_t value = digits(cell, of_month);
      if (of_month - end == 3) month = value;
    }
    if (year < 2015 || year > 2100) continue;
    if (month < 1 || month > 12) month = named_month(cell.substr(0, at));
    const double since = static_cast<double>(year - 2000);
    if (month < 1 || month > 12) return since + 0.5;
    return since + (static_cast<double>(month) - 0.5) / 12;
  }
  return std::nullopt;
}

std::optional<std::array<std::int32_t, 3>> parse_release(std::string_view cell) {
  const std::string text = plain_cell(cell);
  std::size_t at = 0;
  while (at < text.size() && text[at] >= 'a' && text[at] <= 'z') ++at;
  if (at < text.size() && text[at] == ' ') ++at;
  if (at + 1 < text.size() && text[at] == 'v' && is_digit(text[at + 1])) ++at;
  std::array<std::int32_t, 3> out{};
  std::size_t parts = 0;
  while (parts < out.size() && at < text.size() && is_digit(text[at])) {
    const std::int64_t part = digits(text, at);
    if (part < 0 || part > 999) return std::nullopt;
    out[parts++] = static_cast<std::int32_t>(part);
    if (at >= text.size() || text[at] != '.') break;
    ++at;
  }
  if (parts < 2) return std::nullopt;
  return out;
}

std::optional<std::pair<std::int32_t, std::int32_t>> parse_apart(std::string_view cell) {
  const std::string text = plain_cell(cell);
  std::size_t at = 0;
  const std::int64_t prefill = digits(text, at);
  if (prefill < 1 || at >= text.size() || text[at] != 'p') return std::nullopt;
  const std::int64_t decode = digits(text, ++at);
  constexpr std::int64_t kMax = 4096;
  if (decode < 1 || decode > kMax || prefill > kMax) return std::nullopt;
  if (at + 1 != text.size() || text[at] != 'd') return std::nullopt;
  return std::pair{static_cast<std::int32_t>(prefill), static_cast<std::int32_t>(decode)};
}

std::optional<TokenRange> parse_range(std::string_view cell) {
  for (std::size_t at = 0; at < cell.size(); ++at) {
    if (!is_digit(cell[at])) continue;
    std::size_t end = at;
    const std::int64_t low = digits(cell, end);
    const bool dots = cell.substr(end).starts_with("..");
    if (end < cell.size() && (cell[end] == '-' || dots)) {
      std::size_t behind = end + (dots ? 2 : 1);
      const std::int64_t high = digits(cell, behind);
      if (low >= 0 && high >= low && high >= 1) return TokenRange{.low = low, .high = high};
    }
    at = end;
  }
  return std::nullopt;
}

std::optional<std::int64_t> number_behind(std::string_view cell, std::string_view name) {
  for (auto at = cell.find(name); at != std::string_view::npos; at = cell.find(name, at + 1)) {
    if (at > 0 && (std::isalnum(static_cast<unsigned char>(cell[at - 1])) || cell[at - 1] == '_')) {
      continue;
    }
    std::size_t behind = at + name.size();
    if (behind >= cell.size() || cell[behind] != '=') continue;
    ++behind;
    const std::int64_t value = digits(cell, behind);
    if (value >= 0) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> cell_sum(std::string_view cell,
                                     const std::map<std::string, std::int64_t>& words) {
  std::int64_t sum = 0;
  while (true) {
    const auto end = std::min(cell.find('+'), cell.size());
    const std::string_view term = cell.substr(0, end);
    if (const auto number = cell_count(term)) {
      sum += *number;
    } else if (const auto word = words.find(plain_cell(term)); word != words.end()) {
      sum += word->second;
    } else {
      return std::nullopt;
    }
    if (end == cell.size()) return sum;
    cell.remove_prefix(end + 1);
  }
}

}  // namespace kvsim
