// kvsim quality: measured task scores under compression, and methods within a bound on the loss.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/quality/quality_groups.hpp"
#include "models/quality/quality_model.hpp"
#include "models/quality/quality_ranking.hpp"
#include "models/quality/quality_rows.hpp"
#include "models/quality/quality_saving.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/quality_options.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr double kZ90 = 1.6448536269514722;  // standard normal's 95th percentile
constexpr std::size_t kMaxLines = 8;         // per figure
constexpr std::size_t kMaxFigures = 24;

template <class T>
ordered_json maybe(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json text_or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

ordered_json prediction_json(const QualityModel& model, const QualityRow& row) {
  const auto p = model.predict_without(row, LeaveOut::kPair);
  if (!p || !p->supported) return nullptr;
  return {{"retained", p->retained},
          {"low", maybe(p->low)},
          {"high", maybe(p->high)},
          {"rows", p->rows},
          {"models", p->models}};
}

ordered_json group_json(const QualityGroup& group, std::span<const QualityRow> rows,
                        const QualityModel& model) {
  const QualityRow& row = *group.first;
  std::set<std::string> sources;
  std::set<std::string> contexts;
  for (const std::size_t i : group.rows) {
    sources.insert(rows[i].source);
    contexts.insert(rows[i].context);
  }
  ordered_json out{{"method", row.method},
                   {"model", row.model},
                   {"task", row.task},
                   {"budget", maybe(row.budget)},
                   {"budget_unit", text_or_null(row.budget_unit)},
                   {"bits", maybe(row.bits)},
                   {"when", text_or_null(row.when)},
                   {"metric", text_or_null(row.metric)},
                   {"context_tokens", contexts.size() == 1 ? text_or_null(row.context) : nullptr},
                   {"rows", group.rows.size()},
                   {"retained", maybe(group.retained)},
                   {"stderr", maybe(group.standard_error)},
                   {"interval_90", nullptr},
                   {"kept_bytes", maybe(group.kept_bytes)},
                   {"predicted", nullptr},
                   {"sources", sources}};
  if (group.retained && group.standard_error) {
    const double half = kZ90 * *group.standard_error;
    out["interval_90"] = {*group.retained - half, *group.retained + half};
  }
  if (group.retained && !row.is_full()) out["predicted"] = prediction_json(model, row);
  return out;
}

ordered_json error_json(const LeaveOutError& error, QualityKind kind) {
  return {{"kind", name_of(kind)},
          {"rows", error.rows},
          {"pairs", error.pairs},
          {"unsupported_rows", error.unsupported},
          {"mean_absolute_error", maybe(error.mean_absolute)},
          {"median_absolute_error", maybe(error.median_absolute)},
          {"bias", maybe(error.bias)},
          {"rows_with_interval", error.bounded},
          {"coverage_90", maybe(error.coverage)},
          {"mean_width", maybe(error.mean_width)}};
}

/// One entry per kind that has rows.
template <class ErrorOf>
std::vector<std::pair<QualityKind, LeaveOutError>> errors_by_kind(ErrorOf error_of) {
  std::vector<std::pair<QualityKind, LeaveOutError>> out;
  for (std::size_t k = 0; k < kQualityKinds; ++k) {
    const auto kind = static_cast<QualityKind>(k);
    LeaveOutError error = error_of(kind);
    if (error.rows + error.unsupported > 0) out.emplace_back(kind, error);
  }
  return out;
}

template <class ErrorOf>
ordered_json errors_json(ErrorOf error_of) {
  ordered_json out = ordered_json::array();
  for (const auto& [kind, error] : errors_by_kind(error_of)) out.push_back(error_json(error, kind));
  return out;
}

/// Number of rows without a retained score, and the reasons; empty if all rows have one.
std::string unused_text(std::span<const QualityRow> rows) {
  std::size_t without = 0, not_above = 0, perplexities = 0;
  for (const QualityRow& row : rows) {
    if (row.retained()) continue;
    if (!row.score_full) {
      ++without;
    } else if (*row.score_full <= 0.0) {
      ++not_above;
    } else {
      ++perplexities;
    }
  }
  std::vector<std::string> reasons;
  const auto add = [&](std::size_t n, std::string_view reason) {
    if (n > 0)
      reasons.push_back(fmt::format("{} {}", with_commas(static_cast<std::int64_t>(n)), reason));
  };
  add(without, "without a full score");
  add(not_above, "with a full score of 0 or less");
  add(perplexities, "with a perplexity of 0 or less");
  if (reasons.empty()) return "";
  return fmt::format("rows that are not used: {}\n", fmt::join(reasons, ", "));
}

std::string_view basis_name(SavingBasis basis) {
  return basis == SavingBasis::kMeasured ? "measured" : "predicted";
}

ordered_json saving_json(const MethodSaving& saving) {
  ordered_json points = ordered_json::array();
  for (const SavingPoint& point : saving.points) {
    points.push_back(
        {{"kept_bytes", point.kept},
         {"setting", point.setting},
         {"model", point.model},
         {"source", text_or_null(point.harness)},
         {"retained", point.retained},
         {"low", point.has_interval ? ordered_json(point.low) : ordered_json(nullptr)},
         {"high", point.has_interval ? ordered_json(point.high) : ordered_json(nullptr)},
         {"rows", point.rows}});
  }
  return {{"method", saving.method},
          {"when", saving.protocol},
          {"basis", basis_name(saving.basis)},
          {"saving", {maybe(saving.certain), maybe(saving.possible)}},
          {"rows", saving.rows},
          {"rows_of_unknown_bytes", saving.unsized_rows},
          {"models", saving.models},
          {"sources", saving.harnesses},
          {"contexts", saving.contexts},
          {"nearest_context", maybe(saving.nearest_context)},
          {"points", std::move(points)}};
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100.0 * *share) : "none";
}

