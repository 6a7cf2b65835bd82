#include "sim/cli/scenario_flags.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/figure_options.hpp"
#include "sim/cli/model_argument.hpp"
#include "sim/cli/overrides.hpp"
#include "sim/cli/replay_request.hpp"
#include "sim/report/text.hpp"
#include "sim/scenario/document.hpp"
#include "sim/scenario/keys.hpp"
#include "sim/scenario/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kPlace = "options";  // what complaints call the scenario

constexpr std::array kFlags{"model",  "gpu",      "gpus",          "stack",  "method",
                            "budget", "param",    "batch",         "prompt", "output",
                            "dtype",  "kv-dtype", "print-scenario"};

/// One value alone, several as a list.
ordered_json one_or_list(std::vector<ordered_json> values) {
  if (values.size() == 1) return std::move(values.front());
  return values;
}

ordered_json words(const Arguments& arguments, std::string_view option) {
  const std::vector<std::string> list = arguments.list(option);
  return one_or_list({list.begin(), list.end()});
}

/// "4096", "32K" (32 x 1,024) or "1M" (1,024 x 1,024); nullopt: none of them.
std::optional<std::int64_t> count_of(std::string_view text) {
  constexpr std::int64_t kKilo = 1024;
  std::int64_t unit = 1;
  if (text.ends_with('K') || text.ends_with('k')) unit = kKilo;
  if (text.ends_with('M')) unit = kKilo * kKilo;
  if (unit > 1) text.remove_suffix(1);
  const auto number = parse_integer(text);
  if (!number || *number < 0 || *number > kMostPointTokens) return std::nullopt;
  return *number * unit;
}

ordered_json counts(const Arguments& arguments, std::string_view option, std::int64_t least,
                    std::int64_t most) {
  std::vector<ordered_json> values;
  for (const std::string& text : arguments.list(option)) {
    const auto count = count_of(text);
    if (!count || *count < least || *count > most) {
      throw InputError{fmt::format("--{}", option),
                       fmt::format("integers in [{}, {}], such as 4096 or 32K", least, most),
                       fmt::format("\"{}\"", text)};
    }
    values.emplace_back(*count);
  }
  return one_or_list(std::move(values));
}

ordered_json models(const Arguments& arguments) {
  std::vector<ordered_json> values;
  for (const std::string& name : arguments.list("model")) {
    const auto file = model_file(name, "--model");
    values.push_back(file ? ordered_json{{"config", file->string()}} : ordered_json(name));
  }
  return one_or_list(std::move(values));
}

/// Each method with the budgets and the parameters that it takes.
ordered_json methods(const Arguments& arguments, bool plans) {
  std::vector<std::string> names = arguments.list("method");
  if (names.empty()) names = {"full"};
  const bool has_full = std::find(names.begin(), names.end(), "full") != names.end();
  if (plans && !has_full) names.insert(names.begin(), "full");
  const Params params = read_params(arguments);
  for (const auto& [param, value] : params) refuse_unless_taken("param", param, names);
  std::vector<ordered_json> budgets;
  for (const Budget& budget : read_budgets(arguments)) {
    const double number = budget_number(budget);
    budgets.push_back(number > 1 ? ordered_json(static_cast<std::int64_t>(number))
                                 : ordered_json(number));
  }
  bool used = budgets.empty();
  std::vector<ordered_json> values;
  for (const std::string& name : names) {
    ordered_json method{{"name", name}};
    bool takes = false;
    try {
      takes = takes_budget(name);
    } catch (const InputError& error) {
      throw InputError{fmt::format("--method: {}", error.what())};
    }
    if (takes && !budgets.empty()) method["budget"] = one_or_list(budgets);
    used = used || takes;
    for (const auto& [param, value] : params) {
      if (!may_take(name, param)) continue;
      std::visit([&method, &key = param](const auto& v) { method[key] = v; }, value);
    }
    values.push_back(method.size() == 1 ? ordered_json(name) : std::move(method));
  }
  if (!used) throw InputError{"--budget: none of the methods takes one"};
  return one_or_list(std::move(values));
}

std::string name_words(const ordered_json& value) {
  if (value.is_array()) {
    std::string text;
    for (const auto& item : value)
      text += fmt::format("{}{}", text.empty() ? "" : " ", name_words(item));
    return text;
  }
  if (value.is_string()) return value.get<std::string>();
  if (value.contains("config")) {
    return std::filesystem::path{value.at("config").get<std::string>()}.parent_path().stem();
  }
  return value.contains("name") ? value.at("name").get<std::string>() : "";
}

}  // namespace

