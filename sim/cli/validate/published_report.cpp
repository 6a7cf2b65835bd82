#include "sim/cli/validate/published_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/cli/validate/published_misses.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "validation/published/published_reasons.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : std::string{};
}
std::string signed_percent(const std::optional<double>& share) {
  return share ? fmt::format("{:+.1f}", 100 * *share) : std::string{};
}
std::string whole(std::size_t n) { return n == 0 ? std::string{} : fmt::format("{}", n); }

ordered_json number_or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

std::string share_of(std::size_t part, std::size_t all) {
  if (all == 0) return "none";
  return fmt::format("{} of {} ({:.1f} %)", part, all,
                     100.0 * static_cast<double>(part) / static_cast<double>(all));
}

std::string errors_table(const std::vector<PublishedGroup>& groups, std::size_t width) {
  Table table{{{"figure", Table::Align::kLeft},
               {"rows"},
               {"expressed"},
               {"MAPE", Table::Align::kRight, "%"},
               {"median", Table::Align::kRight, "%"},
               {"p90", Table::Align::kRight, "%", true},
               {"bias", Table::Align::kRight, "%", true},
               {"held out"},
               {"MAPE", Table::Align::kRight, "%"},
               {"median", Table::Align::kRight, "%", true},
               {"verdicts"}}};
  for (const PublishedGroup& group : groups) {
    const std::string verdicts = group.oom_total == 0
                                     ? std::string{}
                                     : fmt::format("{}/{}", group.oom_right, group.oom_total);
    table.add_row({group.inconsistent ? group.metric + ", inconsistent source" : group.metric,
                   whole(group.n_total), whole(group.n_expressed), percent(group.mape),
                   percent(group.median_ape), percent(group.p90_ape), signed_percent(group.bias),
                   whole(group.n_held_out), percent(group.mape_held_out),
                   percent(group.median_ape_held_out), verdicts});
  }
  return table.str(width);
}

std::string rows_table(const PublishedScore& score, std::size_t width) {
  Table table{{{"id", Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"stack", Table::Align::kLeft},
               {"published"},
               {"predicted"},
               {"error", Table::Align::kRight, "%"},
               {"reason", Table::Align::kLeft}}};
  for (const ScoredRow& row : score.rows) {
    const PublishedPrediction& p = row.prediction;
    std::string predicted;
    if (p.value) predicted = fmt::format("{:.4g}", *p.value);
    if (!p.value && p.runs_out) predicted = "out of memory";
    table.add_row({row.row.id, row.row.metric, row.stack, row.row.value, predicted,
                   signed_percent(row.error()), p.reason});
  }
  return table.str(width);
}

std::map<std::string, std::size_t> reasons_of(const PublishedScore& score) {
  std::map<std::string, std::size_t> out;
  for (const ScoredRow& row : score.rows) {
    if (!row.prediction.expressed()) ++out[row.prediction.reason];
  }
  return out;
}

std::string reasons_text(const std::map<std::string, std::size_t>& reasons, std::size_t width) {
  constexpr std::size_t kIndent = 9;
  std::vector<std::pair<std::string, std::size_t>> sorted{reasons.begin(), reasons.end()};
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (const auto& [reason, n] : sorted) {
    out += fmt::format("  {:5}  {}", n, paragraph(reason, width, kIndent));
  }
  return out;
}

/// The largest errors: documents and stacks with at least three rows and a median error above 30 %.
std::string furthest_off(const PublishedScore& score, std::size_t width) {
  constexpr double kFar = 0.3;
  constexpr std::size_t kMin = 3;
  struct Errors {
    std::vector<double> absolute;
    double sum = 0;
  };
  std::map<std::array<std::string, 3>, Errors> groups;
  for (const ScoredRow& row : score.rows) {
    const auto error = row.error();
    if (!error || row.inconsistent) continue;
    Errors& group = groups[{row.document, row.row.metric, row.stack}];
    group.absolute.push_back(std::abs(*error));
    group.sum += *error;
  }
  Table table{{{"furthest off", Table::Align::kLeft},
               {"figure", Table::Align::kLeft},
               {"stack", Table::Align::kLeft},
               {"rows"},
               {"median", Table::Align::kRight, "%"},
               {"bias", Table::Align::kRight, "%"}}};
  bool any = false;
  for (auto& [key, group] : groups) {
    if (group.absolute.size() < kMin) continue;
    std::sort(group.absolute.begin(), group.absolute.end());
    const double median = group.absolute[group.absolute.size() / 2];
    if (median < kFar) continue;
    any = true;
    table.add_row({key[0], key[1], key[2], whole(group.absolute.size()), percent(median),
                   signed_percent(group.sum / static_cast<double>(group.absolute.size()))});
  }
  return any ? "\n" + table.str(width) : std::string{};
}