/// The savings as a table; each row with its evidence.
std::string savings_text(const std::vector<MethodSaving>& savings, std::span<const QualityRow> rows,
                         double max_loss, std::size_t width) {
  if (savings.empty()) {
    // All rows belong to the requested methods, models and tasks.
    const bool has_scores = std::any_of(
        rows.begin(), rows.end(), [](const QualityRow& row) { return row.retained().has_value(); });
    return fmt::format("largest saving: unknown: {}\n",
                       has_scores
                           ? "all rows are of full caches, or of methods that store the whole cache"
                           : "no row has a full score above 0");
  }
  Table table{{{"method", Table::Align::kLeft},
               {"protocol", Table::Align::kLeft},
               {"certain"},
               {"possible"},
               {"rows"},
               {"models"},
               {"basis", Table::Align::kLeft}}};
  std::string evidence;
  for (const MethodSaving& one : savings) {
    const bool sized = !one.points.empty();
    table.add_row({one.method, one.protocol, sized ? percent(one.certain) : "unknown",
                   sized ? percent(one.possible) : "unknown",
                   with_commas(static_cast<std::int64_t>(one.rows)),
                   fmt::format("{}", one.models.size()), std::string{basis_name(one.basis)}});
    std::string line = fmt::format("- {}, {}: {} {}; {}", one.method, one.protocol,
                                   one.basis == SavingBasis::kMeasured
                                       ? "measured by"
                                       : "predicted from other models, measured by",
                                   source_names(one.harnesses), fmt::join(one.models, ", "));
    if (one.nearest_context) {
      line += fmt::format("; nearest context {:.0f} tokens", *one.nearest_context);
    }
    if (one.unsized_rows > 0) {
      line += fmt::format("; {} rows without a size in bytes",
                          with_commas(static_cast<std::int64_t>(one.unsized_rows)));
    }
    evidence += clean_text(line) + "\n";
  }
  return fmt::format(
      "largest saving of cache bytes at a loss of at most {:g} %\n"
      "certain: the 90 % interval of every measured model is above the bound\n"
      "possible: the interval of at least one model reaches it\n{}sources and models\n{}",
      100.0 * max_loss, table.str(width), evidence);
}

