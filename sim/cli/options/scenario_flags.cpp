#include "sim/cli/options/scenario_flags.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/cli/options/model_argument.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/options/replay_request.hpp"
#include "sim/cli/options/scenario_options.hpp"
#include "sim/cli/options/scenario_values.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/own/own_method.hpp"
#include "sim/report/text/text.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/read/read_scenario.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Of = ScenarioFlag::Of;

/// The minimum duration of the server scenario in MLPerf Inference (min_duration, 600 s). It is
/// long enough to reveal queues that grow slowly.
constexpr double kLoadSeconds = 600;
/// With this number, 10 requests are above the p99.
constexpr double kMinRequests = 1000;
constexpr double kMaxRequests = 1e8;  // of a workload, as in scenario files

/// Assumptions that are not in the command line, for standard error.
using Notes = std::vector<std::string>;

std::vector<std::string> strings(const ordered_json& one_or_more) {
  if (!one_or_more.is_array()) return {one_or_more.get<std::string>()};
  return one_or_more.get<std::vector<std::string>>();
}

/// Returns find(); prefixes its error with the option.
template <class Find>
decltype(auto) of_option(const Arguments& arguments, std::string_view option, Find find) {
  try {
    return find();
  } catch (const InputError& error) {
    throw InputError{fmt::format("{}: {}", arguments.typed(option), error.what())};
  }
}

ordered_json models(const Arguments& arguments) {
  std::vector<ordered_json> values;
  for (const std::string& name : arguments.list("model")) {
    if (const auto file = model_file(name, arguments.typed("model"))) {
      values.push_back({{"config", file->string()}});
    } else {
      values.emplace_back(of_option(arguments, "model", [&] { return find_llm(name).name; }));
    }
  }
  return one_or_list(std::move(values));
}

