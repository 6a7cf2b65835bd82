#pragma once

// Results of several replays: a method compared with the oracle of the same trace, and with itself
// on other traces.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/replay/replay_metrics.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Statistics of a number over traces; all traces have equal weight.
struct Spread {
  std::int64_t n = 0;
  double mean = 0;
  std::optional<double> sd;         // sample standard deviation (divisor n - 1); absent if n < 2
  std::optional<double> low, high;  // 95 % confidence interval of the mean, Student's t
};
/// Errors: ContractError if there are no values.
[[nodiscard]] Spread spread_of(const std::vector<double>& values);

/// Statistics of a (method, budget) over the traces that it ran on.
struct AggregateRow {
  std::string name;
  std::optional<double> budget;
  std::vector<std::string> traces;
  bool reads_part = false;  // reads only part of the entries that it holds
  // Absent unless every trace has the number: errors and shares of the full cache always.
  std::optional<Spread> rel_error, answer_error, cosine, retained_mass, bytes_share, read_share;
  std::optional<Spread> oracle_mass_gap, oracle_error_ratio;
};
/// The metrics of a method on one trace.
struct AggregateSource {
  const ReplayResult* replay = nullptr;  // not owned
  const ReplayMethod* method = nullptr;  // one of its methods
};
/// The row of these sources, one per trace, with the name and budget of the first. Errors:
/// ContractError if there are none, or if one has no decode step.
[[nodiscard]] AggregateRow aggregate_row(const std::vector<AggregateSource>& sources);
/// In order of first appearance. Traces without decode steps have no errors and are omitted.
[[nodiscard]] std::vector<AggregateRow> aggregate(const std::vector<ReplayResult>& replays);

/// The metrics that a row has a Spread of, in the order of documents and CSV files.
[[nodiscard]] MetricInfos aggregate_metrics();
[[nodiscard]] nlohmann::ordered_json aggregate_json(const std::vector<AggregateRow>& rows);
[[nodiscard]] nlohmann::ordered_json aggregate_json(const AggregateRow& row);
/// The columns after "method,budget" that CSV files of means share, ",traces,rel_error_mean,…", and
/// a row's fields for them.
[[nodiscard]] std::string aggregate_columns();
[[nodiscard]] std::string aggregate_fields(const AggregateRow& row);
[[nodiscard]] std::string aggregate_csv(const std::vector<AggregateRow>& rows);
/// A value with four decimals, and its interval; "-" if they are not finite, because a value of a
/// trace exceeds the range of the method's store.
[[nodiscard]] std::string fixed_text(double value);
[[nodiscard]] std::string interval_text(const Spread& spread);
/// For the terminal, at most `width` columns.
[[nodiscard]] std::string aggregate_table(const std::vector<AggregateRow>& rows, std::size_t width);
/// ReplayResult::source of several traces without duplicates: the first two and the number of
/// others.
[[nodiscard]] std::string sources_words(const std::vector<std::string>& sources);
/// Mean error against bytes; titles name the models of the traces.
[[nodiscard]] FigureSet aggregate_figures(const std::vector<AggregateRow>& rows,
                                          const std::vector<std::string>& sources);

}  // namespace kvsim
