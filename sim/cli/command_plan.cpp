#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/overrides.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/writes_page.hpp"
#include "sim/plan/plan.hpp"
#include "sim/report/plan_report.hpp"
#include "sim/report/progress.hpp"
#include "sim/report/result_json.hpp"
#include "sim/scenario/measured_points.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;

}  // namespace

int run_plan_job(const Arguments& arguments) {
  arguments.expect_words(1, 1, "one scenario file");
  Scenario scenario = read_scenario(arguments.words().front(), read_overrides(arguments));
  if (!scenario.plan) {
    throw InputError{fmt::format("{}: has no \"plan\": what is to be answered (docs/plan.md)",
                                 arguments.words().front())};
  }
  std::optional<fs::path> folder;
  if (const auto out = arguments.value("out")) {
    folder = fs::path{*out};
  } else if (!arguments.has("json")) {
    folder = fs::path{"kvsim-out"} / scenario.name;
  }
  if (folder) check_results_folder(*folder);
  const bool quiet = arguments.has("quiet");
  const auto threads = static_cast<int>(arguments.integer("threads", 0, kMostThreads).value_or(0));
  PlanOptions options{.threads = threads};
  Progress progress{"planning " + scenario.name};
  if (!quiet) options.progress = [&](double done) { progress.update(done); };
  if (std::any_of(scenario.points.begin(), scenario.points.end(),
                  [](const ScenarioPoint& point) { return !point.measured_on.empty(); })) {
    ReplayOptions replay;
    replay.threads = threads;
    measure_laws(scenario, std::move(replay));
  }
  const PlanResult plan = run_plan(scenario, options);
  progress.finish();
  std::optional<ResultsFolder> written;
  if (folder) {
    const bool none = scenario.figures && scenario.figures->empty();
    written = write_plan_results(scenario, plan, *folder,
                                 {.figures = !none && !arguments.has("no-figures"),
                                  .gnuplot = {},
                                  .page = writes_page(arguments)});
  }
  if (arguments.has("json")) {
    write_out(to_file_text(plan_document(scenario, plan)));
  } else if (!quiet) {
    write_out(plan_summary(scenario, plan, written ? &*written : nullptr, terminal_width()));
  }
  return plan.impossible() ? kDoesNotFit : kDone;
}

Command plan_command() {
  return {.name = "plan",
          .summary = "how far methods and GPUs go: context, batch, rate, GPUs, cost",
          .usage = "kvsim plan SCENARIO.json [options]",
          .examples =
              "kvsim plan scenarios/plan-h100-longcontext.json\n"
              "kvsim plan my.json --set /plan/confidence=0.99 --json",
          .options = {{"out", 'o', "DIR", false, "results folder (kvsim-out/NAME)"},
                      {"set", 's', "/KEY=VALUE", true,
                       "override a key of the scenario: JSON pointer, JSON value or a word"},
                      {"json", 0, "", false,
                       "print JSON (schema kvsim.plan/1) and nothing else; no folder without -o"},
                      {"no-figures", 0, "", false,
                       "leave figures and report.html out of the results folder"},
                      {"no-report", 0, "", false, "leave report.html out of it"},
                      {"threads", 'j', "N", false,
                       "threads; 0: the machine's; no result depends on it"},
                      {"quiet", 'q', "", false, "no summary, no progress"}},
          .run = run_plan_job};
}

}  // namespace kvsim