/// Throws InputError for "8xH100" and "H100x8".
void refuse_count_of_gpus(const Arguments& arguments, const std::string& name) {
  const auto digits = [](std::string_view text) {
    return !text.empty() && text.size() < 6 &&
           text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const auto refuse = [&](std::string_view gpu, std::string_view count) {
    throw InputError{
        fmt::format("{}: expected the name of one GPU, got \"{}\"; --gpu {} --tp {} shares "
                    "the model over {} GPUs",
                    arguments.typed("gpu"), name, gpu, count, count)};
  };
  const std::string_view text{name};
  const std::size_t first = text.find_first_of("xX");
  const std::size_t last = text.find_last_of("xX");
  if (first == std::string_view::npos) return;
  if (digits(text.substr(0, first))) refuse(text.substr(first + 1), text.substr(0, first));
  if (digits(text.substr(last + 1)) && last > 0 && std::isdigit(text[last - 1]) != 0) {
    refuse(text.substr(0, last), text.substr(last + 1));
  }
}

ordered_json gpus(const Arguments& arguments, Notes& notes) {
  std::vector<ordered_json> values;
  for (const std::string& name : arguments.list("gpu")) {
    refuse_count_of_gpus(arguments, name);
    const NamedGpu named = of_option(arguments, "gpu", [&] { return gpu_of_user(name); });
    values.emplace_back(named.gpu->name);
    if (!named.note.empty()) {
      notes.push_back(fmt::format("{}: {}", arguments.typed("gpu"), named.note));
    }
  }
  return one_or_list(std::move(values));
}

ordered_json stacks(const Arguments& arguments) {
  if (!arguments.has("stack")) return kFlagStack;
  std::vector<ordered_json> values;
  for (const std::string& name : arguments.list("stack")) {
    const Stack& stack =
        of_option(arguments, "stack", [&]() -> const Stack& { return find_stack(name); });
    // The version and the usage are kept as typed: "vllm@0.19:llm".
    values.emplace_back(stack.name + name.substr(std::min(name.find_first_of("@:"), name.size())));
  }
  return one_or_list(std::move(values));
}

/// Replaces methods of libraries in `name` by the libraries' files.
std::string with_files(const std::string& name, const std::map<std::string, std::string>& files) {
  std::string out;
  for (std::size_t first = 0; first <= name.size();) {
    const std::size_t end = std::min(name.find('+', first), name.size());
    const std::string part = name.substr(first, end - first);
    const auto file = files.find(part);
    out += fmt::format("{}{}", first > 0 ? "+" : "", file == files.end() ? part : file->second);
    first = end + 1;
  }
  return out;
}

/// Each method with the budgets and parameters that it supports.
ordered_json methods(const Arguments& arguments, bool plans) {
  std::vector<std::string> names;
  const std::map<std::string, std::string> libraries = load_method_libs(arguments);
  // Methods from files keep their file names, so that the scenario can be run again.
  std::map<std::string, std::string> written;
  for (const std::string& name : arguments.list("method")) {
    names.push_back(method_of_user(name));
    if (own_method_note(names.back())) written.emplace(names.back(), with_files(name, libraries));
  }
  if (names.empty()) names = {"full"};
  const bool has_full = std::find(names.begin(), names.end(), "full") != names.end();
  if (plans && !has_full) names.insert(names.begin(), "full");
  const Params params = read_params(arguments);
  for (const auto& [param, value] : params) refuse_unless_taken("param", param, names);
  std::vector<ordered_json> budgets;
  for (const Budget& budget : read_budgets(arguments, SmallCounts::kRefused)) {
    budgets.push_back(budget_value(budget));
  }
  bool is_used = budgets.empty();
  std::vector<ordered_json> values;
  for (const std::string& name : names) {
    const auto typed = written.find(name);
    ordered_json method{{"name", typed == written.end() ? name : typed->second}};
    const bool takes = of_option(arguments, "method", [&] { return takes_budget(name); });
    if (takes && !budgets.empty()) method["budget"] = one_or_list(budgets);
    is_used = is_used || takes;
    for (const auto& [param, value] : params) {
      if (!may_take(name, param)) continue;
      std::visit([&method, &key = param](const auto& v) { method[key] = v; }, value);
    }
    values.push_back(method.size() == 1 ? method.at("name") : std::move(method));
  }
  if (!is_used) {
    throw InputError{
        fmt::format("{}: none of the methods takes a budget; add one that does, such "
                    "as --method snapkv",
                    arguments.typed("budget"))};
  }
  return one_or_list(std::move(values));
}

std::string name_words(const ordered_json& value) {
  if (value.is_array()) {
    std::string text;
    for (const auto& item : value)
      text += fmt::format("{}{}", text.empty() ? "" : " ", name_words(item));
    return text;
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const bool is_file = text.find(".py:") != std::string::npos || text.ends_with(".so");
    return is_file ? std::filesystem::path{text}.filename().string() : text;
  }
  if (value.contains("config")) {
    return std::filesystem::path{value.at("config").get<std::string>()}.parent_path().stem();
  }
  return value.contains("name") ? name_words(value.at("name")) : "";
}

/// Lengths of prompts or outputs; adds a note if the default is used.
std::vector<ordered_json> lengths(const Arguments& arguments, std::string_view option,
                                  std::int64_t min, std::int64_t usual, Notes& notes) {
  if (arguments.has(option)) return read_lengths(arguments, option, min);
  notes.push_back(fmt::format("assumed: --{} {}", option, usual));
  return {ordered_json(usual)};
}

/// The default prompt length; shorter if --max-model-len minus the output is shorter.
std::int64_t usual_prompt(const Arguments& arguments) {
  if (!arguments.has("max-model-len")) return kFlagPrompt;
  const auto largest_of = [&](std::string_view option, std::int64_t min, std::int64_t otherwise) {
    std::int64_t out = min;
    if (!arguments.has(option)) return otherwise;
    for (const ordered_json& value : read_counts(arguments, option, min, kMaxPointTokens)) {
      out = std::max(out, value.get<std::int64_t>());
    }
    return out;
  };
  const bool is_number = arguments.has("osl") && !arguments.has("rate");
  const std::int64_t output = is_number ? largest_of("osl", 0, kFlagOutput) : kFlagOutput;
  return std::clamp<std::int64_t>(largest_of("max-model-len", 1, 0) - output, 1, kFlagPrompt);
}

/// Makes the first `prefix` tokens of the prompt the same in all requests.
void share_prefix(const Arguments& arguments, ordered_json& requests) {
  const std::int64_t prefix =
      read_counts(arguments, "prefix", 1, kMaxPointTokens).front().get<std::int64_t>();
  const ordered_json& prompt = requests.at("prompt_tokens");
  const std::string typed = arguments.typed("prefix");
  if (!prompt.is_number()) {
    throw InputError{
        fmt::format("{}: needs {} as one number; with a distribution, add "
                    "\"shared_prefix\" to the scenario of --print-scenario",
                    typed, arguments.typed("isl"))};
  }
  const auto length = prompt.get<std::int64_t>();
  if (prefix >= length) {
    throw InputError{typed, fmt::format("fewer tokens than {} {}", arguments.typed("isl"), length),
                     fmt::format("{}", prefix)};
  }
  requests["prompt_tokens"] = length - prefix;
  requests["shared_prefix"] = {{"tokens", prefix}, {"prompts", 1}};
}

/// The workloads of a service: each rate with each pair of lengths.
ordered_json workloads(const Arguments& arguments, Notes& notes) {
  const auto prompts = lengths(arguments, "isl", 1, usual_prompt(arguments), notes);
  const auto outputs = lengths(arguments, "osl", 0, kFlagOutput, notes);
  std::optional<std::int64_t> count;
  if (arguments.has("requests")) {
    count = read_counts(arguments, "requests", 1, static_cast<std::int64_t>(kMaxRequests))
                .front()
                .get<std::int64_t>();
  }
  std::vector<ordered_json> values;
  for (const double rate : read_rates(arguments)) {
    const double usual =
        std::min(kMaxRequests, std::max(kMinRequests, std::ceil(rate * kLoadSeconds)));
    for (const ordered_json& prompt : prompts) {
      for (const ordered_json& output : outputs) {
        const bool is_whole = rate == std::floor(rate);
        ordered_json requests{{"arrivals",
                               {{"kind", "poisson"},
                                {"rate", is_whole ? ordered_json(static_cast<std::int64_t>(rate))
                                                  : ordered_json(rate)}}},
                              {"count", count.value_or(static_cast<std::int64_t>(usual))},
                              {"prompt_tokens", prompt},
                              {"output_tokens", output},
                              // As in benchmark clients, max_tokens is the output length.
                              {"declared_tokens", "output"}};
        if (arguments.has("prefix")) share_prefix(arguments, requests);
        values.push_back(std::move(requests));
      }
    }
  }
  return one_or_list(std::move(values));
}

void add_service(const Arguments& arguments, json& document, Notes& notes) {
  document["kind"] = "serve";
  document["requests"] = workloads(arguments, notes);
  for (const char* bound : {"ttft", "tpot", "e2e"}) {
    if (arguments.has(bound)) document["slo"][bound] = read_time(arguments, bound);
  }
  if (arguments.has("pp")) {
    document["pipeline_parallel"] = one_or_list(read_counts(arguments, "pp", 1, 1024));
  }
  if (arguments.has("replicas")) {
    document["cluster"]["replicas"] = one_or_list(read_counts(arguments, "replicas", 1, 4096));
  }
  if (arguments.has("enable-prefix-caching")) {
    document["scheduler"]["prefix_caching"] = true;
    if (!arguments.has("prefix")) {
      notes.push_back(fmt::format("{}: the requests share no prefix; --prefix TOKENS sets one",
                                  arguments.typed("enable-prefix-caching")));
    }
  }
  if (arguments.has("no-enable-prefix-caching")) document["scheduler"]["prefix_caching"] = false;
}

void add_batches(const Arguments& arguments, json& document, Notes& notes) {
  const std::int64_t usual = usual_prompt(arguments);
  if (!arguments.has("isl") && usual < kFlagPrompt) {
    notes.push_back(fmt::format("assumed: --isl {}, as {} {} allows", usual,
                                arguments.typed("max-model-len"),
                                arguments.value("max-model-len").value_or("")));
  }
  document["prompt_tokens"] = arguments.has("isl")
                                  ? one_or_list(read_counts(arguments, "isl", 1, kMaxPointTokens))
                                  : ordered_json(usual);
  document["output_tokens"] = arguments.has("osl")
                                  ? one_or_list(read_counts(arguments, "osl", 0, kMaxPointTokens))
                                  : ordered_json(kFlagOutput);
  if (arguments.has("batch")) {
    document["batch"] = one_or_list(read_counts(arguments, "batch", 1, kMaxBatch));
  }
}

void add_engine(const Arguments& arguments, json& document) {
  const auto count = [&](const char* option, const char* key) {
    if (!arguments.has(option)) return;
    const auto values = read_counts(arguments, option, 1, kMaxPointTokens);
    if (values.size() > 1) {
      throw InputError{arguments.typed(option), "one number",
                       fmt::format("{}", arguments.value(option).value_or(""))};
    }
    document["engine"][key] = values.front();
  };
  count("max-model-len", "max_model_len");
  count("max-num-seqs", "max_num_seqs");
  count("max-num-batched-tokens", "prefill_chunk");
  count("block-size", "block_tokens");
  if (arguments.has("gpu-memory-utilization")) {
    document["engine"]["memory_fraction"] =
        read_share(arguments, "gpu-memory-utilization", 0.01, 1, "such as 0.9");
  }
  if (arguments.has("enforce-eager")) document["engine"]["cuda_graphs"] = false;
}

void add_plan(const Arguments& arguments, json& document, bool serves) {
  ordered_json plan;
  if (serves) {
    plan["questions"] = {"fewest_gpus"};
  } else {
    plan["questions"] = {"longest_context", "largest_batch"};
  }
  if (arguments.has("confidence")) {
    plan["confidence"] = read_share(arguments, "confidence", 0, 0.999, "such as 0.9");
  }
  if (arguments.has("percentile")) plan["attainment"] = read_percentile(arguments);
  if (arguments.has("price")) {
    plan["prices"] = read_prices(arguments, strings(document["gpu"]));
  }
  if (arguments.has("max-gpus")) {
    plan["most_gpus"] = read_counts(arguments, "max-gpus", 1, 4096).front();
  }
  if (arguments.has("layouts")) {
    plan["layouts"] = read_counts(arguments, "layouts", 1, 1024).front();
  }
  if (arguments.has("disaggregated")) plan["disaggregated"] = true;
  document["plan"] = std::move(plan);
}

/// Rejects options of services without --rate, options of batches with --rate, and contradictory
/// pairs.
void check_together(const Arguments& arguments) {
  const bool serves = arguments.has("rate");
  for (const ScenarioFlag& flag : scenario_flags()) {
    if (!arguments.has(flag.name)) continue;
    const std::string typed = arguments.typed(flag.name);
    if (flag.of == Of::kServices && !serves) {
      throw InputError{
          fmt::format("{}: applies to services, but there is no load; add its requests per second, "
                      "such as --rate 5",
                      typed)};
    }
    if (flag.of == Of::kBatches && serves) {
      throw InputError{
          fmt::format("{}: applies to static batches, but {} makes a service, which forms "
                      "its own batches; --max-num-seqs bounds them",
                      typed, arguments.typed("rate"))};
    }
  }
  if (arguments.has("enable-prefix-caching") && arguments.has("no-enable-prefix-caching")) {
    throw InputError{fmt::format("{} and {} contradict each other",
                                 arguments.typed("enable-prefix-caching"),
                                 arguments.typed("no-enable-prefix-caching"))};
  }
}

/// Whether --set sets the key at `pointer`.
bool is_set(const Arguments& arguments, const std::string& pointer) {
  const std::vector<Override> changes = read_overrides(arguments);
  return std::any_of(changes.begin(), changes.end(),
                     [&](const Override& change) { return change.pointer == pointer; });
}

}  // namespace

