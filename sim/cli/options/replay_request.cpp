#include "sim/cli/options/replay_request.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/methods/params.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "models/units/error.hpp"
#include "models/units/units_parse.hpp"
#include "sim/own/own_method.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMaxThreads = 1024;

}  // namespace

std::map<std::string, std::string> load_method_libs(const Arguments& arguments) {
  std::map<std::string, std::string> files;
  for (const std::string& file : arguments.list("method-lib")) {
    if (!file.ends_with(".so") && !file.ends_with(".dylib")) {
      throw InputError{"--method-lib", "a shared library (.so)", fmt::format("\"{}\"", file)};
    }
    files.emplace(load_own_methods(file), file);
  }
  return files;
}

NamedMethods read_names(const Arguments& arguments) {
  NamedMethods methods;
  (void)load_method_libs(arguments);
  for (const std::string& name : arguments.list("method")) {
    if (name != "all") {
      methods.names.push_back(method_of_user(name));
      continue;
    }
    for (const MethodInfo& method : builtin_methods()) {
      methods.names.push_back(method.name);
      methods.whole_catalogue.insert(method.name);
    }
  }
  std::set<std::string> seen;
  for (const std::string& name : methods.names) {
    if (!seen.insert(name).second) {
      throw InputError{fmt::format("--method {} is given twice", name)};
    }
  }
  return methods;
}

std::vector<Budget> read_budgets(const Arguments& arguments, SmallCounts small) {
  std::vector<Budget> budgets;
  for (const std::string& text : arguments.list("budget")) {
    // Other words remain strings; read_budget reports the error.
    nlohmann::json value = text;
    if (const auto number = parse_number(text)) value = *number;
    if (const auto integer = parse_integer(text)) value = *integer;
    const Budget budget = read_budget(Field::wrap(std::move(value), "--budget"), small);
    for (const Budget& other : budgets) {
      if (budget_number(other) != budget_number(budget)) continue;
      throw InputError{fmt::format("--budget {} is given twice", text)};
    }
    budgets.push_back(budget);
  }
  return budgets;
}

ParamValue param_value(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (const auto integer = parse_integer(text)) return *integer;
  if (const auto number = parse_number(text)) return *number;
  return text;
}

NamedText split_named(std::string_view option, std::string_view wanted, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError{fmt::format("--{}", option), wanted, fmt::format("\"{}\"", word)};
  }
  return {word.substr(0, equals), word.substr(equals + 1)};
}

Params read_params(const Arguments& arguments) {
  Params params;
  for (const std::string& word : arguments.values("param")) {
    const auto [name, text] = split_named("param", "name=value", word);
    if (!params.emplace(name, param_value(text)).second) {
      throw InputError{fmt::format("--param {} is given twice", name)};
    }
  }
  return params;
}

namespace {

/// The entry of a single method; nullptr for compositions.
const MethodInfo* entry_of(const std::string& name) {
  for (const MethodInfo& method : builtin_methods()) {
    if (method.name == name) return &method;
  }
  const Preset* own = find_own_preset(name);
  return own == nullptr ? nullptr : &own->info;
}

}  // namespace

bool may_take(const std::string& name, const std::string& param) {
  const MethodInfo* method = entry_of(name);
  return method == nullptr || find_param(method->params, param) != nullptr;
}

void refuse_unless_taken(std::string_view option, const std::string& param,
                         const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const std::string& name : names) {
    if (may_take(name, param)) return;
    for (const ParamInfo& info : entry_of(name)->params) known.push_back(info.name);
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw InputError{fmt::format("--{}: {}", option, unknown_name("parameter", param, known))};
}

Option method_lib_option() {
  return {"method-lib", 0, "FILE.so", true,
          "a shared library with a method, for --method (docs/howto/own-method.md)"};
}

Option split_option() {
  return {"split", 0, "WORD", false,
          "end of the prompt in a marked trace: recorded, question-aware (answer_start) or "
          "question-agnostic (question_start)"};
}

Option memory_option() {
  return {"memory", 0, "SIZE", false,
          "memory for the vectors of a trace (2 GiB); default: a quarter of the machine"};
}

ReplayOptions read_replay_options(const Arguments& arguments) {
  ReplayOptions options;
  options.threads =
      static_cast<std::int32_t>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  options.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
  if (const auto text = arguments.value("memory")) {
    const auto bytes = parse_bytes(*text);
    if (!bytes || bytes->count() < 1) {
      throw InputError{"--memory", "a size such as \"2 GiB\"", fmt::format("\"{}\"", *text)};
    }
    options.memory = bytes->count();
  }
  if (const auto word = arguments.value("split")) {
    const auto split = split_of(*word);
    if (!split) {
      throw InputError{"--split", fmt::format("{}", fmt::join(kTraceSplits, ", ")),
                       fmt::format("\"{}\"", *word)};
    }
    options.split = *split;
  }
  return options;
}

std::vector<std::string> read_traces(const Arguments& arguments, std::string_view command) {
  std::vector<std::string> traces = arguments.values("trace");
  if (traces.empty())
    throw InputError{
        fmt::format("{0}: expected --trace FILE; `kvsim help {0}` shows how", command)};
  refuse_repeated_files("--trace ", traces);
  return traces;
}

}  // namespace kvsim
