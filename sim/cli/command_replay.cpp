#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/replay_job.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/atomic_file.hpp"
#include "sim/report/progress.hpp"
#include "sim/report/replay_aggregate.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/results_folder.hpp"
#include "sim/report/table.hpp"
#include "sim/scenario/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;
constexpr const char* kAggregateFolder = "aggregate";  // in a results folder of several traces

std::vector<Budget> read_budgets(const Arguments& arguments) {
  std::vector<Budget> budgets;
  for (const std::string& text : arguments.list("budget")) {
    // A word goes on as a word: read_budget words the complaint for all.
    nlohmann::json value = text;
    if (const auto number = parse_number(text)) value = *number;
    if (const auto integer = parse_integer(text)) value = *integer;
    const Budget budget = read_budget(Field::wrap(std::move(value), "--budget"));
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

Params read_params(const Arguments& arguments) {
  Params params;
  for (const std::string& text : arguments.values("param")) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError{"--param", "name=value", fmt::format("\"{}\"", text)};
    }
    if (!params.emplace(text.substr(0, equals), param_value(text.substr(equals + 1))).second) {
      throw InputError{fmt::format("--param {} is given twice", text.substr(0, equals))};
    }
  }
  return params;
}

/// Whether the method called `name` may take `param`: a preset that does not list it does not.
/// Compositions are left to make_method.
bool may_take(const std::string& name, const std::string& param) {
  for (const MethodInfo& method : builtin_methods()) {
    if (method.name != name) continue;
    return std::any_of(method.params.begin(), method.params.end(), [&](const ParamInfo& info) {
      return info.name == param ||
             std::find(info.aliases.begin(), info.aliases.end(), param) != info.aliases.end();
    });
  }
  return true;
}

/// The methods asked for; "all" stands for every one of the catalogue.
std::vector<std::string> read_names(const Arguments& arguments,
                                    std::set<std::string>* whole_catalogue = nullptr) {
  std::vector<std::string> names;
  for (const std::string& name : arguments.list("method")) {
    if (name != "all") {
      names.push_back(name);
      continue;
    }
    for (const MethodInfo& method : builtin_methods()) {
      names.push_back(method.name);
      if (whole_catalogue != nullptr) whole_catalogue->insert(method.name);
    }
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      throw InputError{fmt::format("--method {} is given twice", name)};
    }
  }
  return names;
}

/// Each (method, budget) pair; each parameter for the methods that have it.
std::vector<MethodSpec> read_specs(const Arguments& arguments) {
  const std::vector<std::string> names = read_names(arguments);
  const std::vector<Budget> budgets = read_budgets(arguments);
  const Params params = read_params(arguments);
  std::set<std::string> used;
  std::vector<MethodSpec> specs;
  for (const std::string& name : names) {
    MethodSpec spec{name, {}, {}};
    for (const auto& [param, value] : params) {
      if (!may_take(name, param)) continue;
      spec.params.emplace(param, value);
      used.insert(param);
    }
    if (budgets.empty() || !takes_budget(name)) {
      specs.push_back(spec);
      continue;
    }
    for (const Budget& budget : budgets) {
      spec.budget = budget;
      specs.push_back(spec);
    }
  }
  for (const auto& [param, value] : params) {
    if (used.contains(param)) continue;
    std::vector<std::string> known;
    for (const std::string& name : names) {
      for (const MethodInfo& method : builtin_methods()) {
        if (method.name != name) continue;
        for (const ParamInfo& info : method.params) known.push_back(info.name);
      }
    }
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    throw InputError{"--param: " + unknown_name("parameter", param, known)};
  }
  return specs;
}

std::vector<ReplayResult> results_of(const std::vector<ReplayJob>& jobs) {
  std::vector<ReplayResult> results;
  results.reserve(jobs.size());
  for (const ReplayJob& job : jobs) results.push_back(job.result);
  return results;
}

ordered_json document_of(const std::vector<ReplayJob>& jobs) {
  if (jobs.size() == 1) {
    ordered_json one = replay_document(jobs[0].result, jobs[0].skipped);
    add_layer_steps(one, jobs[0].result);
    return one;
  }
  ordered_json out;
  for (const ReplayJob& job : jobs) {
    ordered_json one = replay_document(job.result, job.skipped);
    add_layer_steps(one, job.result);
    if (out.is_null()) {
      out = one;
      out.erase("trace");
      out["traces"] = ordered_json::array();
      out["methods"] = ordered_json::array();
      out["skipped"] = ordered_json::array();
    }
    out["traces"].push_back(one["trace"]);
    for (auto& method : one["methods"]) out["methods"].push_back(std::move(method));
    for (auto& skipped : one["skipped"]) {
      skipped["trace"] = one["trace"];
      out["skipped"].push_back(std::move(skipped));
    }
  }
  out["aggregate"] = aggregate_json(aggregate(results_of(jobs)));
  return out;
}