bool asks_by_options(const Arguments& arguments) {
  const auto flags = scenario_flags();
  const auto given = std::find_if(flags.begin(), flags.end(), [&](const ScenarioFlag& flag) {
    return arguments.has(flag.name);
  });
  if (given == flags.end()) return false;
  if (!arguments.words().empty()) {
    const std::string hint =
        given->pointer.empty()
            ? fmt::format("{} applies to scenarios made of options", arguments.typed(given->name))
            : fmt::format("--set {}=VALUE changes the file's key", given->pointer);
    throw InputError{fmt::format("{}: expected options or a scenario file, got both ({}); {}",
                                 arguments.typed(given->name), arguments.words().front(), hint)};
  }
  for (const std::string needed : {"model", "gpu"}) {
    if (arguments.has(needed) || is_set(arguments, "/" + needed)) continue;
    const bool is_method = needed == "model" && arguments.typed("method") == "-m";
    throw InputError{fmt::format("--{} NAME is missing{}; `kvsim list {}s` has the names", needed,
                                 is_method ? " (-m names a method)" : "", needed)};
  }
  check_together(arguments);
  return true;
}

bool has_plan_options(const Arguments& arguments) {
  const auto flags = scenario_flags();
  return std::any_of(flags.begin(), flags.end(), [&](const ScenarioFlag& flag) {
    return flag.is_of_plans && arguments.has(flag.name);
  });
}

