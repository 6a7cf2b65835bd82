#include "sim/report/replay/replay_aggregate.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/math/student_t.hpp"
#include "models/units/check.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/replay/error_figures.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {

using nlohmann::ordered_json;

Spread spread_of(const std::vector<double>& values) {
  KVSIM_CHECK(!values.empty(), "the mean of nothing");
  Spread spread;
  spread.n = static_cast<std::int64_t>(values.size());
  const auto n = static_cast<double>(values.size());
  for (const double x : values) spread.mean += x;
  spread.mean /= n;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double x : values) squares += (x - spread.mean) * (x - spread.mean);
  spread.sd = std::sqrt(squares / (n - 1));
  const double half = student_t_975(spread.n - 1) * *spread.sd / std::sqrt(n);
  spread.low = spread.mean - half;
  spread.high = spread.mean + half;
  return spread;
}

namespace {

/// A mean over traces: its number on one of them, and its place in a row.
struct Mean {
  MetricInfo info;
  std::optional<double> (*on)(const AggregateSource&);
  std::optional<Spread> AggregateRow::*spread;
};
constexpr MetricInfo mean_info(std::string_view key, MetricColumn page = {}) {
  MetricInfo info;
  info.page = page;
  info.key = key;
  return info;
}
template <auto Member>
std::optional<double> member(const AggregateSource& one) {
  return one.method->*Member;
}
using Row = AggregateRow;
constexpr std::array kMeans{
    Mean{mean_info("rel_error", {3, "mean error"}), member<&ReplayMethod::rel_error_mean>,
         &Row::rel_error},
    Mean{mean_info("answer_error", {4, "error at answers"}),
         member<&ReplayMethod::answer_error_mean>, &Row::answer_error},
    Mean{mean_info("cosine", {5, "cosine"}), member<&ReplayMethod::cosine_mean>, &Row::cosine},
    Mean{mean_info("retained_mass", {6, "mass retained", "share"}),
         member<&ReplayMethod::retained_mass_mean>, &Row::retained_mass},
    Mean{mean_info("bytes_share", {1, "bytes held (share of full)", "share"}),
         [](const AggregateSource& one) {
           return std::optional{static_cast<double>(one.method->bytes_held_final) /
                                static_cast<double>(one.method->bytes_full_final)};
         },
         &Row::bytes_share},
    Mean{mean_info("read_share", {2, "bytes read (share of full)", "share"}),
         [](const AggregateSource& one) {
           return std::optional{one.method->bytes_read_total / one.method->bytes_full_read_total};
         },
         &Row::read_share},
    Mean{mean_info("oracle_mass_gap"),
         [](const AggregateSource& one) { return oracle_gap(*one.replay, *one.method).mass; },
         &Row::oracle_mass_gap},
    Mean{
        mean_info("oracle_error_ratio", {7, "error / oracle error"}),
        [](const AggregateSource& one) { return oracle_gap(*one.replay, *one.method).error_ratio; },
        &Row::oracle_error_ratio},
};

ordered_json spread_json(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  const auto or_null = [](const std::optional<double>& x) {
    return x && std::isfinite(*x) ? ordered_json(*x) : ordered_json(nullptr);
  };
  return {{"mean", or_null(spread->mean)},
          {"sd", or_null(spread->sd)},
          {"ci95_low", or_null(spread->low)},
          {"ci95_high", or_null(spread->high)}};
}

}  // namespace

AggregateRow aggregate_row(const std::vector<AggregateSource>& sources) {
  KVSIM_CHECK(!sources.empty(), "the mean of no trace");
  AggregateRow row;
  row.name = sources.front().method->name;
  row.budget = sources.front().method->budget;
  for (const auto& [replay, method] : sources) {
    KVSIM_CHECK(method->steps > 0, "{} on {} has no decode step", method->name, replay->trace);
    row.traces.push_back(replay->trace);
    row.reads_part = row.reads_part || method->entries_read_share < 1;
  }
  for (const Mean& mean : kMeans) {
    std::vector<double> values;  // one per trace
    for (const AggregateSource& one : sources) {
      if (const auto value = mean.on(one)) values.push_back(*value);
    }
    if (values.size() == sources.size()) row.*mean.spread = spread_of(values);
  }
  return row;
}

std::vector<AggregateRow> aggregate(const std::vector<ReplayResult>& replays) {
  std::vector<std::vector<AggregateSource>> all;  // one per (method, budget)
  for (const ReplayResult& replay : replays) {
    for (const ReplayMethod& method : replay.methods) {
      if (method.steps == 0) continue;
      auto found = std::find_if(all.begin(), all.end(), [&](const auto& sources) {
        const ReplayMethod& first = *sources.front().method;
        return first.name == method.name && first.budget == method.budget;
      });
      if (found == all.end()) found = all.insert(all.end(), std::vector<AggregateSource>{});
      found->push_back({&replay, &method});
    }
  }
  std::vector<AggregateRow> rows;
  for (const auto& sources : all) rows.push_back(aggregate_row(sources));
  return rows;
}

