#include "models/methods/params.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

[[noreturn]] void refuse(const std::string& method, const ParamInfo& info,
                         const ParamValue& value) {
  const std::string got = to_text(value);
  throw InputError{fmt::format("method \"{}\": parameter {}: expected {} ({}), got {}", method,
                               info.name, info.range, info.source, got.empty() ? "\"\"" : got)};
}

ParamValue checked(const std::string& method, const ParamInfo& info, const ParamValue& value) {
  if (std::holds_alternative<std::string>(info.default_value)) {
    const auto* word = std::get_if<std::string>(&value);
    if (word == nullptr ||
        (!info.words.empty() &&  // empty: any text, such as a path
         std::find(info.words.begin(), info.words.end(), *word) == info.words.end())) {
      refuse(method, info, value);
    }
    return value;
  }
  if (std::holds_alternative<bool>(info.default_value)) {
    if (!std::holds_alternative<bool>(value)) refuse(method, info, value);
    return value;
  }
  double number = 0;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    number = *real;
  } else {
    refuse(method, info, value);
  }
  if (!(number >= info.low && number <= info.high)) refuse(method, info, value);
  if (std::holds_alternative<std::int64_t>(info.default_value)) {
    if (number != std::floor(number)) refuse(method, info, value);
    return static_cast<std::int64_t>(number);
  }
  return number;
}

}  // namespace

std::string to_text(const ParamValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

const ParamInfo* find_param(const std::vector<ParamInfo>& known, std::string_view word) {
  for (const ParamInfo& info : known) {
    if (info.name == word) return &info;
    for (const std::string& alias : info.aliases) {
      if (alias == word) return &info;
    }
  }
  return nullptr;
}

bool means_the_same(const ParamInfo& a, const ParamInfo& b) {
  return a.name == b.name && a.default_value.index() == b.default_value.index() &&
         a.words == b.words && a.help == b.help;
}

Params resolve_params(const std::string& method, const std::vector<ParamInfo>& known,
                      const Params& given) {
  Params resolved;
  for (const ParamInfo& info : known) resolved[info.name] = info.default_value;
  Params seen;
  for (const auto& [word, value] : given) {
    const ParamInfo* info = find_param(known, word);
    if (info == nullptr) {
      std::vector<std::string> names;
      for (const ParamInfo& each : known) names.push_back(each.name);
      throw InputError{
          fmt::format("method \"{}\": {}", method, unknown_name("parameter", word, names))};
    }
    if (!seen.emplace(info->name, value).second) {
      throw InputError{
          fmt::format("method \"{}\": parameter {} is given twice", method, info->name)};
    }
    resolved[info->name] = checked(method, *info, value);
  }
  return resolved;
}

double param_number(const Params& params, const std::string& name) {
  const auto found = params.find(name);
  KVSIM_CHECK(found != params.end() && std::holds_alternative<double>(found->second),
              "no number \"{}\"", name);
  return std::get<double>(found->second);
}

std::int64_t param_integer(const Params& params, const std::string& name) {
  const auto found = params.find(name);
  KVSIM_CHECK(found != params.end() && std::holds_alternative<std::int64_t>(found->second),
              "no integer \"{}\"", name);
  return std::get<std::int64_t>(found->second);
}

const std::string& param_word(const Params& params, const std::string& name) {
  const auto found = params.find(name);
  KVSIM_CHECK(found != params.end() && std::holds_alternative<std::string>(found->second),
              "no word \"{}\"", name);
  return std::get<std::string>(found->second);
}

std::int64_t share_or_count(double value, std::int64_t whole) {
  return value < 1.0 ? static_cast<std::int64_t>(value * static_cast<double>(whole))
                     : static_cast<std::int64_t>(value);
}

}  // namespace kvsim