OptionScenario scenario_by_options(const Arguments& arguments, bool plans) {
  const bool serves = arguments.has("rate");
  if (plans && serves && !arguments.has("ttft") && !arguments.has("tpot") &&
      !arguments.has("e2e")) {
    throw InputError{
        fmt::format("{}: a plan of a service needs a bound: --ttft, --tpot or --e2e, "
                    "such as --ttft 2s",
                    arguments.typed("rate"))};
  }
  Notes notes;
  json document{{"schema", "kvsim.scenario/1"}};
  if (arguments.has("model")) document["model"] = models(arguments);
  if (arguments.has("gpu")) document["gpu"] = gpus(arguments, notes);
  document["stack"] = stacks(arguments);
  document["method"] = methods(arguments, plans);
  if (arguments.has("tp")) {
    document["gpu_count"] = one_or_list(read_counts(arguments, "tp", 1, kMaxGpus));
  }
  if (auto formats = read_weight_formats(arguments); !formats.empty()) {
    document["dtype"] = one_or_list(std::move(formats));
  }
  if (auto formats = read_cache_formats(arguments); !formats.empty()) {
    document["kv_dtype"] = one_or_list(std::move(formats));
  }
  if (serves) {
    add_service(arguments, document, notes);
  } else {
    add_batches(arguments, document, notes);
  }
  add_engine(arguments, document);
  if (plans) add_plan(arguments, document, serves);
  if (arguments.has("beyond-positions")) document["plan"]["beyond_positions"] = true;
  for (const Override& change : read_overrides(arguments)) apply_override(document, change);
  for (const Override& change :
       skip_bad_overrides(arguments, document, std::string{kOptionsPlace})) {
    apply_override(document, change);
  }
  if (!document.contains("title")) {
    document["title"] = fmt::format(
        "{} on {}, {}{}", name_words(document["model"]), name_words(document["gpu"]),
        name_words(document["method"]),
        serves ? fmt::format(", {:g} requests/s", fmt::join(read_rates(arguments), ",")) : "");
  }
  // In the order of the key table.
  ordered_json out;
  for (const std::string& key : scenario_key_names("scenario")) {
    if (document.contains(key) && !document[key].is_null()) out[key] = document[key];
  }
  // Unknown keys from --set; the reader rejects them.
  for (const auto& [key, value] : document.items()) {
    if (!out.contains(key) && !value.is_null()) out[key] = value;
  }
  const std::string name =
      slug(fmt::format("{} {} {}", name_words(document["model"]), name_words(document["gpu"]),
                       name_words(document["method"])));
  OptionScenario made{.document = std::move(out), .scenario = {}};
  try {
    made.scenario = scenario_of(json(made.document), fmt::format("{}.json", name),
                                std::string{kOptionsPlace}, true);
  } catch (const InputError& error) {
    throw named_by_option(error, arguments);
  }
  if (!arguments.has("quiet")) {
    for (const std::string& note : notes) write_err(fmt::format("kvsim: note: {}\n", note));
  }
  return made;
}

}  // namespace kvsim
