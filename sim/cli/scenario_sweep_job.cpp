#include "sim/cli/scenario_sweep_job.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/version.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/sweep/join_ranks.hpp"
#include "sim/sweep/points_file.hpp"
#include "sim/sweep/resumed_points.hpp"
#include "sim/sweep/run_sweep.hpp"
#include "sim/sweep/runners.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxThreads = 1024;

SweepPlan read_plan(const Arguments& arguments) {
  SweepChanges changes;
  for (const std::string& text : arguments.values("vary")) {
    changes.vary.push_back(axis_of_text(text));
  }
  changes.samples = arguments.integer("samples", 1, kMaxSweepPoints);
  if (const auto seed = arguments.integer("seed", 0, kLargestSeed)) {
    changes.seed = static_cast<std::uint64_t>(*seed);
  }
  changes.skip_impossible = arguments.has("skip-impossible");
  const fs::path file = arguments.words().front();
  const std::vector<Override> overrides = read_overrides(arguments, file);
  nlohmann::json document = scenario_document(file, overrides);
  // --vary also sweeps a file that has a plan; changes of that plan would have no effect.
  const bool changes_plan = std::any_of(
      overrides.begin(), overrides.end(),
      [](const Override& change) { return (change.pointer + "/").starts_with("/plan/"); });
  const bool has_sweep = document.contains("sweep") && !document.at("sweep").is_null();
  if (has_sweep || changes_plan) refuse_plan_of_sweep(document, file.string());
  return {std::move(document), file, changes};
}

/// The finished points of the sweep, and the file to which further points are appended.
struct Ledger {
  std::vector<std::string> objects;  // by point; empty: not yet done
  std::unique_ptr<PointsWriter> writer;

  [[nodiscard]] std::vector<std::size_t> todo() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].empty()) out.push_back(i);
    }
    return out;
  }
};

/// Reads finished points into `ledger`; returns false if there is nothing to resume.
bool take_up(const fs::path& file, const SweepPlan& plan, bool quiet, Ledger& ledger) {
  std::error_code status;
  if (!fs::is_regular_file(file, status)) return false;
  const auto content = read_points_file(file);
  if (!content) return false;
  ledger.objects = resumed_points(*content, plan, kvsim_version(), file);
  if (content->torn_bytes > 0 && !quiet) {
    write_err(fmt::format("kvsim: {}: dropped {} bytes of an incomplete line\n", file.string(),
                          content->torn_bytes));
  }
  ledger.writer = std::make_unique<PointsWriter>(file, content->good_bytes);
  return true;
}

void refuse_unfinished(const fs::path& folder) {
  const fs::path file = folder / kPointsFile;
  std::error_code status;
  if (!fs::is_regular_file(file, status) || fs::exists(folder / "sweep.json", status)) return;
  const auto content = read_points_file(file);
  if (!content || content->objects.empty()) return;
  throw InputError{
      fmt::format("{}: contains {} of {} points of an unfinished sweep; --resume continues it; to "
                  "start over, choose another folder or remove this one",
                  folder.string(), content->objects.size(),
                  content->header.contains("points") ? content->header.at("points").dump() : "?")};
}

Ledger open_ledger(const Arguments& arguments, const SweepPlan& plan,
                   const std::optional<fs::path>& folder) {
  Ledger ledger;
  ledger.objects.resize(plan.size());
  const bool resume = arguments.has("resume");
  if (!folder) {
    if (resume) throw InputError{"sweep: --resume needs the results folder: -o DIR"};
    return ledger;
  }
  // Also restores a folder that a program killed between two renames had moved aside.
  check_results_folder(*folder);
  const fs::path file = *folder / kPointsFile;
  if (resume && take_up(file, plan, arguments.has("quiet"), ledger)) return ledger;
  if (!resume) refuse_unfinished(*folder);
  AtomicFolder fresh{*folder};
  const std::string header = summed_line(sweep_header(plan));
  fresh.write(std::string{kPointsFile}, header);
  fresh.commit();
  ledger.writer = std::make_unique<PointsWriter>(file, header.size());
  return ledger;
}

std::optional<fs::path> folder_of(const Arguments& arguments, const SweepPlan& plan) {
  if (const auto out = arguments.value("out")) return fs::path{*out};
  if (arguments.has("json")) return std::nullopt;
  return fs::path{"kvsim-out"} / plan.name();
}