std::vector<Option> scenario_command_options(std::string out, std::string_view schema) {
  using V = Option::Values;
  return {{"out", 'o', "DIR", false, std::move(out), V::kFolders},
          {"set", 's', "/KEY=VALUE", true,
           "override a key of the scenario: JSON pointer, JSON value or a word"},
          skip_bad_option(),
          {"json", 0, "", false,
           fmt::format("print JSON (schema {}) and nothing else; no folder without -o", schema)},
          {"no-figures", 0, "", false, "leave figures and report.html out of the results folder"},
          {"no-report", 0, "", false, "leave report.html out of it"},
          formats_option(),
          {"threads", 'j', "N", false, "threads; 0: the machine's; no result depends on it"},
          {"quiet", 'q', "", false, "no summary, no progress"},
          {"model", 0, "NAME[,NAME…]", false, "the LLM, of `kvsim list models`, or a config.json",
           V::kModels},
          {"gpu", 0, "NAME[,NAME…]", false, "the GPU, of `kvsim list gpus`", V::kGpus},
          {"gpus", 0, "N[,N…]", false, "GPUs that share the model by tensor parallelism (1)"},
          {"stack", 0, "NAME[,NAME…]", false,
           "the software that serves, of `kvsim list stacks` (vllm)", V::kStacks},
          {"method", 'm', "NAME[,NAME…]", true,
           "how the cache is compressed, of `kvsim list methods` (full)", V::kMethods},
          {"budget", 'b', "B[,B…]", true,
           "what methods keep: share of the prompt's cache in (0, 1], or entries a head above 1"},
          {"param", 'p', "NAME=VALUE", true, "a parameter, for the methods that have it"},
          {"batch", 0, "N[,N…]", false, "sequences served together (1)"},
          {"prompt", 0, "TOKENS[,…]", false, "tokens of a prompt, such as 32K (8192)"},
          {"output", 0, "TOKENS[,…]", false, "tokens that a sequence generates (512)"},
          {"dtype", 0, "FORMAT[,…]", false, "format of the weights (as published)", V::kFormats},
          {"kv-dtype", 0, "FORMAT[,…]", false, "format of the cache (that of the weights)",
           V::kFormats},
          {"print-scenario", 0, "", false,
           "print the scenario that these options are, to go on from, and do nothing else"}};
}

bool asks_by_options(const Arguments& arguments) {
  const auto given = std::find_if(kFlags.begin(), kFlags.end(),
                                  [&](const char* flag) { return arguments.has(flag); });
  if (given == kFlags.end()) return false;
  if (!arguments.words().empty()) {
    throw InputError{
        fmt::format("--{} stands in place of a scenario file, and {} is named; --set "
                    "/KEY=VALUE changes a key of a file",
                    *given, arguments.words().front())};
  }
  for (const char* needed : {"model", "gpu"}) {
    if (!arguments.has(needed)) {
      throw InputError{
          fmt::format("--{} NAME is missing; `kvsim list {}s` has the names", needed, needed)};
    }
  }
  return true;
}

ordered_json scenario_by_options(const Arguments& arguments, bool plans) {
  json document{{"schema", "kvsim.scenario/1"}};
  document["model"] = models(arguments);
  document["gpu"] = words(arguments, "gpu");
  document["stack"] = arguments.has("stack") ? words(arguments, "stack") : kFlagStack;
  document["method"] = methods(arguments, plans);
  document["prompt_tokens"] = arguments.has("prompt")
                                  ? counts(arguments, "prompt", 1, kMostPointTokens)
                                  : ordered_json(kFlagPrompt);
  document["output_tokens"] = arguments.has("output")
                                  ? counts(arguments, "output", 0, kMostPointTokens)
                                  : ordered_json(kFlagOutput);
  if (arguments.has("gpus")) document["gpu_count"] = counts(arguments, "gpus", 1, kMostGpus);
  if (arguments.has("batch")) document["batch"] = counts(arguments, "batch", 1, kMostBatch);
  if (arguments.has("dtype")) document["dtype"] = words(arguments, "dtype");
  if (arguments.has("kv-dtype")) document["kv_dtype"] = words(arguments, "kv-dtype");
  if (plans) document["plan"] = {{"questions", {"longest_context", "largest_batch"}}};
  document["title"] = fmt::format("{} on {}, {}", name_words(document["model"]),
                                  name_words(document["gpu"]), name_words(document["method"]));
  for (const Override& change : read_overrides(arguments)) apply_override(document, change);
  for (const Override& change : skip_bad_overrides(arguments, document, kPlace)) {
    apply_override(document, change);
  }
  // In the order of the key table, as a person would write it.
  ordered_json out;
  for (const std::string& key : scenario_key_names("scenario")) {
    if (document.contains(key) && !document[key].is_null()) out[key] = document[key];
  }
  return out;
}

Scenario read_scenario_by_options(const ordered_json& document) {
  const std::string name =
      slug(fmt::format("{} {} {}", name_words(document.at("model")), name_words(document.at("gpu")),
                       name_words(document.at("method"))));
  return scenario_of(json(document), fmt::format("{}.json", name), kPlace, true);
}

}  // namespace kvsim
