#include "sim/report/replay/replay_summary.hpp"

#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/folder/summary_blocks.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

using E = ReplayStderr;

std::optional<double> error_of(const ReplayMethod& m, std::optional<double> E::*member) {
  return m.standard_errors ? (*m.standard_errors).*member : std::nullopt;
}
/// "0.12 ± 0.01" of a sample.
std::string with_error(double mean, const std::optional<double>& error) {
  return error ? fmt::format("{} ± {:.1g}", amount(mean), *error) : amount(mean);
}

std::string replay_table(const ReplayResult& replay, std::size_t width) {
  std::vector<Table::Column> columns{
      {"method", Align::kLeft}, {"budget"}, {"entries"}, {"bytes"}, {"of full"}, {"error"}};
  // Only one of the two fits into 80 columns.
  const bool has_answers = !where_ranked(replay).empty();
  columns.push_back({has_answers ? "answers" : "p99"});
  columns.push_back({"size law", Align::kLeft});
  Table table{std::move(columns)};
  for (const ReplayMethod& m : replay.methods) {
    std::string budget = "-";
    if (m.budget) {
      budget = *m.budget <= 1 ? fmt::format("{:g} %", *m.budget * 100) : amount(*m.budget);
    }
    const double part = m.bytes_full_final > 0 ? static_cast<double>(m.bytes_held_final) /
                                                     static_cast<double>(m.bytes_full_final)
                                               : 0;
    std::string closed = "none";
    if (m.closed_form_bytes_final) {
      closed = *m.closed_form_bytes_final == m.bytes_held_final
                   ? "agrees"
                   : "says " + to_text(Bytes{*m.closed_form_bytes_final});
    }
    std::vector<std::string> row{m.name,
                                 budget,
                                 with_commas(m.entries_held_final),
                                 to_text(Bytes{m.bytes_held_final}),
                                 fmt::format("{:.1f} %", part * 100),
                                 with_error(m.rel_error_mean, error_of(m, &E::rel_error_mean))};
    if (!has_answers) {
      row.push_back(amount(m.rel_error_p99));
    } else {
      row.push_back(m.answer_error_mean
                        ? with_error(*m.answer_error_mean, error_of(m, &E::answer_error_mean))
                        : "-");
    }
    row.push_back(std::move(closed));
    table.add_row(std::move(row));
  }
  return table.str(width);
}

std::string replay_heading(const ReplayResult& replay, std::size_t width) {
  std::string text = fmt::format(
      "Replay of trace {} ({}): cache held after the last decode step, and error of the attention "
      "output against the full cache.",
      replay.trace, replay.source);
  if (const auto& sample = replay.sample) {
    text += fmt::format(
        " A sample of {} of {} layers and {} of {} KV heads of each: entries and bytes are the "
        "sample's, errors have their standard error.",
        sample->layers.size(), sample->of_layers, sample->kv_heads, sample->of_kv_heads);
  }
  if (replay.steps) {
    text += fmt::format(" Errors are those of {} of {} decode steps, with their standard error.",
                        replay.steps->measured, replay.steps->of);
  }
  return paragraph(text, width);
}

/// Empty if no two methods hold equal bytes.
std::string equal_bytes_block(const ReplayResult& replay, std::size_t width) {
  const std::string table = equal_bytes_table(replay, width);
  if (table.empty()) return "";
  return paragraph(
             fmt::format("Mean relative errors{} of methods that hold equal bytes, within {:.0f} "
                         "%, in shares of the full cache:",
                         where_ranked(replay), 100 * (kEqualBytes - 1)),
             width) +
         table;
}

}  // namespace

std::string replay_block(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                         std::size_t width) {
  std::string out = replay_heading(replay, width) + replay_table(replay, width);
  if (const std::string equal = equal_bytes_block(replay, width); !equal.empty()) {
    out += "\n" + equal;
  }
  for (const SkippedMethod& m : skipped) {
    out += paragraph(fmt::format("skipped {}: {}", m.name, m.reason), width, 8);
  }
  std::set<std::pair<std::string, std::string>> said;  // prints a note that several budgets share
                                                       // once
  for (const ReplayMethod& m : replay.methods) {
    for (const std::string& note : m.notes) {
      if (!said.emplace(m.name, note).second) continue;
      out += paragraph(fmt::format("note: {}: {}", m.name, note), width, 6);
    }
  }
  return out;
}

std::string replay_summary(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                           const ResultsFolder* written, std::size_t width) {
  return replay_block(replay, skipped, width) + finding_block(replay_finding(replay), width) +
         files_block(written, width);
}

std::string aggregate_summary(const std::vector<ReplayResult>& replays,
                              const ResultsFolder* written, std::size_t width) {
  std::set<std::string> sources;
  for (const ReplayResult& replay : replays) sources.insert(replay.source);
  const std::vector<AggregateRow> rows = aggregate(replays);
  std::string out = paragraph(fmt::format("Means over {} traces ({}), each with equal weight; the "
                                          "interval of the mean error is Student's.",
                                          replays.size(), fmt::join(sources, "; ")),
                              width);
  out += aggregate_table(rows, width);
  if (const std::string equal = equal_bytes_block(replay_of_means(rows), width); !equal.empty()) {
    out += "\n" + equal;
  }
  return out + finding_block(aggregate_finding(rows), width) + files_block(written, width);
}

}  // namespace kvsim