int run_replay(const Arguments& arguments) {
  arguments.expect_words(0, 0, "");
  const std::vector<std::string> traces = arguments.values("trace");
  if (traces.empty()) throw InputError{"replay: --trace FILE is missing"};
  if (!arguments.has("method")) throw InputError{"replay: --method NAME is missing"};
  const std::vector<MethodSpec> specs = read_specs(arguments);
  std::set<std::string> whole_catalogue;
  (void)read_names(arguments, &whole_catalogue);
  const auto dump = arguments.value("dump-kept");
  if (dump && traces.size() > 1) throw InputError{"--dump-kept takes one trace at a time"};
  const auto out = arguments.value("out");
  const bool json = arguments.has("json");

  ReplayOptions options;
  options.threads =
      static_cast<std::int32_t>(arguments.integer("threads", 0, kMostThreads).value_or(0));
  options.per_step = arguments.has("per-step") || out.has_value();
  options.per_head = arguments.has("per-head");
  options.kept_positions = dump.has_value();
  options.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));

  const auto folder_of = [&](const std::string& trace) {
    return traces.size() == 1 ? fs::path{*out} : fs::path{*out} / fs::path{trace}.stem();
  };
  if (out) {
    std::set<fs::path> folders;
    if (traces.size() > 1) {
      folders.insert(fs::path{*out} / kAggregateFolder);
      check_results_folder(*folders.begin());
    }
    for (const std::string& trace : traces) {
      check_results_folder(folder_of(trace));
      if (!folders.insert(folder_of(trace)).second) {
        throw InputError{
            fmt::format("--out: two folders would be called {}", fs::path{trace}.stem().string())};
      }
    }
  }

  std::vector<ReplayJob> jobs;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    Progress progress{"replaying " + fs::path{traces[i]}.stem().string()};
    if (!arguments.has("quiet")) options.progress = [&](double done) { progress.update(done); };
    jobs.push_back(run_replay_job(traces[i], specs, options, whole_catalogue));
  }
  if (dump) {
    write_file_atomically(*dump, to_file_text(kept_document(jobs.front().result)));
  }
  std::string text;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::optional<ResultsFolder> written;
    if (out) {
      written = write_replay_results(jobs[i].result, jobs[i].skipped, folder_of(traces[i]),
                                     {.figures = !arguments.has("no-figures"), .gnuplot = {}});
    }
    if (i > 0) text += "\n";
    text += replay_summary(jobs[i].result, jobs[i].skipped, written ? &*written : nullptr,
                           terminal_width());
  }
  if (jobs.size() > 1) {
    const std::vector<ReplayResult> results = results_of(jobs);
    std::optional<ResultsFolder> written;
    if (out) {
      written = write_aggregate_results(results, fs::path{*out} / kAggregateFolder,
                                        {.figures = !arguments.has("no-figures"), .gnuplot = {}});
    }
    text += "\n" + aggregate_summary(results, written ? &*written : nullptr, terminal_width());
  }
  if (json && !arguments.has("per-step")) {
    for (ReplayJob& job : jobs) {
      for (ReplayMethod& method : job.result.methods) {
        method.series.clear();
        method.layer_series.clear();
      }
    }
  }
  if (json) {
    write_out(to_file_text(document_of(jobs)));
  } else if (!arguments.has("quiet")) {
    write_out(text);
  }
  return kDone;
}

}  // namespace

Command replay_command() {
  return {
      .name = "replay",
      .summary = "a recorded attention trace through compression methods: size, traffic, error",
      .usage = "kvsim replay --trace FILE --method NAME[,NAME…] [--budget B[,B…]] [options]",
      .examples =
          "kvsim replay --trace traces/samples/books-treasure-512.safetensors \\\n"
          "      --method full,h2o,zeromerge --budget 0.1,0.2\n"
          "kvsim replay --trace T.safetensors --method zeromerge --param alpha=0.5 --json",
      .options = {{"trace", 't', "FILE", true, "attention trace (safetensors)"},
                  {"method", 'm', "NAMES", true,
                   "methods, joined by commas, or all (those that can run here)"},
                  {"budget", 'b', "B", true,
                   "share of the prompt's cache in (0, 1], or entries per head above 1; each with "
                   "each method"},
                  {"param", 'p', "NAME=VALUE", true, "a parameter, for the methods that have it"},
                  {"json", 0, "", false, "print JSON (schema kvsim.replay/1)"},
                  {"per-step", 0, "", false, "with --json: the series over decode steps"},
                  {"per-head", 0, "", false, "with --json: the means of every head"},
                  {"dump-kept", 0, "FILE", false, "write the positions kept at the end, as JSON"},
                  {"out", 'o', "DIR", false, "write a results folder with figures"},
                  {"no-figures", 0, "", false, "leave figures out of it"},
                  {"seed", 0, "N", false, "seed of random methods (0)"},
                  {"threads", 'j', "N", false,
                   "threads; 0: the machine's; no result depends on it"},
                  {"quiet", 'q', "", false, "no summary, no progress"}},
      .run = run_replay};
}

}  // namespace kvsim
