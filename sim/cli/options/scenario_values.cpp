#include "sim/cli/options/scenario_values.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/units/dtype.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"
#include "models/units/units_parse.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMaxRate = 1e6;  // requests per second, as in scenario files

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

/// Parses "4096", "32K" (32 x 1,024) or "1M" (1,024 x 1,024); nullopt for any other text.
std::optional<std::int64_t> count_of(std::string_view text) {
  constexpr std::int64_t kKilo = 1024;
  std::int64_t unit = 1;
  if (text.ends_with('K') || text.ends_with('k')) unit = kKilo;
  if (text.ends_with('M')) unit = kKilo * kKilo;
  if (unit > 1) text.remove_suffix(1);
  const auto number = parse_integer(text);
  if (!number || *number < 0 || *number > kMaxPointTokens) return std::nullopt;
  return *number * unit;
}

/// Splits `text` into the number at its start and the rest without leading blanks.
std::pair<std::optional<double>, std::string_view> split_number(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = parse_number(text.substr(0, end));
  text.remove_prefix(end);
  while (text.starts_with(' ')) text.remove_prefix(1);
  return {number, text};
}

/// Converts "2.5", "$2.5", "2.2EUR" or "2.2 EUR/h" to the form "2.2 EUR/h"; empty for any other
/// text.
std::string price_of(std::string_view text) {
  if (text.starts_with('$')) text.remove_prefix(1);
  const auto [number, unit] = split_number(text);
  if (!number) return "";
  std::string currency{unit.substr(0, unit.find('/'))};
  if (unit != currency && unit != currency + "/h") return "";
  if (currency.empty()) currency = "USD";
  const bool is_word = std::all_of(currency.begin(), currency.end(),
                                   [](unsigned char c) { return std::isalpha(c) != 0; });
  return is_word ? fmt::format("{:g} {}/h", *number, currency) : "";
}

/// vLLM's names of quantizations and their weight formats, according to its documentation
/// ("Quantization"). `fp8` quantizes at load time, with one scale per tensor; `bitsandbytes` loads
/// 4-bit NF4.
struct QuantizationName {
  std::string_view name, format;
};
constexpr std::array kQuantizations{
    QuantizationName{"awq", "awq-int4"},   QuantizationName{"awq_marlin", "awq-int4"},
    QuantizationName{"gptq", "gptq-int4"}, QuantizationName{"gptq_marlin", "gptq-int4"},
    QuantizationName{"fp8", "fp8-tensor"}, QuantizationName{"bitsandbytes", "nf4"},
    QuantizationName{"mxfp4", "mxfp4"},
};

/// The catalogue's weight format called `word`; empty if there is none.
std::string weight_format_of(std::string_view word) {
  for (const WeightFormat& format : builtin_weight_formats()) {
    if (squeezed_name(format.name) == squeezed_name(word)) return std::string{format.name};
  }
  return "";
}

std::string lower(std::string_view text) {
  std::string out{text};
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// The words of `option`; empty if it is not given or is "auto".
std::vector<std::string> words_but_auto(const Arguments& arguments, std::string_view option) {
  std::vector<std::string> words = arguments.list(option);
  for (std::string& word : words) word = lower(word);
  const bool has_auto = std::find(words.begin(), words.end(), "auto") != words.end();
  if (has_auto && words.size() > 1) {
    throw InputError{arguments.typed(option), "\"auto\" alone or formats without it",
                     in_quotes(fmt::format("{}", fmt::join(words, ",")))};
  }
  if (has_auto) words.clear();
  return words;
}

[[noreturn]] void refuse_format(const std::string& option, const std::string& word,
                                std::vector<std::string> known) {
  const std::string near = nearest(word, known);
  throw InputError{fmt::format("{}: unknown format \"{}\"{}", option, word,
                               near.empty() ? fmt::format("; known: {}", fmt::join(known, ", "))
                                            : fmt::format("; did you mean \"{}\"?", near))};
}

}  // namespace

ordered_json one_or_list(std::vector<ordered_json> values) {
  if (values.size() == 1) return std::move(values.front());
  return values;
}

std::vector<ordered_json> read_counts(const Arguments& arguments, std::string_view option,
                                      std::int64_t min, std::int64_t max) {
  std::vector<ordered_json> values;
  for (const std::string& text : arguments.list(option)) {
    const auto count = count_of(text);
    if (!count || *count < min || *count > max) {
      throw InputError{arguments.typed(option),
                       max > 1024
                           ? fmt::format("integers in [{}, {}], such as 4096 or 32K", min, max)
                           : fmt::format("integers in [{}, {}]", min, max),
                       in_quotes(text)};
    }
    values.emplace_back(*count);
  }
  return values;
}

