// kvsim calibrate --residuals: intervals of services from the errors of measured runs.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/cli/calibrate/command_calibrate.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"
#include "sim/serve/account/serve_draws.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_score.hpp"
#include "validation/residuals/fit_residuals.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// The rows that have a class, and the comparison of each row.
struct ServiceRows {
  std::vector<ResidualRow> rows;
  std::vector<const ServedComparison*> of;
};

ServiceRows rows_of(const ServedScore& score) {
  ServiceRows out;
  for (const ServedComparison& c : score.comparisons) {
    const ScoredRun& run = score.runs[c.run];
    const std::string_view metric = residual_metric(c.metric, c.stat);
    const std::vector<std::string>& path = run.predicted.residual_path;
    if (metric.empty() || !c.response || !(c.measured > 0) || !(c.predicted > 0)) continue;
    out.rows.push_back({.metric = std::string{metric},
                        .features = path,
                        .document = run.source,
                        .service = saturation_key(run.mapped),
                        .apart = std::string{apart_feature(path)},
                        .log_ratio = std::log(c.measured / c.predicted),
                        .response = *c.response});
    out.of.push_back(&c);
  }
  return out;
}

nlohmann::ordered_json json_of(const std::vector<ResidualClass>& classes,
                               const std::string& provenance, const std::string& date) {
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ResidualClass& c : classes) {
    nlohmann::ordered_json quantiles = nlohmann::ordered_json::array();
    for (const double q : c.quantiles) quantiles.push_back(rounded(q));
    list.push_back({{"metric", c.metric},
                    {"path", c.path},
                    {"quantiles", std::move(quantiles)},
                    {"floor", c.floor},
                    {"within", rounded(c.within)},
                    {"documents", c.documents},
                    {"rows", c.rows},
                    {"coverage", rounded(c.coverage)},
                    {"interval_score", rounded(c.interval_score)}});
  }
  return {{"schema", "kvsim.residuals/2"},
          {"provenance", provenance},
          {"date", date},
          {"classes", std::move(list)}};
}

std::string table_of(const std::vector<ResidualClass>& classes, std::size_t width) {
  Table table{{{"class", Table::Align::kLeft},
               {"rows"},
               {"low"},
               {"high"},
               {"covered", Table::Align::kRight, "left out"},
               {"score", Table::Align::kRight, "left out"}}};
  for (const ResidualClass& c : classes) {
    table.add_row({c.words(), fmt::format("{}", c.rows), fmt::format("{:.2f}", c.factor(0.05)),
                   fmt::format("{:.2f}", c.factor(0.95)), fmt::format("{:.0f} %", 100 * c.coverage),
                   fmt::format("{:.2f}", c.interval_score)});
  }
  return table.str(width);
}

std::string csv_of(const ServiceRows& rows, const std::vector<LeftOutEnds>& left_out,
                   const ServedScore& score) {
  std::string out = "metric,class,document,run,stat,load,measured,predicted,slope,low,high\n";
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const ResidualRow& row = rows.rows[i];
    const ServedComparison& c = *rows.of[i];
    const ScoredRun& run = score.runs[c.run];
    out += fmt::format("{},{},{},{},{} {},{},{},{},{},{},{}\n", row.metric,
                       csv_field(fmt::format("{}", fmt::join(row.features, "; "))),
                       csv_field(row.document), csv_field(run.run.id), c.metric, c.stat, run.load,
                       c.measured, c.predicted, row.response.slope(),
                       c.predicted * std::exp(left_out[i].low),
                       c.predicted * std::exp(left_out[i].high));
  }
  return out;
}

}  // namespace

