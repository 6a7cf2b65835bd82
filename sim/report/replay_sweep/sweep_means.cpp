#include "sim/report/replay_sweep/sweep_means.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "sim/report/figure/line_names.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/table.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

using nlohmann::ordered_json;

std::vector<SweepMean> sweep_means(const ReplaySweep& sweep) {
  std::vector<std::vector<AggregateSource>> of_cells(sweep.cells.size());
  for (const ReplayJob& job : sweep.jobs) {
    for (std::size_t m = 0; m < job.ran.size(); ++m) {
      const ReplayMethod& method = job.result.methods[m];
      if (method.steps > 0) of_cells[job.ran[m]].push_back({&job.result, &method});
    }
  }
  std::vector<SweepMean> means;
  for (std::size_t i = 0; i < of_cells.size(); ++i) {
    if (!of_cells[i].empty()) means.push_back({i, aggregate_row(of_cells[i])});
  }
  return means;
}

std::vector<std::size_t> best_means(const ReplaySweep& sweep, const std::vector<SweepMean>& means) {
  // By budget in order of appearance, then by equal bytes within a budget.
  std::vector<double> shares;
  for (const SweepMean& mean : means) shares.push_back(mean.over.bytes_share->mean);
  std::vector<std::size_t> band_of(means.size());
  const std::vector<std::vector<std::size_t>> bands = equal_bytes_bands(shares);
  for (std::size_t b = 0; b < bands.size(); ++b) {
    for (const std::size_t m : bands[b]) band_of[m] = b;
  }
  std::vector<std::pair<std::pair<std::optional<double>, std::size_t>, std::size_t>> best;
  for (std::size_t m = 0; m < means.size(); ++m) {
    const auto& values = sweep.cells[means[m].cell].values;
    const AggregateRow& row = means[m].over;
    if (row.traces.size() < sweep.jobs.size() || !std::isfinite(row.rel_error->mean)) continue;
    if (std::none_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); })) {
      continue;
    }
    const std::pair group{row.budget, band_of[m]};
    const auto found = std::find_if(best.begin(), best.end(),
                                    [&](const auto& each) { return each.first == group; });
    if (found == best.end()) {
      best.emplace_back(group, m);
    } else if (row.rel_error->mean < means[found->second].over.rel_error->mean) {
      found->second = m;
    }
  }
  std::vector<std::size_t> out;
  out.reserve(best.size());
  for (const auto& [group, m] : best) out.push_back(m);
  return out;
}

ordered_json sweep_means_json(const ReplaySweep& sweep, const std::vector<SweepMean>& means) {
  ordered_json out = ordered_json::array();
  for (const auto& [cell, row] : means) {
    ordered_json one{{"values", values_json(sweep, sweep.cells[cell])}};
    one.update(aggregate_json(row));
    out.push_back(std::move(one));
  }
  return out;
}

std::string sweep_means_csv(const ReplaySweep& sweep) {
  std::string out = "method,budget";
  for (const SweepAxis& axis : sweep.axes) out.append(",").append(csv_field(axis.name));
  out += aggregate_columns() + "\n";
  for (const auto& [cell, row] : sweep_means(sweep)) {
    out += fmt::format("{},{}", csv_field(row.name), row.budget ? csv_number(*row.budget) : "");
    for (const auto& value : sweep.cells[cell].values) {
      out += ',';
      if (value) out += csv_field(to_text(*value));
    }
    out += aggregate_fields(row) + "\n";
  }
  return out;
}

std::string sweep_means_table(const ReplaySweep& sweep, const std::vector<SweepMean>& means,
                              std::size_t width) {
  std::vector<Table::Column> columns;
  const bool named = sweep.methods.size() > 1;
  if (named) columns.push_back({"method", Table::Align::kLeft});
  columns.push_back({"budget"});
  for (const SweepAxis& axis : sweep.axes) columns.push_back({axis.name});
  for (const char* header : {"traces", "of full", "error", "sd", "95 % interval"}) {
    columns.push_back({header});
  }
  Table table{columns};
  for (const auto& [cell, mean] : means) {
    const Spread& error = *mean.rel_error;
    std::vector<std::string> row;
    if (named) row.push_back(mean.name);
    row.push_back(mean.budget ? budget_text(*mean.budget) : "-");
    for (const auto& value : sweep.cells[cell].values) row.push_back(value_cell(value));
    row.push_back(fmt::format("{}", mean.traces.size()));
    row.push_back(fmt::format("{:.1f} %", mean.bytes_share->mean * 100));
    const bool is_number = std::isfinite(error.mean);
    row.push_back(is_number ? fmt::format("{:.4g}", error.mean) : "-");
    row.push_back(is_number && error.sd ? fmt::format("{:.2g}", *error.sd) : "-");
    row.push_back(interval_text(error));
    table.add_row(std::move(row));
  }
  return table.str(width);
}

}  // namespace kvsim