json number_or_text(const std::string& text) {
  if (const auto whole = parse_integer(text)) return *whole;
  if (const auto number = parse_number(text)) return *number;
  if (text == "true" || text == "false") return text == "true";
  return text;
}

json read_kinds(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::size_t colon = text.find(':');
  if (equals == std::string::npos && colon == std::string::npos) return number_or_text(text);
  json out = json::object();
  std::string_view rest = text;
  if (colon < equals) {
    out["kind"] = text.substr(0, colon);
    rest.remove_prefix(colon + 1);
  }
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const std::size_t at = part.find('=');
    if (at == std::string_view::npos || at == 0) {
      throw InputError{option, "KEY=VALUE,…", in_quotes(part)};
    }
    const std::string key{part.substr(0, at)};
    if (out.contains(key)) {
      throw InputError{fmt::format("{}: \"{}\" is given twice", option, key)};
    }
    const std::string value{part.substr(at + 1)};
    out[key] = key == "ramp" && parse_number(value) ? json(value + " s") : number_or_text(value);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return out;
}

std::vector<ordered_json> read_lengths(const Arguments& arguments, std::string_view option,
                                       std::int64_t min) {
  const std::string typed = arguments.typed(option);
  const std::string text = arguments.value(option).value_or("");
  // A distribution contains commas; the scenario's reader checks its members.
  if (text.find_first_of(":=") != std::string::npos) return {ordered_json(read_kinds(typed, text))};
  std::vector<ordered_json> values;
  for (const std::string& word : arguments.list(option)) {
    const std::size_t dash = word.find('-', 1);
    const auto low = count_of(word.substr(0, dash));
    const auto high = dash == std::string::npos ? low : count_of(word.substr(dash + 1));
    if (!low || !high || *low < min || *high < *low || *high > kMaxPointTokens) {
      throw InputError{typed,
                       fmt::format("tokens in [{}, {}], such as 4096, 32K, 1000-3000 or "
                                   "lognormal:mean=1000,p99=4000",
                                   min, kMaxPointTokens),
                       in_quotes(word)};
    }
    if (dash == std::string::npos) {
      values.emplace_back(*low);
    } else {
      values.push_back({{"kind", "uniform"}, {"min", *low}, {"max", *high}});
    }
  }
  return values;
}

std::vector<double> read_rates(const Arguments& arguments) {
  std::vector<double> rates;
  for (const std::string& text : arguments.list("rate")) {
    const auto [number, unit] = split_number(text);
    const bool is_per_second = unit.empty() || unit == "/s" || unit == "req/s" || unit == "rps";
    if (!number || !is_per_second || !(*number >= 1e-6 && *number <= kMaxRate)) {
      throw InputError{
          arguments.typed("rate"),
          fmt::format("requests per second in [0.000001, {:.0f}], such as 5", kMaxRate),
          in_quotes(text)};
    }
    if (std::find(rates.begin(), rates.end(), *number) != rates.end()) {
      throw InputError{fmt::format("{}: {} is given twice", arguments.typed("rate"), text)};
    }
    rates.push_back(*number);
  }
  return rates;
}

std::string read_time(const Arguments& arguments, std::string_view option) {
  const std::string text = arguments.value(option).value_or("");
  const auto [number, unit] = split_number(text);
  const std::string spaced =
      number ? fmt::format("{} {}", text.substr(0, text.find_first_not_of("0123456789.")), unit)
             : "";
  const auto time = parse_duration(spaced);
  if (!time || !(time->count() > 0)) {
    throw InputError{
        arguments.typed(option), "a time with its unit, such as 2s or 500ms",
        fmt::format(
            "{}{}", in_quotes(text),
            number && unit.empty() && *number > 0 ? fmt::format("; {0}s or {0}ms?", text) : "")};
  }
  return spaced;
}

ordered_json read_prices(const Arguments& arguments, const std::vector<std::string>& gpus) {
  constexpr std::string_view kWanted = "a price of one GPU per hour, such as 2.5 or 2.2EUR";
  const std::string typed = arguments.typed("price");
  const std::vector<std::string> words = arguments.list("price");
  ordered_json prices = ordered_json::object();
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string price = price_of(word.substr(equals == std::string::npos ? 0 : equals + 1));
    if (price.empty()) throw InputError{typed, kWanted, in_quotes(word)};
    if (equals == std::string::npos) {
      if (gpus.size() > 1 || words.size() > 1) {
        throw InputError{typed, fmt::format("a price for each GPU, such as {}=2.5", gpus.front()),
                         in_quotes(word)};
      }
      prices[gpus.front()] = price;
      continue;
    }
    std::string name;
    try {
      name = gpu_of_user(word.substr(0, equals)).gpu->name;
    } catch (const InputError& error) {
      throw InputError{fmt::format("{}: {}", typed, error.what())};
    }
    if (std::find(gpus.begin(), gpus.end(), name) == gpus.end()) {
      throw InputError{typed, fmt::format("prices of {}", fmt::join(gpus, ", ")),
                       fmt::format("one of {}", name)};
    }
    if (prices.contains(name)) {
      throw InputError{fmt::format("{}: {} is given twice", typed, name)};
    }
    prices[name] = price;
  }
  return prices;
}

