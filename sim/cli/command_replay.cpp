#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/quality_options.hpp"
#include "sim/cli/options/replay_request.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/decoder/closed_loop.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/replay/loop_report.hpp"
#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/replay/replay_folder.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/replay/replay_summary.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/run/replay_job.hpp"
#include "sim/run/run_report.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kAggregateFolder = "aggregate";  // in a results folder of several traces

/// Each (method, budget) pair, with the parameters that the method has.
std::vector<MethodSpec> read_specs(const Arguments& arguments,
                                   const std::vector<std::string>& names) {
  const std::vector<Budget> budgets = read_budgets(arguments);
  const Params params = read_params(arguments);
  std::vector<MethodSpec> specs;
  for (const std::string& name : names) {
    MethodSpec spec{name, {}, {}};
    for (const auto& [param, value] : params) {
      if (may_take(name, param)) spec.params.emplace(param, value);
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
  for (const auto& [param, value] : params) refuse_unless_taken("param", param, names);
  return specs;
}

/// Sizes of --block-size without duplicates.
std::vector<std::int64_t> read_block_sizes(const Arguments& arguments) {
  constexpr std::int64_t kMaxEntries = 1 << 20;
  std::vector<std::int64_t> sizes;
  for (const std::string& text : arguments.list("block-size")) {
    const auto size = parse_integer(text);
    if (!size || *size < 1 || *size > kMaxEntries) {
      throw InputError{"--block-size", fmt::format("an integer in [1, {}]", kMaxEntries),
                       fmt::format("\"{}\"", text)};
    }
    if (std::find(sizes.begin(), sizes.end(), *size) != sizes.end()) {
      throw InputError{fmt::format("--block-size {} is given twice", *size)};
    }
    sizes.push_back(*size);
  }
  return sizes;
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
  const std::vector<AggregateRow> rows = aggregate(results_of(jobs));
  out["aggregate"] = aggregate_json(rows);
  out["finding"] = aggregate_finding(rows);  // not the first trace's
  return out;
}

/// Reports the traces missing after an interrupt and the command that runs them. Returns the exit
/// status.
int report_missing(std::size_t missing, std::size_t all) {
  write_err(missing_traces_line(missing, all));
  return interrupted_status();
}

/// Half of the machine's memory; the rest is for the rows of prompts.
Bytes memory_for_weights() {
  return Bytes{static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 2};
}

/// --closed-loop: runs a decoder with the methods' caches in the loop instead of a trace.
int run_loop(const Arguments& arguments) {
  for (const char* other :
       {"trace", "per-step", "per-head", "block-size", "dump-kept", "out", "no-figures",
        "no-report", "formats", "layers", "heads", "steps", "until", "memory"}) {
    if (arguments.has(other)) {
      throw InputError{fmt::format("--{} cannot be combined with --closed-loop", other)};
    }
  }
  const auto prompts = arguments.value("prompts");
  if (!prompts) throw InputError{"--closed-loop: expected --prompts FILE, got none"};
  if (!arguments.has("method")) throw InputError{"--closed-loop: expected --method NAME, got none"};
  const std::vector<MethodSpec> specs = read_specs(arguments, read_names(arguments).names);
  const ReplayOptions replays = read_replay_options(arguments);
  const Checkpoint checkpoint =
      read_checkpoint(*arguments.value("closed-loop"), memory_for_weights());
  const std::vector<LoopPrompt> tasks =
      read_prompts(*prompts, checkpoint.shape.vocab, checkpoint.shape.max_positions);
  LoopOptions options{
      .threads = replays.threads, .seed = replays.seed, .split = replays.split, .progress = {}};
  Progress progress{fmt::format("running {}", checkpoint.shape.model),
                    static_cast<double>(tasks.size()), "prompts"};
  StopOnInterrupt stops;
  const bool quiet = arguments.has("quiet");
  options.progress = [&](double done) {
    if (StopOnInterrupt::is_requested()) throw Interrupted{};
    if (!quiet) progress.update(done);
  };
  try {
    const LoopResult result = run_closed_loop(checkpoint, tasks, specs, options);
    if (arguments.has("json")) {
      write_out(to_file_text(loop_document(result)));
    } else if (!quiet) {
      write_out(loop_summary(result, terminal_width()));
    }
  } catch (const Interrupted&) {
    return interrupted_status();
  }
  return kDone;
}

int run_replay(const Arguments& arguments) {
  arguments.expect_words(0, 0, "only options: --trace FILE names a trace");
  if (arguments.has("closed-loop")) return run_loop(arguments);
  if (arguments.has("prompts"))
    throw InputError{"--prompts: expected --closed-loop FOLDER, got none"};
  const std::vector<std::string> traces = read_traces(arguments, "replay");
  if (!arguments.has("method"))
    throw InputError{"replay: expected --method NAME; `kvsim help replay` shows how"};
  const NamedMethods methods = read_names(arguments);
  const std::vector<MethodSpec> specs = read_specs(arguments, methods.names);
  const auto dump = arguments.value("dump-kept");
  if (dump && traces.size() > 1) throw InputError{"--dump-kept takes one trace at a time"};
  const auto out = arguments.value("out");
  const bool json = arguments.has("json");
  refuse_formats_without_folder(arguments, out.has_value());
  for (const char* left_out : {"no-figures", "no-report"}) {
    if (arguments.has(left_out) && !out) {
      throw InputError{fmt::format(
          "--{}: expected a results folder (-o DIR), got none: none is written", left_out)};
    }
  }
  for (const char* detail : {"per-step", "per-head"}) {
    // A results folder has both.
    if (arguments.has(detail) && !json && !out) {
      throw InputError{
          fmt::format("--{}: expected --json, or a results folder (-o DIR), got none", detail)};
    }
  }
  const FolderOptions writes = folder_options(arguments);

  ReplayOptions options = read_replay_options(arguments);
  options.per_step = arguments.has("per-step") || out.has_value();
  options.per_head = arguments.has("per-head") || out.has_value();
  options.kept_positions = dump.has_value();
  options.why_kept = out.has_value();
  options.block_sizes = read_block_sizes(arguments);
  const auto sample = [&](std::string_view option) {
    return arguments.integer(option, 1, kMaxSample).value_or(0);
  };
  options.layers = static_cast<std::int32_t>(sample("layers"));
  options.heads = static_cast<std::int32_t>(sample("heads"));
  options.steps = sample("steps");
  if (const auto until = arguments.value("until")) {
    options.until = read_share("--until", *until);
    if (*options.until <= 0) throw InputError{"--until", "a share above 0", *until};
  }

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
  std::optional<StopOnInterrupt> stops{std::in_place};
  for (std::size_t i = 0; i < traces.size() && !StopOnInterrupt::is_requested(); ++i) {
    Progress progress{fmt::format("replaying {}", fs::path{traces[i]}.stem().string()),
                      static_cast<double>(Trace::open(traces[i]).info().n_layers), "layers"};
    const bool quiet = arguments.has("quiet");
    options.progress = [&](double done) {
      if (StopOnInterrupt::is_requested()) throw Interrupted{};
      if (!quiet) progress.update(done);
    };
    try {
      jobs.push_back(run_replay_job(traces[i], specs, options, methods.whole_catalogue));
    } catch (const Interrupted&) {
      // Reported below.
    }
  }
  stops.reset();
  if (jobs.empty()) return report_missing(traces.size(), traces.size());
  const std::size_t missing = traces.size() - jobs.size();
  if (dump) {
    write_file_atomically(*dump, to_file_text(kept_document(jobs.front().result)));
  }
  std::string text;
  for (std::size_t i = 0; i < jobs.size(); ++i) {  // interrupted traces come last
    std::optional<ResultsFolder> written;
    if (out) {
      written = write_replay_results(jobs[i].result, jobs[i].skipped, folder_of(traces[i]), writes);
    }
    if (i > 0) text += "\n";
    text += replay_summary(jobs[i].result, jobs[i].skipped, written ? &*written : nullptr,
                           terminal_width());
  }
  if (jobs.size() > 1) {
    const std::vector<ReplayResult> results = results_of(jobs);
    std::optional<ResultsFolder> written;
    if (out) {
      written = write_aggregate_results(results, fs::path{*out} / kAggregateFolder, writes);
    }
    text += '\n';
    text += aggregate_summary(results, written ? &*written : nullptr, terminal_width());
  }
  if (json) {
    for (ReplayJob& job : jobs) {
      for (ReplayMethod& method : job.result.methods) {
        if (!arguments.has("per-head")) method.heads.clear();
        if (arguments.has("per-step")) continue;
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
  if (missing > 0) return report_missing(missing, traces.size());
  return kDone;
}

}  // namespace

Command replay_command() {
  return {.name = "replay",
          .summary = "replay a recorded attention trace through methods: size, traffic, error",
          .usage = "kvsim replay --trace FILE --method NAME[,NAME…] [--budget B[,B…]] [options]",
          .examples =
              "kvsim replay --trace traces/samples/books-treasure-512.safetensors \\\n"
              "      --method full,h2o,zeromerge --budget 0.1,0.2\n"
              "kvsim replay --trace T.safetensors --method zeromerge --param alpha=0.5 --json",
          .options =
              {{"trace", 't', "FILE", true, "attention trace (safetensors)"},
               {"method", 'm', "NAMES", true,
                "methods, joined by commas, or all (those that can run here); FILE.py:CLASS is "
                "a Python class with score()"},
               method_lib_option(),
               {"budget", 'b', "B", true,
                "share of the prompt's cache in (0, 1], or entries per head above 1; each is run "
                "with each method"},
               {"param", 'p', "NAME=VALUE", true, "a parameter, for the methods that have it"},
               split_option(),
               {"layers", 0, "N", false, "a random sample of layers: means have standard errors"},
               {"heads", 0, "N", false, "a sample of KV heads of each layer, likewise"},
               {"steps", 0, "N", false,
                "errors of a sample of at most N decode steps, likewise; sizes are of all steps"},
               {"until", 0, "SHARE", false,
                "add layers until the standard error of every mean error is below this: 1%"},
               {"closed-loop", 0, "FOLDER", false,
                "run a decoder instead of a trace: config.json and model.safetensors of a model "
                "of the Llama family"},
               {"prompts", 0, "FILE", false,
                "tasks of --closed-loop: JSONL with tokens, answer, task, question_start"},
               {"json", 0, "", false, "print JSON (schema kvsim.replay/1)"},
               {"per-step", 0, "", false, "with --json: the series over decode steps"},
               {"per-head", 0, "", false, "with --json: the means of every head"},
               {"block-size", 0, "N", true,
                "block size of a paged cache, in entries: report held, freed and wasted memory"},
               {"dump-kept", 0, "FILE", false, "write the positions kept at the end, as JSON"},
               {"out", 'o', "DIR", false, "write a results folder with figures"},
               {"no-figures", 0, "", false, "leave figures and report.html out of the folder"},
               {"no-report", 0, "", false, "leave report.html out of it"},
               formats_option(),
               {"seed", 0, "N", false, "seed of random methods (0)"},
               {"threads", 'j', "N", false,
                "threads (0: all of the machine); results do not depend on it"},
               memory_option(),
               {"quiet", 'q', "", false, "no summary, no progress"}},
          .run = run_replay};
}

}  // namespace kvsim
