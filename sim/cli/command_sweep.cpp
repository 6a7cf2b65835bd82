#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/options/replay_request.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/scenario_sweep_job.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/run/replay_job.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr double kMaxCombinations = 10'000;

/// Whether two values are equal: 1 and 1.0 are, 1 and true are not.
bool same_value(const ParamValue& a, const ParamValue& b) {
  const auto as_number = [](const ParamValue& value) -> std::optional<double> {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      return static_cast<double>(*integer);
    }
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return std::nullopt;
  };
  const auto x = as_number(a);
  const auto y = as_number(b);
  return x && y ? *x == *y : a == b;
}

SweepAxis read_axis(const std::string& word) {
  const auto [name, text] = split_named("vary", "name=value,value,…", word);
  SweepAxis axis{name, {}};
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    const std::string part = text.substr(from, comma - from);
    if (part.empty()) {
      throw InputError{fmt::format("--vary {}", name), "values separated by single commas",
                       fmt::format("\"{}\"", text)};
    }
    ParamValue value = param_value(part);
    for (const ParamValue& other : axis.values) {
      if (same_value(other, value)) {
        throw InputError{fmt::format("--vary {}: {} is given twice", name, part)};
      }
    }
    axis.values.push_back(std::move(value));
    from = comma + 1;
  }
  return axis;
}

