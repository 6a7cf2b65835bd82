// kvsim validate served: compares measured runs of real services with simulations of them.

#include <filesystem>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/options/arguments.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/cli/validate/served/served_report.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "validation/served/served_predict.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

int print_scenario(const std::vector<ServedRun>& runs, const std::string& id,
                   const ServedFolders& folders) {
  std::vector<std::string> names;
  for (const ServedRun& run : runs) {
    names.push_back(run.id);
    if (run.id != id) continue;
    MappedRun mapped = map_served_run(run, folders);
    if (!mapped.is_expressed()) {
      throw InputError{
          fmt::format("--print-scenario: {} is not expressed: {}", id, mapped.refused)};
    }
    // May change unstated settings so that the engine starts.
    (void)predict_served(mapped);
    write_out(to_file_text(mapped.scenario));
    return kDone;
  }
  throw InputError{fmt::format("--print-scenario: {}", unknown_name("run", id, names))};
}

}  // namespace

int run_validate_served(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a table of serving runs (CSV)");
  const fs::path file{arguments.words().front()};
  std::vector<ServedRun> runs = read_served_runs(file);
  const auto folder_of = [&](const char* option) {
    const auto given = arguments.value(option);
    if (!given) return fs::absolute(file).parent_path() / option;
    if (!fs::is_directory(*given)) {
      throw InputError{fmt::format("--{}", option), "a folder", fmt::format("\"{}\"", *given)};
    }
    return fs::absolute(*given);
  };
  ServedOptions options{
      .folders = {.requests = folder_of("requests"), .lengths = folder_of("lengths")},
      .overrides = read_overrides(arguments)};
  if (const auto run = arguments.value("print-scenario")) {
    return print_scenario(runs, *run, options.folders);
  }
  constexpr int kMaxThreads = 1024;
  options.threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  std::optional<AtomicFolder> folder;
  if (const auto out = arguments.value("out")) folder.emplace(fs::path{*out});

  Progress progress{"simulating", static_cast<double>(runs.size()), "runs"};
  options.done = [&](double done) { progress.update(done); };
  const ServedScore score = score_served(std::move(runs), options);
  progress.finish();

  if (arguments.has("two-loads")) {
    write_out(
        two_loads_text(score, predict_from_two_loads(score, options.threads), terminal_width()));
    return kDone;
  }
  const bool rows = arguments.has("rows");
  const std::string name = file.filename().string();  // results contain no paths
  std::string written;
  if (folder) {
    folder->write("result.json", to_file_text(served_json(score, name, true)));
    folder->write("values.csv", served_comparisons_csv(score));
    folder->write("runs.csv", served_runs_csv(score));
    const DrawnFigures drawn = draw_figures(served_figures(score), folder->make_folder("figures"));
    for (const std::string& note : drawn.notes) written += fmt::format("note: {}\n", note);
    folder->commit();
    written += fmt::format("wrote {}: result.json, values.csv, runs.csv, {} files of figures\n",
                           *arguments.value("out"), drawn.files.size());
  }
  if (arguments.has("markdown")) {
    constexpr std::size_t kPage = 110;  // fixed, so that the page does not depend on the terminal
    write_out(fmt::format("```text\n{}```\n", served_text(score, false, kPage)));
  } else if (arguments.has("json")) {
    write_out(to_file_text(served_json(score, name, rows)));
  } else {
    write_out(served_text(score, rows, terminal_width()) + written);
  }
  return kDone;
}

}  // namespace kvsim
