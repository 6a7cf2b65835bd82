#include "validation/served/served_runs.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "validation/measured/csv_table.hpp"

namespace kvsim {
namespace {

struct Column {
  std::string_view name;
  std::string ServedRun::*cell;
};
constexpr std::array kSettings{
    Column{"run_id", &ServedRun::id},
    Column{"date", &ServedRun::date},
    Column{"gpu", &ServedRun::gpu},
    Column{"gpu_count", &ServedRun::gpu_count},
    Column{"tp", &ServedRun::tp},
    Column{"pp", &ServedRun::pp},
    Column{"ep_dp", &ServedRun::ep_dp},
    Column{"model", &ServedRun::model},
    Column{"weight_dtype", &ServedRun::weight_dtype},
    Column{"kv_dtype", &ServedRun::kv_dtype},
    Column{"engine", &ServedRun::engine},
    Column{"engine_version", &ServedRun::engine_version},
    Column{"engine_options", &ServedRun::engine_options},
    Column{"workload", &ServedRun::workload},
    Column{"input_tokens", &ServedRun::input_tokens},
    Column{"input_spread", &ServedRun::input_spread},
    Column{"output_tokens", &ServedRun::output_tokens},
    Column{"output_spread", &ServedRun::output_spread},
    Column{"arrival", &ServedRun::arrival},
    Column{"rate_rps", &ServedRun::rate_rps},
    Column{"concurrency", &ServedRun::concurrency},
    Column{"num_requests", &ServedRun::num_requests},
    Column{"seed", &ServedRun::seed},
};
// Rows of a run may come from several documents; the first row's remarks are kept.
constexpr std::array kRemarks{Column{"source", &ServedRun::source},
                              Column{"not_stated", &ServedRun::not_stated},
                              Column{"note", &ServedRun::note}};

struct Unit {
  std::string_view name;
  double scale;
};
constexpr std::array kUnits{Unit{"s", 1},          Unit{"ms", 1e-3},          Unit{"us", 1e-6},
                            Unit{"tok/s", 1},      Unit{"req/s", 1},          Unit{"requests", 1},
                            Unit{"tokens", 1},     Unit{"blocks", 1},         Unit{"%", 0.01},
                            Unit{"bytes", 1},      Unit{"seconds", 1},        Unit{"tokens/s", 1},
                            Unit{"requests/s", 1}, Unit{"GiB", 1073741824.0}, Unit{"GB", 1e9},
                            Unit{"", 1},           Unit{"count", 1},          Unit{"sequences", 1}};

/// Suffixes of the names of compared metrics, whose units must be known.
constexpr std::array<std::string_view, 12> kCompared{
    "ttft",      "tpot",     "itl",      "e2e",      "throughput",  "duration",
    "_requests", "kv_usage", "capacity", "_per_gpu", "preemptions", "saturation_rate"};
bool is_compared(std::string_view metric) {
  return std::any_of(kCompared.begin(), kCompared.end(),
                     [&](std::string_view end) { return metric.ends_with(end); });
}

std::optional<double> scale_of(std::string_view unit) {
  for (const Unit& known : kUnits) {
    if (known.name == unit) return known.scale;
  }
  return std::nullopt;
}

/// Returns the units that a compared metric may have; null: any known unit.
const char* units_of(std::string_view metric) {
  constexpr std::array<std::string_view, 5> kTimes{"ttft", "tpot", "itl", "e2e", "duration"};
  if (std::find(kTimes.begin(), kTimes.end(), metric) != kTimes.end()) return "s, ms or us";
  return metric.ends_with("throughput") ? "tok/s or req/s" : nullptr;
}
bool has_such_unit(std::string_view metric, std::string_view unit) {
  if (unit.empty() || units_of(metric) == nullptr) return true;
  const bool is_rate = unit.ends_with("/s");
  const bool is_time = unit == "s" || unit == "ms" || unit == "us" || unit == "seconds";
  return metric.ends_with("throughput") ? is_rate : is_time;
}

std::size_t column_of(const CsvTable& table, std::string_view name) {
  if (!table.has(name)) {
    throw InputError{table.place(), fmt::format("a column \"{}\"", name),
                     fmt::format("{} columns without it", table.columns().size())};
  }
  return table.index(name);
}

/// Marks runs whose values are all equal although their machines, models or engines differ: two
/// measurements never agree in every digit, so at least one of them was copied by mistake.
void mark_copies(std::vector<ServedRun>& runs) {
  constexpr std::size_t kFewest = 4;  // values that cannot be equal by chance
  constexpr std::array kWhat{
      &ServedRun::gpu,    &ServedRun::gpu_count,     &ServedRun::tp,           &ServedRun::pp,
      &ServedRun::ep_dp,  &ServedRun::model,         &ServedRun::weight_dtype, &ServedRun::kv_dtype,
      &ServedRun::engine, &ServedRun::engine_version};
  std::map<std::string, std::vector<std::size_t>> same;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].metrics.size() < kFewest) continue;
    std::set<std::string> values;
    for (const ServedMetric& m : runs[i].metrics) {
      values.insert(fmt::format("{} {} {}", m.metric, m.stat, m.value));
    }
    same[fmt::format("{}", fmt::join(values, ";"))].push_back(i);
  }
  for (const auto& [values, group] : same) {
    for (const std::size_t i : group) {
      const auto other = std::find_if(group.begin(), group.end(), [&](std::size_t k) {
        return std::any_of(kWhat.begin(), kWhat.end(), [&](std::string ServedRun::*cell) {
          return runs[i].*cell != runs[k].*cell;
        });
      });
      if (other != group.end()) runs[i].copy_of = runs[*other].id;
    }
  }
}

