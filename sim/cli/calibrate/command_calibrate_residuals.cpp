// kvsim calibrate --residuals: intervals of services from the errors of measured runs.

#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/calibrate/command_calibrate.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"
#include "validation/residuals/fit_residuals.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::vector<ResidualRow> rows_of(const ServedScore& score) {
  std::vector<ResidualRow> rows;
  for (const ServedComparison& c : score.comparisons) {
    const auto part = residual_metric(c.metric, c.stat);
    // Times per token and to the last token follow those of iterations, which have their interval.
    // So does a queue: the relative error of TTFT has no useful bound there.
    const bool is_queued = score.runs[c.run].predicted.is_queued;
    const bool has_class = part && !part->is_tail &&
                           ((part->metric == "ttft" && !is_queued) || part->metric == "throughput");
    if (!has_class || !(c.measured > 0) || !(c.predicted > 0)) continue;
    const ScoredRun& run = score.runs[c.run];
    const double ratio = std::log(c.measured / c.predicted);
    rows.push_back({.key = {.metric = std::string{part->metric},
                            .stack = run.predicted.stack,
                            .complete = run.mapped.complete,
                            .is_queued = run.predicted.is_queued},
                    .document = run.source,
                    .log_ratio = c.metric == "duration" ? -ratio : ratio});
  }
  return rows;
}

nlohmann::ordered_json json_of(const std::vector<ResidualClass>& classes,
                               const std::string& provenance, const std::string& date) {
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ResidualClass& c : classes) {
    list.push_back({{"metric", c.key.metric},
                    {"stack", c.key.stack},
                    {"complete", c.key.complete},
                    {"queued", c.key.is_queued},
                    {"low", rounded(c.low)},
                    {"high", rounded(c.high)},
                    {"documents", c.documents},
                    {"rows", c.rows},
                    {"coverage", rounded(c.coverage)},
                    {"interval_score", rounded(c.interval_score)}});
  }
  return {{"schema", "kvsim.residuals/1"},
          {"provenance", provenance},
          {"date", date},
          {"classes", std::move(list)}};
}

std::string table_of(const std::vector<ResidualClass>& classes, std::size_t width) {
  Table table{{{"class", Table::Align::kLeft},
               {"documents"},
               {"rows"},
               {"low"},
               {"high"},
               {"covered", Table::Align::kRight, "left out"}}};
  for (const ResidualClass& c : classes) {
    table.add_row({c.key.words(), fmt::format("{}", c.documents), fmt::format("{}", c.rows),
                   fmt::format("{:.2f}", c.low), fmt::format("{:.2f}", c.high),
                   fmt::format("{:.0f} %", 100 * c.coverage)});
  }
  return table.str(width);
}

}  // namespace

int calibrate_residuals(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no word");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"calibrate", "-o DIR, where services.json goes", "none"};
  const fs::path file{*arguments.value("residuals")};
  const fs::path folder = fs::absolute(file).parent_path();
  constexpr int kMostThreads = 1024;
  ServedOptions options{
      .folders = {.requests = folder / "requests", .lengths = folder / "lengths"},
      .threads = static_cast<int>(arguments.integer("threads", 0, kMostThreads).value_or(0))};
  std::vector<ServedRun> runs = read_served_runs(file);
  AtomicFiles written{*out};
  Progress progress{"simulating", static_cast<double>(runs.size()), "runs"};
  options.done = [&](double done) { progress.update(done); };
  const std::vector<ResidualRow> rows = rows_of(score_served(std::move(runs), options));
  progress.finish();
  if (rows.empty()) {
    throw InputError{file.string(), "runs with a prediction to compare", "none"};
  }
  const std::vector<ResidualClass> classes = fit_residuals(rows);
  const nlohmann::ordered_json document =
      json_of(classes, arguments.value("provenance").value_or("runs given on the command line"),
              date_of(arguments));
  written.write("services.json", to_file_text(document));
  written.commit();
  if (arguments.has("json")) {
    write_out(to_file_text(document));
  } else if (!arguments.has("quiet")) {
    write_out(
        fmt::format("{}wrote services.json to {}\n", table_of(classes, terminal_width()), *out));
  }
  return kDone;
}

}  // namespace kvsim
