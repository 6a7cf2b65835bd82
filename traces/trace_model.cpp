#include "traces/trace_model.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "models/units/units_format.hpp"

namespace kvsim {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

/// Returns the first number in the name that is followed by "M" or "B" at the end of a word: 2.6e6
/// of "books-2.6M-B".
std::optional<double> size_in_name(std::string_view name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool starts = std::isdigit(static_cast<unsigned char>(name[i])) != 0 &&
                        (i == 0 || (!is_letter(name[i - 1]) && name[i - 1] != '.'));
    if (!starts) continue;
    double number = 0;
    const auto [end, error] = std::from_chars(name.data() + i, name.data() + name.size(), number,
                                              std::chars_format::fixed);
    const std::size_t unit = static_cast<std::size_t>(end - name.data());
    if (error == std::errc{} && unit < name.size() && number > 0) {
      const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(name[unit])));
      const bool ends = unit + 1 == name.size() || !is_letter(name[unit + 1]);
      if (ends && letter == 'M') return number * 1e6;
      if (ends && letter == 'B') return number * 1e9;
    }
    i = std::max(i, unit == 0 ? i : unit - 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> trace_parameters(const TraceInfo& info) {
  const auto given = info.metadata.find("parameters");
  if (given == info.metadata.end()) return size_in_name(info.model);
  double number = 0;  // checked when the trace was opened
  std::from_chars(given->second.data(), given->second.data() + given->second.size(), number);
  return number > 0 ? std::optional{number} : std::nullopt;
}

std::string parameters_text(double parameters) {
  constexpr double kMillion = 1e6;
  constexpr double kBillion = 1e9;
  if (parameters >= kBillion) return fmt::format("{:.3g}B", parameters / kBillion);
  if (parameters >= kMillion) return fmt::format("{:.3g}M", parameters / kMillion);
  return fmt::format("{:.0f}", parameters);
}

std::string trace_words(const TraceInfo& info) {
  const auto parameters = trace_parameters(info);
  const std::string model =
      parameters ? parameters_text(*parameters) + "-parameter model" : "model of unknown size";
  return fmt::format("{}, {} + {} tokens", info.model == "synthetic" ? "synthetic vectors" : model,
                     with_commas(info.prompt_tokens),
                     with_commas(info.tokens - info.prompt_tokens));
}

}  // namespace kvsim