std::vector<ServedRun> runs_of(const CsvTable& table) {
  std::array<std::size_t, kSettings.size()> place{};
  for (std::size_t c = 0; c < kSettings.size(); ++c) {
    place[c] = column_of(table, kSettings[c].name);
  }
  std::array<std::size_t, kRemarks.size()> remarks{};
  for (std::size_t c = 0; c < kRemarks.size(); ++c) {
    remarks[c] = column_of(table, kRemarks[c].name);
  }
  const std::size_t metric = column_of(table, "metric");
  const std::size_t stat = column_of(table, "stat");
  const std::size_t value = column_of(table, "value");
  const std::size_t unit = column_of(table, "unit");

  std::vector<ServedRun> runs;
  std::map<std::string, std::size_t> index;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto at = [&](std::string_view column) {
      return fmt::format("{}:{}: {}", table.place(), table.line(row), column);
    };
    const std::string& id = table.text(row, place[0]);
    if (id.empty()) throw InputError{at("run_id"), "the name of a run", "\"\""};
    const auto [found, is_new] = index.try_emplace(id, runs.size());
    if (is_new) {
      ServedRun& run = runs.emplace_back();
      run.line = table.line(row);
      for (std::size_t c = 0; c < kSettings.size(); ++c) {
        run.*kSettings[c].cell = table.text(row, place[c]);
      }
      for (std::size_t c = 0; c < kRemarks.size(); ++c) {
        run.*kRemarks[c].cell = table.text(row, remarks[c]);
      }
    }
    ServedRun& run = runs[found->second];
    for (std::size_t c = 0; c < kSettings.size(); ++c) {
      const std::string& cell = table.text(row, place[c]);
      if (cell.empty() || run.*kSettings[c].cell == cell) continue;
      // One of its documents may state a setting that another does not.
      if ((run.*kSettings[c].cell).empty()) {
        run.*kSettings[c].cell = cell;
        continue;
      }
      throw InputError{at(kSettings[c].name),
                       fmt::format("\"{}\", as in line {} of the same run",
                                   excerpt(run.*kSettings[c].cell), run.line),
                       fmt::format("\"{}\"", excerpt(cell))};
    }
    const std::string& name = table.text(row, metric);
    if (name.empty()) throw InputError{at("metric"), "the name of a metric", "\"\""};
    const auto scale = scale_of(table.text(row, unit));
    if (!scale && is_compared(name)) {
      throw InputError{at("unit"),
                       "s, ms, us, tok/s, req/s, requests, tokens, blocks, sequences, count, % or "
                       "bytes",
                       fmt::format("\"{}\"", excerpt(table.text(row, unit)))};
    }
    if (!has_such_unit(name, table.text(row, unit))) {
      throw InputError{at("unit"), fmt::format("{} of {}", units_of(name), name),
                       fmt::format("\"{}\"", excerpt(table.text(row, unit)))};
    }
    constexpr double kLargest = std::numeric_limits<double>::max();
    run.metrics.push_back(
        {.metric = name,
         .stat = table.text(row, stat),
         .unit = table.text(row, unit),
         .value = table.number(row, value, units_of(name) != nullptr ? 0 : -kLargest, kLargest) *
                  scale.value_or(1),
         .line = table.line(row)});
  }
  mark_copies(runs);
  return runs;
}

}  // namespace

std::vector<ServedRun> parse_served_runs(std::string_view text, std::string_view name) {
  return runs_of(CsvTable::parse(text, std::string{name}));
}

std::vector<ServedMetric> read_served_timeline(const std::filesystem::path& path) {
  struct Series {
    std::string_view column, metric;
    double scale;
  };
  constexpr std::array kSeries{Series{"running", "running_requests", 1},
                               Series{"waiting", "waiting_requests", 1},
                               Series{"kv_usage_pct", "kv_usage", 0.01}};
  const CsvTable table = CsvTable::read_file(path);
  if (table.rows() == 0) throw InputError{table.place(), "at least one row", "none"};
  std::vector<ServedMetric> out;
  for (const Series& series : kSeries) {
    const std::size_t column = column_of(table, series.column);
    double sum = 0;
    double max_usage = 0;
    for (std::size_t row = 0; row < table.rows(); ++row) {
      const double value = series.scale * table.number(row, column, 0, 1e9);
      sum += value;
      max_usage = std::max(max_usage, value);
    }
    const auto n = static_cast<double>(table.rows());
    out.push_back({.metric = std::string{series.metric},
                   .stat = "mean",
                   .unit = {},
                   .value = sum / n,
                   .line = 0});
    if (series.metric != "kv_usage") continue;
    out.push_back({.metric = "kv_usage", .stat = "max", .unit = {}, .value = max_usage, .line = 0});
  }
  return out;
}

std::vector<ServedRun> read_served_runs(const std::filesystem::path& path) {
  return runs_of(CsvTable::read_file(path));
}

}  // namespace kvsim