MetricInfos aggregate_metrics() {
  MetricInfos out;
  for (const Mean& mean : kMeans) out.push_back(&mean.info);
  return out;
}

ordered_json aggregate_json(const AggregateRow& row) {
  ordered_json one{{"name", row.name}, {"budget", nullptr}, {"traces", row.traces}};
  if (row.budget && *row.budget > 1) {
    one["budget"] = static_cast<std::int64_t>(*row.budget);
  } else if (row.budget) {
    one["budget"] = *row.budget;
  }
  for (const Mean& mean : kMeans) one[std::string{mean.info.key}] = spread_json(row.*mean.spread);
  return one;
}

ordered_json aggregate_json(const std::vector<AggregateRow>& rows) {
  ordered_json out = ordered_json::array();
  for (const AggregateRow& row : rows) out.push_back(aggregate_json(row));
  return out;
}

std::string aggregate_columns() {
  std::string out = ",traces";
  for (const Mean& mean : kMeans) {
    out += fmt::format(",{0}_mean,{0}_sd,{0}_ci95_low,{0}_ci95_high", mean.info.key);
  }
  return out;
}

std::string aggregate_fields(const AggregateRow& row) {
  std::string out = fmt::format(",{}", row.traces.size());
  const auto put = [&out](const std::optional<double>& x) {
    out += ',';
    if (x) out += csv_number(*x);
  };
  for (const Mean& mean : kMeans) {
    const std::optional<Spread>& each = row.*mean.spread;
    put(each ? std::optional{each->mean} : std::nullopt);
    put(each ? each->sd : std::nullopt);
    put(each ? each->low : std::nullopt);
    put(each ? each->high : std::nullopt);
  }
  return out;
}

std::string aggregate_csv(const std::vector<AggregateRow>& rows) {
  std::string out = fmt::format("method,budget{}\n", aggregate_columns());
  for (const AggregateRow& row : rows) {
    out += fmt::format("{},{}{}\n", csv_field(row.name), row.budget ? csv_number(*row.budget) : "",
                       aggregate_fields(row));
  }
  return out;
}

std::string fixed_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

std::string interval_text(const Spread& spread) {
  if (!spread.low || !std::isfinite(*spread.low)) return "-";
  return fmt::format("{:.4f} to {:.4f}", *spread.low, *spread.high);
}

std::string aggregate_table(const std::vector<AggregateRow>& rows, std::size_t width) {
  Table table{{{"method", Table::Align::kLeft},
               {"budget"},
               {"traces"},
               {"of full"},
               {"read"},
               {"error"},
               {"95 % interval"},
               {"mass"}}};
  for (const AggregateRow& row : rows) {
    const Spread& error = *row.rel_error;
    table.add_row(
        {row.name, row.budget ? budget_text(*row.budget) : "-",
         fmt::format("{}", row.traces.size()), fmt::format("{:.1f} %", row.bytes_share->mean * 100),
         fmt::format("{:.1f} %", row.read_share->mean * 100), fixed_text(error.mean),
         interval_text(error), row.retained_mass ? fixed_text(row.retained_mass->mean) : "-"});
  }
  return table.str(width);
}

std::string sources_words(const std::vector<std::string>& sources) {
  constexpr std::size_t kMaxNamed = 2;
  std::vector<std::string> distinct;
  for (const std::string& source : sources) {
    if (std::find(distinct.begin(), distinct.end(), source) == distinct.end()) {
      distinct.push_back(source);
    }
  }
  const std::size_t more = distinct.size() - std::min(distinct.size(), kMaxNamed);
  distinct.resize(distinct.size() - more);
  std::string out = fmt::format("{}", fmt::join(distinct, "; "));
  if (more > 0) out += fmt::format("; and {} more", more);
  return out;
}

FigureSet aggregate_figures(const std::vector<AggregateRow>& rows,
                            const std::vector<std::string>& sources) {
  FigureSet set;
  std::vector<ErrorMark> marks;
  std::size_t traces = 0;
  for (const AggregateRow& row : rows) traces = std::max(traces, row.traces.size());
  for (const AggregateRow& row : rows) {
    const bool everywhere = row.traces.size() == traces;
    // If the mean is over fewer traces, the label states this for comparisons.
    marks.push_back(
        {.method = everywhere ? row.name
                              : fmt::format("{} ({} of {})", row.name, row.traces.size(), traces),
         .error = row.rel_error->mean,
         .held = row.bytes_share->mean,
         .read = row.read_share->mean,
         .reads_part = row.reads_part});
  }
  add_error_figures(marks, fmt::format("means over {} traces ({})", traces, sources_words(sources)),
                    set);
  return set;
}

}  // namespace kvsim