namespace {

/// A fitted residual model, and its rows.
struct Written {
  nlohmann::ordered_json document;
  std::vector<ResidualClass> classes;
  std::string csv;
};

Written fit_services(const fs::path& file, const Arguments& arguments) {
  const fs::path folder = fs::absolute(file).parent_path();
  constexpr int kMaxThreads = 1024;
  ServedOptions options{
      .folders = {.requests = folder / "requests", .lengths = folder / "lengths"},
      .threads = static_cast<int>(arguments.integer("threads", 0, kMaxThreads).value_or(0))};
  std::vector<ServedRun> runs = read_served_runs(file);
  Progress progress{"simulating", static_cast<double>(runs.size()), "runs"};
  options.done = [&](double done) { progress.update(done); };
  const ServedScore score = score_served(std::move(runs), options);
  progress.finish();
  const ServiceRows rows = rows_of(score);
  if (rows.rows.empty()) {
    throw InputError{file.string(), "runs with a prediction to compare", "none"};
  }
  FittedResiduals fitted = fit_residuals(rows.rows);
  std::string csv = csv_of(rows, fitted.left_out, score);
  return {.document = {}, .classes = std::move(fitted.classes), .csv = std::move(csv)};
}

Written fit_static_runs(const fs::path& file) {
  std::vector<PublishedRow> published = read_published_csv(file);
  Progress progress{"predicting", 1, "rows"};
  const PublishedScore score =
      score_published(std::move(published), [&](double done) { progress.update(done); });
  progress.finish();
  std::vector<ResidualRow> rows;
  std::vector<const ScoredRow*> of;
  for (const ScoredRow& row : score.rows) {
    const auto error = row.log_error();
    if (!error || row.inconsistent || row.kind != PublishedKind::kTime ||
        row.residual_path.empty()) {
      continue;
    }
    const RunPhase phase =
        row.row.metric.starts_with("ttft") ? RunPhase::kPrefill : RunPhase::kDecode;
    // Few documents have prompt times, so the prefill class contains the rows of all phases.
    for (const RunPhase of_phase : {RunPhase::kPrefill, RunPhase::kDecode}) {
      if (of_phase == RunPhase::kDecode && phase != of_phase) continue;
      std::vector<std::string> features = row.residual_path;
      features.emplace_back(residual_metric(phase));
      rows.push_back({.metric = std::string{residual_metric(of_phase)},
                      .features = std::move(features),
                      .document = row.document,
                      .log_ratio = *error});
      of.push_back(&row);
    }
  }
  if (rows.empty()) throw InputError{file.string(), "published times with a prediction", "none"};
  FittedResiduals fitted = fit_residuals(rows);
  std::string csv = "metric,class,document,row,figure,published,predicted,low,high\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", rows[i].metric,
                       csv_field(fmt::format("{}", fmt::join(rows[i].features, "; "))),
                       csv_field(rows[i].document), csv_field(of[i]->row.id),
                       csv_field(of[i]->row.metric), *of[i]->value, *of[i]->prediction.value,
                       std::exp(fitted.left_out[i].low), std::exp(fitted.left_out[i].high));
  }
  return {.document = {}, .classes = std::move(fitted.classes), .csv = std::move(csv)};
}

/// Whether a table is of services, according to its first line.
bool is_served(const fs::path& file) {
  constexpr std::size_t kMaxBytes = 1U << 30U;
  const std::string text = read_text_file(file, kMaxBytes);
  return std::string_view{text}.substr(0, text.find('\n')).find("run_id") != std::string_view::npos;
}

}  // namespace

int calibrate_residuals(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no word");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"calibrate", "-o DIR for the residuals", "none"};
  AtomicFiles written{*out};
  std::string text;
  nlohmann::ordered_json documents;
  std::set<std::string> names;
  for (const std::string& table : arguments.values("residuals")) {
    const bool served = is_served(table);
    const std::string name = served ? "services" : "static";
    if (!names.insert(name).second) {
      throw InputError{table, "one table of services and one of static runs",
                       fmt::format("a second one of {}", served ? "services" : "static runs")};
    }
    Written of = served ? fit_services(table, arguments) : fit_static_runs(table);
    of.document =
        json_of(of.classes, arguments.value("provenance").value_or("tables of the command line"),
                date_of(arguments));
    written.write(name + ".json", to_file_text(of.document));
    written.write(name + "-rows.csv", of.csv);
    text += table_of(of.classes, terminal_width()) +
            fmt::format("wrote {}.json and {}-rows.csv to {}\n", name, name, *out);
    documents[name] = std::move(of.document);
  }
  written.commit();
  if (arguments.has("json")) {
    write_out(to_file_text(documents));
  } else if (!arguments.has("quiet")) {
    write_out(text);
  }
  return kDone;
}

}  // namespace kvsim
