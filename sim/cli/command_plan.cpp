#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/quality/quality_verdict.hpp"
#include "models/units/error.hpp"
#include "sim/cli/launch/launch_job.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/figure_options.hpp"
#include "sim/cli/options/overrides.hpp"
#include "sim/cli/options/quality_options.hpp"
#include "sim/cli/options/scenario_flags.hpp"
#include "sim/cli/options/scenario_options.hpp"
#include "sim/cli/plan_job.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/process/terminal_style.hpp"
#include "sim/plan/plan.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_scenario.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxThreads = 1024;

/// The measured quality of a planned method: its label, and a verdict per protocol.
struct PlannedQuality {
  std::string label;
  std::vector<QualityVerdict> verdicts;
};

/// The quality of every method of the plan for --max-loss and --quality; empty without --max-loss.
/// Errors: InputError for --quality alone and for tables that cannot be read.
std::vector<PlannedQuality> planned_quality(const Arguments& arguments, const Scenario& scenario,
                                            const PlanResult& plan) {
  const auto loss = arguments.value("max-loss");
  if (!loss) return {};
  const double max_loss = read_share("--max-loss", *loss);
  const std::vector<QualityRow> rows = read_quality_files(arguments.values("quality"));
  const QualityModel model{rows};
  std::vector<PlannedQuality> out;
  std::set<std::string> labels;
  for (const PlanCandidate& candidate : plan.candidates) {
    const MethodSpec& method = candidate.method;
    const ScenarioPoint& point = scenario.points[candidate.point];
    PlannedMethod planned{.method = method.name,
                          .model = std::string{point.spec.llm->name},
                          .context = static_cast<double>(point.spec.prompt_tokens)};
    std::string label = method.name;
    if (method.budget && method.budget->fraction > 0) {
      planned.kept_entries = method.budget->fraction;
      label += fmt::format(" {:g} %", 100.0 * method.budget->fraction);
    } else if (method.budget && planned.context > 0.0) {
      planned.kept_entries =
          std::min(1.0, static_cast<double>(method.budget->entries) / planned.context);
      label += fmt::format(" {} entries", method.budget->entries);
    }
    if (!labels.insert(fmt::format("{}\n{}", label, planned.model)).second) continue;
    std::vector<QualityVerdict> verdicts = judge_quality(rows, model, planned, max_loss);
    if (rows.empty() && method.name != "full") {
      verdicts.front().basis = "no table of measured scores: --quality FILE names one";
    }
    out.push_back({.label = std::move(label), .verdicts = std::move(verdicts)});
  }
  return out;
}

ordered_json quality_json(const std::vector<PlannedQuality>& quality) {
  ordered_json out = ordered_json::array();
  for (const PlannedQuality& one : quality) {
    for (const QualityVerdict& verdict : one.verdicts) {
      out.push_back({{"method", one.label},
                     {"answer", word_of(verdict.answer)},
                     {"when", verdict.protocol},
                     {"basis", verdict.basis}});
    }
  }
  return out;
}

std::string quality_text(const std::vector<PlannedQuality>& quality, const std::string& loss) {
  if (quality.empty()) return "";
  std::string text = fmt::format("\nscore within a loss of {}:\n", loss);
  for (const PlannedQuality& one : quality) {
    for (const QualityVerdict& verdict : one.verdicts) {
      text += fmt::format("  {}: {}{}: {}\n", one.label, word_of(verdict.answer),
                          verdict.protocol.empty() ? "" : fmt::format(" ({})", verdict.protocol),
                          clean_text(verdict.basis));
    }
  }
  return text;
}