std::string errors_text(const std::string& heading,
                        const std::vector<std::pair<QualityKind, LeaveOutError>>& errors,
                        std::size_t width) {
  Table table{{{"kind", Table::Align::kLeft},
               {"rows"},
               {"pairs"},
               {"mean |error|"},
               {"median"},
               {"90 % covers"},
               {"width"},
               {"no support"}}};
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.3f}", *value) : "-";
  };
  for (const auto& [kind, error] : errors) {
    table.add_row(
        {std::string{name_of(kind)}, with_commas(static_cast<std::int64_t>(error.rows)),
         fmt::format("{}", error.pairs), number(error.mean_absolute), number(error.median_absolute),
         error.coverage ? fmt::format("{:.1f} %", 100.0 * *error.coverage) : "-",
         number(error.mean_width), with_commas(static_cast<std::int64_t>(error.unsupported))});
  }
  return fmt::format("{}\n{}", heading, table.str(width));
}

ordered_json ranking_json(const ReplayRanking& ranking) {
  ordered_json list = ordered_json::array();
  for (const ReplayError& error : ranking.errors) {
    list.push_back({{"method", error.method},
                    {"budget", maybe(error.kept)},
                    {"budget_entries", maybe(error.entries)},
                    {"rel_error", error.rel_error},
                    {"answer_error", maybe(error.answer_error)},
                    {"retained", maybe(error.retained)},
                    {"rows", error.rows},
                    {"reason", text_or_null(error.reason)}});
  }
  return {{"measured_settings", ranking.measured},
          {"rank_correlation", maybe(ranking.correlation)},
          {"ranked_by", ranking.at_answers ? "answer_error" : "rel_error"},
          {"methods", std::move(list)}};
}

std::string ranking_text(const ReplayRanking& ranking, std::size_t width) {
  Table table{{{"method", Table::Align::kLeft}, {"budget"}, {"measured score"}, {"rows"}}};
  std::string skipped;
  for (const ReplayError& error : ranking.errors) {
    const std::string budget = error.entries && !error.kept
                                   ? fmt::format("{:g} entries", *error.entries)
                                   : percent(error.kept);
    table.add_row({error.method, budget, percent(error.retained), fmt::format("{}", error.rows)});
    if (error.reason.empty()) continue;
    skipped += clean_text(fmt::format("- {}: not compared: {}", error.method, error.reason)) + "\n";
  }
  return fmt::format(
      "\norder by error{} of a replay, smallest first; this is an order, not a score\nrank "
      "correlation with "
      "measured losses: {} ({} settings are measured)\n{}{}",
      ranking.at_answers ? " at the answers" : "",
      ranking.correlation ? fmt::format("{:.2f}", *ranking.correlation) : "unknown",
      ranking.measured, table.str(width), skipped);
}

/// A name for files: other characters become "-".
std::string file_stem(std::string name) {
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '.' && c != '_') c = '-';
  }
  return name;
}

