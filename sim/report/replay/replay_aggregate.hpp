#pragma once

// What replays say together: a method against the oracle of the same trace, and against itself on
// other traces.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The distance of a method from `oracle-step` at the same requested budget.
struct OracleGap {
  std::optional<double> mass;         // the oracle's retained mass less the method's
  std::optional<double> error_ratio;  // the method's mean error over the oracle's
};
/// Empty where the oracle did not run at that budget, or one of the two has no such number (merges
/// retain no mass; an oracle without error has no ratio).
[[nodiscard]] OracleGap oracle_gap(const ReplayResult& replay, const ReplayMethod& method);

/// A number over traces, each counting once.
struct Spread {
  std::int64_t n = 0;
  double mean = 0;
  std::optional<double> sd;         // of the sample, n - 1 below; from two traces on
  std::optional<double> low, high;  // 95 % confidence interval of the mean, Student's t
};
/// Errors: ContractError of no values.
[[nodiscard]] Spread spread_of(const std::vector<double>& values);

/// The 0.975 quantile of Student's t with `degrees` >= 1 degrees of freedom, to 1e-3.
[[nodiscard]] double student_t_975(std::int64_t degrees);

/// A (method, budget) over the traces that it ran on.
struct AggregateRow {
  std::string name;
  std::optional<double> budget;
  std::vector<std::string> traces;
  bool reads_part = false;                            // of what it holds
  Spread rel_error, cosine, bytes_share, read_share;  // shares: of the full cache's, 1 is all
  std::optional<Spread> retained_mass;                // null unless every trace has it
  std::optional<Spread> oracle_mass_gap, oracle_error_ratio;
};
/// The metrics of a method on one trace.
struct AggregateSource {
  const ReplayResult* replay = nullptr;  // not owned
  const ReplayMethod* method = nullptr;  // one of its methods
};
/// The row of these, a trace each: the first's name and budget. Errors: ContractError of none, or
/// where one has no decode step.
[[nodiscard]] AggregateRow aggregate_row(const std::vector<AggregateSource>& sources);
/// In the order in which they first appear. Traces without decode steps have no errors and are left
/// out.
[[nodiscard]] std::vector<AggregateRow> aggregate(const std::vector<ReplayResult>& replays);

[[nodiscard]] nlohmann::ordered_json aggregate_json(const std::vector<AggregateRow>& rows);
[[nodiscard]] nlohmann::ordered_json aggregate_json(const AggregateRow& row);
/// The columns after "method,budget" that CSV files of means share, and a row's fields for them:
/// ",traces,rel_error_mean,…".
[[nodiscard]] std::string aggregate_columns();
[[nodiscard]] std::string aggregate_fields(const AggregateRow& row);
[[nodiscard]] std::string aggregate_csv(const std::vector<AggregateRow>& rows);
/// For the terminal, at most `width` columns.
[[nodiscard]] std::string aggregate_table(const std::vector<AggregateRow>& rows, std::size_t width);
/// Error against bytes, of the means.
[[nodiscard]] FigureSet aggregate_figures(const std::vector<AggregateRow>& rows);

}  // namespace kvsim