/// KV pools whose publications omit a setting that affects them: the errors, and these settings.
std::string unstated_text(const PublishedScore& score, std::size_t width) {
  Table table{{{"pool of a start, not all stated", Table::Align::kLeft},
               {"figure", Table::Align::kLeft},
               {"published"},
               {"predicted"},
               {"error", Table::Align::kRight, "%"},
               {"inside", Table::Align::kRight, "interval"},
               {"not stated", Table::Align::kLeft}}};
  bool any = false;
  for (const ScoredRow& row : score.rows) {
    if (row.unstated.empty() || !row.error() || row.inconsistent) continue;
    any = true;
    const bool inside =
        row.interval && row.interval->first <= *row.value && *row.value <= row.interval->second;
    table.add_row({fmt::format("{} {}", row.row.id, row.document), row.row.metric, row.row.value,
                   fmt::format("{:.4g}", *row.prediction.value), signed_percent(row.error()),
                   row.interval ? (inside ? "yes" : "no") : "none",
                   fmt::format("{}", fmt::join(row.unstated, ", "))});
  }
  return any ? "\n" + table.str(width) : std::string{};
}

ordered_json group_json(const PublishedGroup& group) {
  ordered_json out{{"metric", group.metric},
                   {"gpu", group.gpu},
                   {"stack", group.stack},
                   {"dtype", group.dtype},
                   {"inconsistent", group.inconsistent},
                   {"n", group.n},
                   {"mape", number_or_null(group.mape)},
                   {"median_ape", number_or_null(group.median_ape)},
                   {"p90_ape", number_or_null(group.p90_ape)},
                   {"bias", number_or_null(group.bias)},
                   {"n_large", group.n_large},
                   {"mape_large", number_or_null(group.mape_large)},
                   {"n_held_out", group.n_held_out},
                   {"mape_held_out", number_or_null(group.mape_held_out)},
                   {"median_ape_held_out", number_or_null(group.median_ape_held_out)},
                   {"n_total", group.n_total},
                   {"n_expressed", group.n_expressed},
                   {"oom_right", group.oom_right},
                   {"oom_total", group.oom_total}};
  out["reasons"] = ordered_json::object();
  for (const auto& [reason, n] : group.reasons) out["reasons"][reason] = n;
  return out;
}

ordered_json row_json(const ScoredRow& row) {
  const PublishedPrediction& p = row.prediction;
  ordered_json out{{"id", row.row.id},
                   {"line", row.row.line},
                   {"source", row.row.source},
                   {"metric", row.row.metric},
                   {"unit", row.row.unit},
                   {"gpu", row.gpu},
                   {"stack", row.stack},
                   {"dtype", row.dtype},
                   {"model", row.row.model},
                   {"method", row.row.method},
                   {"published", number_or_null(row.value)},
                   {"predicted", number_or_null(p.value)},
                   {"error", number_or_null(row.error())}};
  out["interval"] = nullptr;
  if (row.interval) out["interval"] = {row.interval->first, row.interval->second};
  out["extrapolated"] = p.extrapolated;
  out["runs_out_of_memory"] = p.runs_out ? ordered_json(*p.runs_out) : ordered_json(nullptr);
  out["expressed"] = p.expressed();
  out["in_scope"] = row.in_scope;
  out["held_out"] = !row.fitted;
  out["inconsistent"] = row.inconsistent;
  out["large"] = row.large;
  if (row.pool) out["unstated"] = row.unstated;
  if (!p.expressed()) out["reason"] = p.reason;
  if (!row.in_scope) out["out_of_scope"] = row.out_of_scope;
  if (misses_badly(row)) {
    const RowReason* why = find_reason(row);
    out["why_off"] = why != nullptr ? ordered_json(why->reason) : ordered_json(nullptr);
  }
  out["assumed"] = p.assumed;
  return out;
}

}  // namespace