double read_percentile(const Arguments& arguments) {
  const std::string text = arguments.value("percentile").value_or("");
  std::string_view word = text;
  if (word.starts_with('p') || word.starts_with('P')) word.remove_prefix(1);
  if (word.ends_with('%')) word.remove_suffix(1);
  const auto number = parse_number(word);
  if (!number || !(*number >= 1 && *number <= 100)) {
    const bool is_share = number && *number > 0 && *number < 1;
    throw InputError{arguments.typed("percentile"), "percent in [1, 100], such as 95",
                     fmt::format("{}{}", in_quotes(text),
                                 is_share ? fmt::format("; {:g}?", *number * 100) : "")};
  }
  return *number / 100;
}

double read_share(const Arguments& arguments, std::string_view option, double low, double high,
                  std::string_view hint) {
  const std::string text = arguments.value(option).value_or("");
  const auto number = parse_number(text);
  if (!number || !(*number >= low && *number <= high)) {
    const auto percent = parse_number(text.ends_with('%') ? text.substr(0, text.size() - 1) : text);
    const bool is_percent =
        percent && *percent >= 2 && *percent / 100 >= low && *percent / 100 <= high;
    throw InputError{arguments.typed(option),
                     fmt::format("a number in [{:g}, {:g}], {}", low, high, hint),
                     fmt::format("{}{}", in_quotes(text),
                                 is_percent ? fmt::format("; {:g}?", *percent / 100) : "")};
  }
  return *number;
}

std::vector<ordered_json> read_weight_formats(const Arguments& arguments) {
  const std::vector<std::string> dtypes = words_but_auto(arguments, "dtype");
  std::vector<ordered_json> values;
  for (const std::string& word : dtypes) {
    const auto dtype = parse_dtype(word);
    const std::string name = dtype ? std::string{name_of(*dtype)} : weight_format_of(word);
    if (name.empty()) {
      std::vector<std::string> known{"auto"};
      for (const auto& entry : kDtypes) known.emplace_back(entry.name);
      for (const WeightFormat& format : builtin_weight_formats()) known.emplace_back(format.name);
      refuse_format(arguments.typed("dtype"), word, std::move(known));
    }
    values.emplace_back(name);
  }
  if (!arguments.has("quantization")) return values;
  const std::string typed = arguments.typed("quantization");
  if (!values.empty()) {
    throw InputError{
        fmt::format("{} and {} both set the format of the weights; expected one of them",
                    arguments.typed("dtype"), typed)};
  }
  for (const std::string& text : arguments.list("quantization")) {
    const std::string word = lower(text);
    const auto named = std::find_if(kQuantizations.begin(), kQuantizations.end(),
                                    [&](const QuantizationName& q) { return q.name == word; });
    const std::string name =
        named == kQuantizations.end() ? weight_format_of(word) : std::string{named->format};
    if (name.empty()) {
      std::vector<std::string> known;
      for (const QuantizationName& q : kQuantizations) known.emplace_back(q.name);
      for (const WeightFormat& format : builtin_weight_formats()) known.emplace_back(format.name);
      refuse_format(typed, text, std::move(known));
    }
    values.emplace_back(name);
  }
  return values;
}

std::vector<ordered_json> read_cache_formats(const Arguments& arguments) {
  std::vector<ordered_json> values;
  for (const std::string& word : words_but_auto(arguments, "kv-dtype")) {
    const auto dtype = parse_dtype(word);
    if (!dtype && find_cache_format(word)) {
      values.emplace_back(word);
      continue;
    }
    if (!dtype) {
      std::vector<std::string> known{"auto"};
      for (const auto& entry : kDtypes) known.emplace_back(entry.name);
      known.insert(known.end(), cache_formats().begin(), cache_formats().end());
      refuse_format(arguments.typed("kv-dtype"), word, std::move(known));
    }
    values.emplace_back(name_of(*dtype));
  }
  return values;
}

}  // namespace kvsim