int answer_plan(const Arguments& arguments, bool by_options) {
  if (!by_options) arguments.expect_words(1, 1, "one scenario file, or --model and --gpu");
  Scenario scenario;
  if (by_options) {
    OptionScenario made = scenario_by_options(arguments, true);
    if (arguments.has("print-scenario")) {
      write_out(to_file_text(made.document));
      return kDone;
    }
    scenario = std::move(made.scenario);
  } else {
    const std::string& file = arguments.words().front();
    std::vector<Override> changes = read_overrides(arguments, file);
    if (arguments.has("beyond-positions")) {
      changes.push_back({"/plan/beyond_positions", "true"});
    }
    scenario = read_scenario(file, changes);
  }
  if (!scenario.plan) {
    throw InputError{
        fmt::format("{}: has no \"plan\", which lists the questions to answer (docs/plan.md)",
                    by_options ? std::string{"options"} : arguments.words().front())};
  }
  if (arguments.has("quality") && !arguments.has("max-loss")) {
    throw InputError{"plan: --quality needs --max-loss"};
  }
  if (const auto loss = arguments.value("max-loss")) (void)read_share("--max-loss", *loss);
  std::optional<fs::path> folder;
  const bool launches = asks_for_launch(arguments);
  if (const auto out = arguments.value("out")) {
    folder = fs::path{*out};
  } else if (!arguments.has("json") && !by_options && !launches) {
    folder = fs::path{"kvsim-out"} / scenario.name;
  }
  refuse_formats_without_folder(arguments, folder.has_value());
  const FolderOptions writes =
      folder_options(arguments, !scenario.figures || !scenario.figures->empty());
  if (folder) check_results_folder(*folder);
  const bool quiet = arguments.has("quiet");
  const auto threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0));
  PlanOptions options{.threads = threads};
  Progress progress{"planning " + scenario.name};
  options.begins = [&](std::size_t n) { progress.expect(static_cast<double>(n), "searches"); };
  if (!quiet) options.progress = [&](double done) { progress.update(done); };
  measure_missing_laws(scenario, {.threads = threads});
  options.stop = StopOnInterrupt::is_requested;
  std::optional<StopOnInterrupt> stops{std::in_place};
  const PlanResult plan = run_plan(scenario, options);
  stops.reset();  // an interrupt during writing ends the program and removes partial files
  progress.finish();
  const std::vector<PlannedQuality> quality = planned_quality(arguments, scenario, plan);
  std::optional<ResultsFolder> written;
  if (folder) {
    written = write_plan_results(scenario, plan, *folder, writes);
  }
  if (launches) {
    write_launches(arguments, plan_launches(scenario, plan));
    for (const PlanGroup& group : plan.groups) {
      if (group.best) continue;
      write_err(fmt::format("kvsim: {} of {}: no answer, so no command\n",
                            plan_words(group.question), clean_text(group.of)));
    }
  } else if (arguments.has("json")) {
    ordered_json document = plan_document(scenario, plan);
    if (!quality.empty()) document["max_loss"] = quality_json(quality);
    write_out(to_file_text(document));
  } else if (!quiet) {
    const ResultsFolder* folder_written = written ? &*written : nullptr;
    write_out(by_options && scenario.kind != "serve"
                  ? plan_screen(scenario, plan, folder_written, terminal_style())
                  : plan_summary(scenario, plan, folder_written, terminal_width()));
    write_out(quality_text(quality, arguments.value("max-loss").value_or("")));
  }
  if (plan.not_searched > 0) {
    write_err(fmt::format("kvsim: {} of {} candidates are missing; to compute everything: {}\n",
                          plan.not_searched, plan.candidates.size(), command_line()));
    return interrupted_status();
  }
  return plan.impossible() ? kDoesNotFit : kDone;
}

}  // namespace

int run_plan_job(const Arguments& given) {
  const Arguments arguments = with_command_options(given);
  const bool by_options = asks_by_options(arguments);
  try {
    return answer_plan(arguments, by_options);
  } catch (const InputError& error) {
    if (!by_options) throw;
    throw named_by_option(error, arguments);
  }
}

Command plan_command() {
  std::vector<Option> options = scenario_command_options(
      "results folder (kvsim-out/NAME; none if the scenario is made of options)", "kvsim.plan/1");
  options.push_back({"beyond-positions", 0, "", false,
                     "allow sequences longer than the positions that the model declares"});
  options.push_back({"max-loss", 0, "SHARE", false,
                     "report for each method whether measured scores stay within this loss: 1%"});
  options.push_back(
      {"quality", 0, "FILE", true, "tables of measured scores for --max-loss (docs/quality.md)"});
  return {.name = "plan",
          .summary = "find the longest context, largest batch, highest rate, fewest GPUs, and cost",
          .usage =
              "kvsim plan SCENARIO.json [options]\n"
              "kvsim plan --model NAME --gpu NAME [--rate R --ttft TIME …] [options]",
          .examples =
              "kvsim plan --model llama-3.1-70b --gpu h100 --tp 4 --rate 5 --isl 2000 \\\n"
              "    --osl 300 --ttft 2s --tpot 50ms --percentile 95 --price 2.5\n"
              "kvsim plan --model llama-3.1-8b --gpu h100 --method snapkv\n"
              "kvsim plan scenarios/plan-h100-longcontext.json\n"
              "kvsim plan my.json --set /plan/confidence=0.99 --json",
          .options = std::move(options),
          .run = run_plan_job};
}

}  // namespace kvsim