std::string published_text(const PublishedScore& score, bool rows, std::size_t width) {
  std::size_t expressed = 0;
  for (const ScoredRow& row : score.rows) expressed += row.prediction.expressed() ? 1U : 0U;
  std::string out;
  if (rows) out += rows_table(score, width) + "\n";
  out += errors_table(score.pooled, width);
  out += paragraph(
      "errors are |predicted - published| / published; held out: rows of documents that no "
      "constant of their stack was taken from; verdicts: out of memory or not, right ones out of "
      "all; figures of runs predicted not to fit count as wrong",
      width);
  out += fmt::format(
      "\nexpressed  {} of all rows\n"
      "           {} of those in scope: GPU known, numbers\n"
      "           parse, inference\n",
      share_of(expressed, score.rows.size()),
      share_of(score.n_in_scope_expressed, score.n_in_scope));
  out += stacks_text(score, width);
  out += furthest_off(score, width);
  out += misses_text(score, width);
  out += unstated_text(score, width);
  const auto reasons = reasons_of(score);
  if (!reasons.empty()) out += "\nnot expressed\n" + reasons_text(reasons, width);
  return out;
}

ordered_json published_json(const PublishedScore& score, const std::string& file, bool rows) {
  std::size_t expressed = 0;
  std::size_t oom_right = 0;
  std::size_t oom_total = 0;
  for (const PublishedGroup& group : score.groups) {
    expressed += group.n_expressed;
    oom_right += group.oom_right;
    oom_total += group.oom_total;
  }
  ordered_json out{{"schema", "kvsim.validate-published/1"},
                   {"file", file},
                   {"n_total", score.rows.size()},
                   {"n_expressed", expressed},
                   {"n_in_scope", score.n_in_scope},
                   {"n_in_scope_expressed", score.n_in_scope_expressed},
                   {"oom_right", oom_right},
                   {"oom_total", oom_total}};
  out["groups"] = ordered_json::array();
  for (const PublishedGroup& group : score.groups) out["groups"].push_back(group_json(group));
  out["pooled"] = ordered_json::array();
  for (const PublishedGroup& group : score.pooled) out["pooled"].push_back(group_json(group));
  out["stacks"] = ordered_json::array();
  for (const PublishedGroup& group : score.stacks) out["stacks"].push_back(group_json(group));
  out["reasons"] = ordered_json::object();
  for (const auto& [reason, n] : reasons_of(score)) out["reasons"][reason] = n;
  out["out_of_scope"] = ordered_json::object();
  for (const auto& [reason, n] : score.out_of_scope) out["out_of_scope"][reason] = n;
  out["rules"] = ordered_json::object();
  for (const PublishedMetricInfo& rule : published_metric_rules()) {
    out["rules"][std::string{rule.name}] = rule.rule;
  }
  if (rows) {
    out["rows"] = ordered_json::array();
    for (const ScoredRow& row : score.rows) out["rows"].push_back(row_json(row));
  }
  return out;
}

std::string published_csv(const PublishedScore& score) {
  std::string out =
      "id,source,metric,unit,gpu,stack,dtype,model,method,published,predicted,error,interval_low,"
      "interval_high,extrapolated,runs_out_of_memory,in_scope,held_out,inconsistent,reason,"
      "assumed\n";
  const auto flag = [](bool value) { return value ? "1" : "0"; };
  for (const ScoredRow& row : score.rows) {
    const PublishedPrediction& p = row.prediction;
    const auto number = [](const std::optional<double>& value) {
      return value ? csv_number(*value) : std::string{};
    };
    std::vector<std::string> cells{csv_field(row.row.id),
                                   csv_field(row.row.source),
                                   csv_field(row.row.metric),
                                   csv_field(row.row.unit),
                                   csv_field(row.gpu),
                                   csv_field(row.stack),
                                   csv_field(row.dtype),
                                   csv_field(row.row.model),
                                   csv_field(row.row.method),
                                   number(row.value),
                                   number(p.value),
                                   number(row.error()),
                                   row.interval ? csv_number(row.interval->first) : std::string{},
                                   row.interval ? csv_number(row.interval->second) : std::string{},
                                   flag(p.extrapolated),
                                   p.runs_out ? flag(*p.runs_out) : "",
                                   flag(row.in_scope),
                                   flag(!row.fitted),
                                   flag(row.inconsistent),
                                   csv_field(p.expressed() ? std::string{} : p.reason),
                                   csv_field(fmt::format("{}", fmt::join(p.assumed, "; ")))};
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

}  // namespace kvsim