std::vector<SweepAxis> read_axes(const Arguments& arguments, const Params& fixed) {
  std::vector<SweepAxis> axes;
  for (const std::string& word : arguments.values("vary")) {
    SweepAxis axis = read_axis(word);
    if (axis.name == "budget") {
      throw InputError{"--vary budget: budgets are varied by --budget, such as --budget 0.1,0.2"};
    }
    if (fixed.contains(axis.name)) {
      throw InputError{fmt::format("{} is both varied (--vary) and fixed (--param)", axis.name)};
    }
    for (const SweepAxis& other : axes) {
      if (other.name == axis.name) {
        throw InputError{fmt::format("--vary {} is given twice", axis.name)};
      }
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

/// The requested methods; methods added by "all" only if they have a varied parameter.
std::vector<std::string> varied_methods(const NamedMethods& methods,
                                        const std::vector<SweepAxis>& axes) {
  std::vector<std::string> out;
  for (const std::string& name : methods.names) {
    const bool has_one = std::any_of(
        axes.begin(), axes.end(), [&](const SweepAxis& axis) { return may_take(name, axis.name); });
    if (has_one || !methods.whole_catalogue.contains(name)) out.push_back(name);
  }
  return out;
}

/// The budgets that a method runs with; nullopt (its default) if it has no budget or none is given.
std::vector<std::optional<Budget>> budgets_of(const std::string& name,
                                              const std::vector<Budget>& budgets) {
  if (budgets.empty() || !takes_budget(name)) return {std::nullopt};
  return {budgets.begin(), budgets.end()};
}

void refuse_too_many(const ReplaySweep& sweep) {
  double total = 0;
  for (const std::string& name : sweep.methods) {
    auto product = static_cast<double>(budgets_of(name, sweep.budgets).size());
    for (const SweepAxis& axis : sweep.axes) {
      if (may_take(name, axis.name)) product *= static_cast<double>(axis.values.size());
    }
    total += product;
  }
  if (total > kMaxCombinations) {
    throw InputError{fmt::format("sweep: the lists make {} combinations, more than {}", total,
                                 kMaxCombinations)};
  }
}

void add_cells(const std::string& name, const std::optional<Budget>& budget, ReplaySweep& sweep) {
  std::vector<std::size_t> sizes;  // 1 if the method does not have the parameter
  std::size_t product = 1;
  for (const SweepAxis& axis : sweep.axes) {
    sizes.push_back(may_take(name, axis.name) ? axis.values.size() : 1);
    product *= sizes.back();
  }
  std::vector<std::size_t> at(sizes.size(), 0);
  for (; product > 0; --product) {
    SweepCell cell{{name, {}, budget}, {}};
    for (const auto& [param, value] : sweep.fixed) {
      if (may_take(name, param)) cell.spec.params.emplace(param, value);
    }
    for (std::size_t a = 0; a < at.size(); ++a) {
      const SweepAxis& axis = sweep.axes[a];
      cell.values.emplace_back();
      if (!may_take(name, axis.name)) continue;
      cell.values.back() = axis.values[at[a]];
      cell.spec.params.emplace(axis.name, axis.values[at[a]]);
    }
    sweep.cells.push_back(std::move(cell));
    for (std::size_t a = at.size(); a-- > 0;) {
      if (++at[a] < sizes[a]) break;
      at[a] = 0;
    }
  }
}

ReplaySweep read_grid(const Arguments& arguments) {
  ReplaySweep sweep;
  sweep.fixed = read_params(arguments);
  sweep.axes = read_axes(arguments, sweep.fixed);
  const NamedMethods named = read_names(arguments);
  for (const std::string& name : named.names) (void)takes_budget(name);  // throws for unknown names
  for (const SweepAxis& axis : sweep.axes) refuse_unless_taken("vary", axis.name, named.names);
  for (const auto& [param, value] : sweep.fixed) refuse_unless_taken("param", param, named.names);
  sweep.methods = varied_methods(named, sweep.axes);
  sweep.budgets = read_budgets(arguments);
  refuse_too_many(sweep);
  for (const std::string& name : sweep.methods) {
    for (const auto& budget : budgets_of(name, sweep.budgets)) add_cells(name, budget, sweep);
  }
  return sweep;
}

/// Rejects options of one kind of sweep in the other kind.
void refuse_options(const Arguments& arguments, const std::vector<std::string>& options,
                    std::string_view why) {
  for (const std::string& option : options) {
    if (arguments.has(option)) throw InputError{fmt::format("sweep: --{} {}", option, why)};
  }
}

int run_sweep(const Arguments& arguments) {
  if (!arguments.words().empty()) {
    refuse_options(arguments, {"trace", "method", "budget", "param"},
                   "applies to replays; keys of a scenario are varied by --vary /key=value,value");
    return run_scenario_sweep(arguments);
  }
  if (!arguments.has("trace") && !arguments.has("method")) {
    throw InputError{
        "sweep: expected a scenario file, or --trace FILE; `kvsim help sweep` shows how"};
  }
  refuse_options(arguments,
                 {"set", "skip-bad", "samples", "skip-impossible", "resume", "no-figures"},
                 "applies to scenarios, not to sweeps of replays");
  const std::vector<std::string> traces = read_traces(arguments, "sweep");
  if (!arguments.has("method"))
    throw InputError{"sweep: expected --method NAME; `kvsim help sweep` shows how"};
  if (!arguments.has("vary"))
    throw InputError{"sweep: expected --vary NAME=VALUE,VALUE; `kvsim help sweep` shows how"};
  ReplaySweep sweep = read_grid(arguments);
  ReplayOptions options = read_replay_options(arguments);
  const auto out = arguments.value("out");
  refuse_formats_without_folder(arguments, out.has_value());
  const FolderOptions writes = folder_options(arguments);
  if (out) check_results_folder(*out);

  std::vector<MethodSpec> specs;
  for (const SweepCell& cell : sweep.cells) specs.push_back(cell.spec);
  // Any combination may be invalid: a value out of its range, more slots than the budget.
  const std::set<std::string> all{sweep.methods.begin(), sweep.methods.end()};
  const bool quiet = arguments.has("quiet");
  std::optional<StopOnInterrupt> stops{std::in_place};
  for (std::size_t i = 0; i < traces.size() && !StopOnInterrupt::is_requested(); ++i) {
    Progress progress{"replaying " + fs::path{traces[i]}.stem().string(),
                      static_cast<double>(Trace::open(traces[i]).info().n_layers), "layers"};
    options.progress = [&](double done) {
      if (StopOnInterrupt::is_requested()) throw Interrupted{};
      if (!quiet) progress.update(done);
    };
    try {
      sweep.jobs.push_back(run_replay_job(traces[i], specs, options, all));
    } catch (const Interrupted&) {
      // Reported below.
    }
  }
  stops.reset();  // an interrupt during writing ends the program and removes partial files
  const std::size_t missing = traces.size() - sweep.jobs.size();
  if (missing > 0) {
    sweep.notes.push_back(fmt::format("interrupted: {} of {} traces are missing, from {} on",
                                      missing, traces.size(),
                                      fs::path{traces[sweep.jobs.size()]}.stem().string()));
  }
  if (sweep.jobs.empty()) {
    write_err(missing_traces_line(missing, traces.size()));
    return interrupted_status();
  }
  std::optional<ResultsFolder> written;
  if (out) {
    written = write_sweep_results(sweep, *out, writes);
  }
  if (arguments.has("json")) {
    write_out(to_file_text(sweep_document(sweep)));
  } else if (!quiet) {
    write_out(sweep_summary(sweep, written ? &*written : nullptr, terminal_width()));
  }
  if (missing > 0) {
    write_err(missing_traces_line(missing, traces.size()));
    return interrupted_status();
  }
  return kDone;
}

}  // namespace

Command sweep_command() {
  return {
      .name = "sweep",
      .summary = "run a scenario over many values of its keys, or replays over method parameters",
      .usage =
          "kvsim sweep SCENARIO.json [--vary /KEY=V,V…] [options]\n"
          "kvsim sweep --trace FILE --method NAME[,NAME…] --vary PARAM=V,V… [options]",
      .examples =
          "kvsim sweep scenarios/sweep-methods.json -j 0\n"
          "kvsim sweep my.json --vary /batch=1,2,4,8 --vary '/memory/hbm=80 GiB,141 GiB'\n"
          "mpirun -n 64 kvsim sweep big.json -o results --resume\n"
          "kvsim sweep --trace traces/samples/books-treasure-512.safetensors \\\n"
          "      --method zeromerge --vary alpha=0.2,0.6,1.0 --vary residual_slots=1,4 \\\n"
          "      --budget 0.1,0.2\n"
          "kvsim sweep --trace T.safetensors --method full,snapkv --vary window=8,32 \\\n"
          "      --param kernel=5 --budget 0.2 --json",
      .options = {{"trace", 't', "FILE", true,
                   "attention trace (safetensors); repeatable, means over all are added"},
                  {"method", 'm', "NAMES", true,
                   "methods, joined by commas, or all (those that have a varied parameter)"},
                  method_lib_option(),
                  {"vary", 'v', "NAME=V,V", true,
                   "a key of the scenario (/JSON/POINTER), or a parameter of the methods that have "
                   "it, and its values; all combinations are run"},
                  {"set", 's', "/KEY=VALUE", true, "override a key of the scenario",
                   Option::Values::kKeys},
                  skip_bad_option(),
                  {"samples", 0, "N", false,
                   "N random combinations of a scenario's values instead of all"},
                  {"skip-impossible", 0, "", false,
                   "list invalid points of a scenario instead of refusing the sweep"},
                  {"resume", 0, "", false, "continue the sweep in the results folder"},
                  {"no-figures", 0, "", false, "leave figures and report.html out (scenarios)"},
                  {"no-report", 0, "", false, "leave report.html out"},
                  formats_option(),
                  {"budget", 'b', "B", true,
                   "share of the prompt's cache in (0, 1], or entries per head above 1; each is "
                   "run with each combination"},
                  {"param", 'p', "NAME=VALUE", true, "a fixed parameter"},
                  split_option(),
                  {"json", 0, "", false, "print JSON (kvsim.scenario-sweep/1, kvsim.sweep/1)"},
                  {"out", 'o', "DIR", false,
                   "results folder (scenarios: kvsim-out/NAME; replays: none)"},
                  {"seed", 0, "N", false, "seed of the samples, or of replayed random methods"},
                  {"threads", 'j', "N", false,
                   "threads (0: all of the machine); results do not depend on it"},
                  memory_option(),
                  {"quiet", 'q', "", false, "no summary, no progress"}},
      .run = run_sweep};
}

}  // namespace kvsim