/// The state before the first point runs. Errors are thrown only on the first process; other
/// processes get nullopt and exit.
struct Prepared {
  SweepPlan plan;
  PointRunner runner;
  std::optional<fs::path> folder;
  Ledger ledger;  // only on the first process
};
std::optional<Prepared> prepare(const Arguments& arguments, Ranks* ranks) {
  std::optional<Prepared> out;
  std::string complaint;
  try {
    SweepPlan plan = read_plan(arguments);
    PointRunner runner = runner_of(plan.kind());
    // An invalid first point ends the sweep before anything is written.
    if (!plan.skips_impossible()) (void)plan.scenario(0);
    const std::optional<fs::path> folder = folder_of(arguments, plan);
    Ledger ledger;
    if (ranks == nullptr || ranks->rank() == 0) ledger = open_ledger(arguments, plan, folder);
    out = Prepared{std::move(plan), std::move(runner), folder, std::move(ledger)};
  } catch (const InputError& error) {
    if (ranks == nullptr) throw;
    complaint = error.what();
  }
  if (ranks == nullptr) return out;
  const std::vector<std::string> complaints = ranks->all_texts(complaint);
  const std::vector<std::string> hashes = ranks->all_texts(out ? out->plan.hash() : "");
  for (int r = 0; r < ranks->size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    std::string wrong = complaints[i];
    if (wrong.empty() && hashes[i] != hashes[0] && !hashes[0].empty()) {
      wrong = fmt::format("process {} reads another scenario than process 0", r);
    }
    if (wrong.empty()) continue;
    if (ranks->rank() == 0) throw InputError{wrong};
    return std::nullopt;
  }
  return out;
}

}  // namespace

int run_scenario_sweep(const Arguments& arguments) {
  arguments.expect_words(1, 1, "one scenario file");
  refuse_formats_without_folder(arguments, arguments.has("out") || !arguments.has("json"));
  (void)folder_options(arguments);  // check before anything runs
  const auto requested_threads = arguments.integer("threads", 0, kMaxThreads);
  std::unique_ptr<Ranks> ranks;
  if (processes_started() > 1) ranks = join_ranks();
  auto prepared = prepare(arguments, ranks.get());
  if (!prepared) return kDone;  // the first process reports the error
  const SweepPlan& plan = prepared->plan;
  Ledger& ledger = prepared->ledger;
  // MPI processes already share the cores.
  const auto threads = static_cast<int>(requested_threads.value_or(ranks ? 1 : 0));
  const SweepExecution execution{.threads = threads, .ranks = ranks.get()};
  if (ranks && ranks->rank() != 0) {
    run_sweep_points(plan, {}, prepared->runner, execution, {});
    return kDone;
  }
  const bool quiet = arguments.has("quiet");
  const std::vector<std::size_t> todo = ledger.todo();
  {
    std::optional<OnInterrupt> last_words;
    if (ledger.writer) {
      last_words.emplace(
          fmt::format("kvsim: interrupted; {} contains the finished points: the same command with "
                      "--resume continues",
                      (*prepared->folder / kPointsFile).string()));
    }
    Progress progress{"sweeping " + plan.name(), static_cast<double>(todo.size()), "points"};
    std::size_t done = 0;
    run_sweep_points(
        plan, todo, prepared->runner, execution, [&](std::size_t point, const std::string& object) {
          if (ledger.writer) ledger.writer->add(object);
          ledger.objects[point] = object;
          ++done;
          if (!quiet) {
            progress.update(static_cast<double>(done) / static_cast<double>(todo.size()));
          }
        });
    progress.finish();
    if (ledger.writer) ledger.writer->sync();
  }
  const ScenarioSweep sweep{plan, std::move(ledger.objects), threads};
  std::optional<ResultsFolder> written;
  if (prepared->folder) {
    const bool none = plan.echo().contains("figures") && plan.echo().at("figures") == false;
    written = write_scenario_sweep(sweep, *prepared->folder, folder_options(arguments, !none));
  }
  if (arguments.has("json")) {
    write_out(scenario_sweep_text(sweep));
  } else if (!quiet) {
    write_out(scenario_sweep_summary(sweep, written ? &*written : nullptr, terminal_width()));
  }
  return kDone;
}

}  // namespace kvsim