/// Retained score against kept bytes, one figure per model and task suite, one line per method.
std::vector<Figure> quality_figures(const std::vector<QualityGroup>& groups,
                                    std::vector<std::string>& notes) {
  using Names = std::pair<std::string, std::string>;
  struct Mean {
    double sum = 0.0, variance = 0.0, n = 0.0;
    bool all_errors = true;
  };
  std::map<Names, std::map<Names, std::map<double, Mean>>> found;
  for (const QualityGroup& group : groups) {
    const QualityRow& row = *group.first;
    if (!group.retained || !group.kept_bytes || row.is_full()) continue;
    const std::string suite = row.task.substr(0, row.task.find('/'));
    Mean& mean = found[{row.model, suite}][{row.method, row.when}][*group.kept_bytes];
    mean.sum += *group.retained;
    mean.n += 1.0;
    mean.all_errors = mean.all_errors && group.standard_error;
    const double error = group.standard_error.value_or(0.0);
    mean.variance += error * error;
  }
  std::vector<Figure> figures;
  std::size_t left_out = 0;
  for (const auto& [place, methods] : found) {
    const auto& [model, suite] = place;
    std::vector<std::pair<std::size_t, Names>> by_size;
    for (const auto& [method, points] : methods) by_size.emplace_back(points.size(), method);
    std::stable_sort(by_size.begin(), by_size.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    if (by_size.front().first < 2) continue;
    if (figures.size() == kMaxFigures) {
      ++left_out;
      continue;
    }
    if (by_size.size() > kMaxLines) {
      notes.push_back(
          fmt::format("figure of {}, {}: {} methods with the fewest settings are left out", model,
                      suite, by_size.size() - kMaxLines));
      by_size.resize(kMaxLines);
    }
    LineChart chart{.name = file_stem(fmt::format("quality_{}_{}", model, suite)),
                    .title = fmt::format("Score over cache bytes: {}, {}", model, suite),
                    .x_label = "kept bytes (% of the full cache)",
                    .y_label = "score (% of the full cache's)",
                    .x_column = "kept_bytes_percent",
                    .y_column = "retained_percent",
                    .integer_x = false};
    std::set<std::string> protocols;
    for (const auto& [size, method] : by_size) protocols.insert(method.second);
    // A protocol that all share is in the title.
    if (protocols.size() == 1 && !protocols.begin()->empty()) {
      chart.title += fmt::format(", {}", *protocols.begin());
    }
    for (const auto& [size, method] : by_size) {
      const auto& [name, protocol] = method;
      ChartLine line{.label = protocols.size() == 1 || protocol.empty()
                                  ? name
                                  : fmt::format("{} ({})", name, protocol)};
      for (const auto& [kept, mean] : methods.at(method)) {
        const double retained = 100.0 * mean.sum / mean.n;
        line.points.push_back({.x = 100.0 * kept, .y = retained});
        if (!mean.all_errors) continue;
        const double error = 100.0 * std::sqrt(mean.variance) / mean.n;
        line.spreads.push_back(
            {.x = 100.0 * kept, .low = retained - error, .high = retained + error});
      }
      chart.lines.push_back(std::move(line));
    }
    figures.push_back(draw(chart));
    figures.back().kind = "quality";
  }
  if (left_out > 0) {
    notes.push_back(
        fmt::format("{} figures are left out; --model and --task choose others", left_out));
  }
  return figures;
}

void write_figures(const std::string& folder, const std::vector<QualityGroup>& groups, bool quiet) {
  std::vector<std::string> notes;
  const std::vector<Figure> figures = quality_figures(groups, notes);
  if (figures.empty()) {
    throw InputError{
        "quality: no figure: no method has rows of two settings whose kept bytes are known"};
  }
  AtomicFiles files{folder};
  const DrawnFigures drawn = draw_figures(figures, files.partial());
  if (drawn.failed) throw InputError{fmt::format("{}: {}", folder, fmt::join(drawn.notes, "; "))};
  files.adopt();
  files.commit();
  notes.insert(notes.end(), drawn.notes.begin(), drawn.notes.end());
  for (const std::string& note : notes) write_err(fmt::format("kvsim: {}\n", clean_text(note)));
  if (quiet) return;
  for (const std::string& file : drawn.files) {
    write_out(fmt::format("{}\n", (std::filesystem::path{folder} / file).string()));
  }
}

int run_quality(const Arguments& arguments) {
  arguments.expect_words(1, 10'000, "tables of measured scores, or kvpress results folders");
  const std::vector<QualityRow> all = read_quality_files(arguments.words());
  const QualityModel model{all};
  const SavingQuery query = saving_query(arguments, all);
  std::vector<QualityRow> rows;
  for (const QualityRow& row : all) {
    if (selects_row(query, row)) rows.push_back(row);
  }
  const std::vector<QualityGroup> groups = group_quality(rows);
  const std::vector<MethodSaving> savings = largest_savings(all, model, query);
  if (rows.empty() && savings.empty()) {
    throw InputError{fmt::format("quality: none of the {} rows has these models, methods and tasks",
                                 all.size())};
  }
  std::vector<QualityRow> held_out;
  if (arguments.has("held-out")) held_out = read_quality_files(arguments.values("held-out"));
  const auto leave_out = [&](LeaveOut out) {
    return [&model, out](QualityKind kind) { return model.leave_out_error(out, kind); };
  };
  const auto of_others = [&](QualityKind kind) { return model.error_of(held_out, kind); };
  if (const auto folder = arguments.value("out")) {
    write_figures(*folder, groups, arguments.has("json") || arguments.has("quiet"));
  }
  std::optional<ReplayRanking> ranking;
  if (arguments.has("replay")) {
    std::vector<ReplayError> errors;
    refuse_repeated_files("--replay ", arguments.values("replay"));
    for (const std::string& result : arguments.values("replay")) {
      for (ReplayError& error : read_replay_errors(result)) errors.push_back(std::move(error));
    }
    ranking = rank_replays(std::move(errors), rows);
  }
  if (arguments.has("json")) {
    ordered_json list = ordered_json::array();
    for (const QualityGroup& group : groups) list.push_back(group_json(group, rows, model));
    ordered_json methods = ordered_json::array();
    for (const MethodSaving& one : savings) methods.push_back(saving_json(one));
    ordered_json out{
        {"schema", "kvsim.quality/1"},
        {"rows", rows.size()},
        {"rows_without_full", std::count_if(rows.begin(), rows.end(),
                                            [](const QualityRow& row) { return !row.retained(); })},
        {"groups", std::move(list)},
        {"answer", {{"max_loss", query.max_loss}, {"methods", std::move(methods)}}},
        {"prediction",
         {{"leave_one_pair_out", errors_json(leave_out(LeaveOut::kPair))},
          {"leave_one_model_out", errors_json(leave_out(LeaveOut::kModel))}}}};
    if (!held_out.empty()) out["prediction"]["held_out"] = errors_json(of_others);
    if (ranking) out["replay"] = ranking_json(*ranking);
    write_out(to_file_text(out));
    return kDone;
  }
  std::set<std::string> models, methods, sources;
  for (const QualityRow& row : rows) {
    models.insert(row.model);
    methods.insert(row.method);
    sources.insert(row.harness());
  }
  const std::size_t width = terminal_width();
  std::string text = fmt::format("{} rows of {} methods, {} models and {} sources, {} groups\n\n",
                                 with_commas(static_cast<std::int64_t>(rows.size())),
                                 methods.size(), models.size(), sources.size(),
                                 with_commas(static_cast<std::int64_t>(groups.size())));
  if (const std::string unused = unused_text(rows); !unused.empty())
    text.insert(text.size() - 1, unused);
  if (rows.empty()) {
    text = fmt::format("{} rows, none of these models\n\n",
                       with_commas(static_cast<std::int64_t>(all.size())));
  }
  text += savings_text(savings, rows, query.max_loss, width);
  text += "\n" + errors_text("predictions of score over full score, each (source, model) left out",
                             errors_by_kind(leave_out(LeaveOut::kPair)), width);
  text += "\n" + errors_text("the same, each model left out of every source",
                             errors_by_kind(leave_out(LeaveOut::kModel)), width);
  if (!held_out.empty()) {
    text +=
        "\n" + errors_text("predictions of the held-out rows", errors_by_kind(of_others), width);
  }
  if (ranking) text += ranking_text(*ranking, width);
  if (!arguments.has("quiet")) write_out(text);
  return kDone;
}

}  // namespace

Command quality_command() {
  std::vector<Option> options;
  add_saving_options(options);
  options.push_back({"replay", 0, "RESULT", true,
                     "results of kvsim replay: their order, and its rank correlation"});
  options.push_back(
      {"held-out", 0, "FILE", true, "rows to compare with the predictions from FILE..."});
  options.push_back({"out", 'o', "DIR", false, "folder for figures of score over kept bytes",
                     Option::Values::kFolders});
  options.push_back({"json", 0, "", false, "print JSON (schema kvsim.quality/1)"});
  options.push_back({"quiet", 'q', "", false, "do not print the tables"});
  return {
      .name = "quality",
      .summary = "print measured task scores under compression, and savings at a bound on the loss",
      .usage =
          "kvsim quality FILE... [options]\n"
          "  FILE  a table (CSV) of measured scores, or a kvpress results folder",
      .examples =
          "kvsim quality scenarios/samples/quality-made.csv --max-loss 5%\n"
          "kvsim quality results.csv --model qwen3-8b --task longbench -o out",
      .options = std::move(options),
      .run = run_quality};
}

}  // namespace kvsim
