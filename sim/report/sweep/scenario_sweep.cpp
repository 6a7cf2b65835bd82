#include "sim/report/sweep/scenario_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/excerpt.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/report/batch/engine_report.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/sweep/scenario_sweep_page.hpp"
#include "sim/report/sweep/sweep_engines.hpp"
#include "sim/report/sweep/sweep_finding.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/serve_metrics.hpp"
#include "sim/sweep/points_file.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// The metrics that sweeps can show. A sweep has the metrics that its results contain.
/// `percentile`: of the times of a service's requests.
std::vector<SweepMeasure> known_measures(int percentile) {
  MetricInfos metrics = infos_of(static_metrics());
  for (const MetricInfo* info : infos_of(service_metrics())) {
    if (find_info(metrics, info->key) == nullptr) metrics.push_back(info);
  }
  std::vector<SweepMeasure> measures;
  for (const MetricInfo* info : shown_in(metrics, &MetricUse::sweep)) {
    const MetricColumn& column = info->sweep;
    SweepMeasure one{std::string{info->key},          std::string{column.header},
                     std::string{info->words},        std::string{column.unit},
                     column.unit == "GiB" ? kGiB : 1, info->higher_is_better};
    if (info->kind == MetricKind::kLatency) {
      one.path += fmt::format("/p{}", percentile);
      one.header += fmt::format(" p{}", percentile);
      one.words += fmt::format(", p{}", percentile);
    }
    measures.push_back(std::move(one));
  }
  return measures;
}

/// The percentile that the scenario's plan requests.
int percentile_of(const SweepPlan& plan) {
  const json::json_pointer attainment{"/plan/attainment"};
  const json& echo = plan.echo();
  return echo.contains(attainment) && echo.at(attainment).is_number()
             ? shown_percentile(echo.at(attainment).get<double>())
             : 90;
}

const ordered_json* find_path(const ordered_json& results, std::string_view path) {
  const ordered_json* at = &results;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string{path.substr(0, slash)});
    if (found == at->end()) return nullptr;
    at = &*found;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return at;
}

std::string last_token(const std::string& pointer) {
  return pointer.substr(pointer.rfind('/') + 1);
}

/// The columns of one axis: one, or one per key of its objects.
std::vector<SweepColumn> columns_of(const ScenarioAxis& axis, std::size_t a) {
  const std::string own = last_token(axis.pointer);
  const bool objects = std::any_of(axis.values.begin(), axis.values.end(),
                                   [](const json& value) { return value.is_object(); });
  if (!objects) return {{.name = own, .axis = a}};
  std::vector<SweepColumn> columns{{.name = own, .axis = a, .key = "name"}};
  std::set<std::string> keys;
  for (const json& value : axis.values) {
    if (!value.is_object()) continue;
    for (const auto& [key, part] : value.items()) {
      if (key != "name" && !part.is_null()) keys.insert(key);
    }
  }
  if (keys.erase("budget") > 0) columns.push_back({.name = "budget", .axis = a, .key = "budget"});
  for (const std::string& key : keys) columns.push_back({.name = key, .axis = a, .key = key});
  return columns;
}

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string lines(std::string_view text, std::size_t width) {
  std::string out;
  for (const std::string& line : wrapped(text, width)) out += line + "\n";
  return out;
}

/// Names and values of all scalars in `results`: "ttft_s_p90".
void flatten(const ordered_json& results, const std::string& before,
             std::vector<std::pair<std::string, const ordered_json*>>& out) {
  for (const auto& [key, value] : results.items()) {
    const std::string name = before.empty() ? key : fmt::format("{}_{}", before, key);
    if (value.is_object()) {
      flatten(value, name, out);
    } else if (!value.is_array() && !value.is_null()) {
      out.emplace_back(name, &value);
    }
  }
}

std::string csv_value(const json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return csv_field(value.get<std::string>());
  return csv_field(dumped(value));
}

/// The columns whose values differ between points.
std::vector<SweepColumn> distinguishing_columns(const ScenarioSweep& sweep) {
  std::vector<SweepColumn> out;
  for (const SweepColumn& column : sweep.columns()) {
    std::optional<json> first;
    for (std::size_t i = 0; i < sweep.size(); ++i) {
      const json value = sweep.value(column, i);
      if (value.is_null() || value == first) continue;
      if (first) {
        out.push_back(column);
        break;
      }
      first = value;
    }
  }
  return out;
}

std::string best_text(const ScenarioSweep& sweep, std::size_t width) {
  std::string out;
  const auto is_full = [&](std::size_t point) {
    return std::any_of(sweep.columns().begin(), sweep.columns().end(), [&](const auto& column) {
      return column.name == "method" && sweep.value(column, point) == "full";
    });
  };
  for (const SweepMeasure& measure : sweep.measures()) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < sweep.size(); ++i) {
      const auto value = sweep.measure(measure, i);
      if (!value || sweep.ran_out(i)) continue;
      const double than = best ? *sweep.measure(measure, *best) : 0;
      const bool better = !best || (measure.higher_is_better ? *value > than : *value < than);
      // Ties in the digits that are printed go to the full cache: a method without a gain is not
      // recommended.
      constexpr double kDigits = 5e-4;
      const bool near = best && std::abs(*value - than) <= kDigits * std::abs(than);
      const bool changes = near && is_full(i) != is_full(*best);
      if (changes ? is_full(i) : better) best = i;
    }
    if (!best) continue;
    std::string ends;
    if (const auto interval = sweep.interval(measure, *best)) {
      ends = fmt::format(" (90 % interval {:.4g} to {:.4g})", interval->first / measure.divisor,
                         interval->second / measure.divisor);
    }
    out += lines(fmt::format("{} {}: {:.4g}{}{}{}, {}", measure.higher_is_better ? "most" : "least",
                             measure.words, *sweep.measure(measure, *best) / measure.divisor,
                             measure.unit.empty() ? "" : " ", measure.unit, ends,
                             clean_text(sweep_point_words(sweep, *best))),
                 width);
  }
  return out;
}

std::string table_of(const ScenarioSweep& sweep, std::size_t width) {
  constexpr std::size_t kMaxRows = 40;
  constexpr std::size_t kMaxMeasures = 5;
  std::vector<Table::Column> columns{{"point"}};
  const std::vector<SweepColumn> distinguishing = distinguishing_columns(sweep);
  for (const SweepColumn& column : distinguishing) {
    columns.push_back({column.name, Table::Align::kLeft});
  }
  const std::size_t shown = std::min(sweep.measures().size(), kMaxMeasures);
  for (std::size_t m = 0; m < shown; ++m) columns.push_back({sweep.measures()[m].header});
  Table table{columns};
  const std::size_t rows = std::min(sweep.size(), kMaxRows);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<std::string> cells{fmt::format("{}", i)};
    for (const SweepColumn& column : distinguishing) {
      cells.push_back(sweep_value_text(sweep.value(column, i)));
    }
    for (std::size_t m = 0; m < shown; ++m) {
      const SweepMeasure& measure = sweep.measures()[m];
      const auto value = sweep.measure(measure, i);
      cells.push_back(value              ? fmt::format("{:.4g}", *value / measure.divisor)
                      : sweep.skipped(i) ? "skipped"
                      : sweep.ran_out(i) ? "OOM"
                                         : "-");
    }
    table.add_row(std::move(cells));
  }
  std::string out = table.str(width);
  if (rows < sweep.size()) {
    out += fmt::format("… and {} more points\n",
                       with_commas(static_cast<std::int64_t>(sweep.size() - rows)));
  }
  return out;
}

}  // namespace

ScenarioSweep::ScenarioSweep(const SweepPlan& plan, std::vector<std::string> objects, int threads)
    : plan_{&plan},
      objects_{std::move(objects)},
      skipped_(objects_.size()),
      ran_out_(objects_.size()),
      threads_{threads} {
  KVSIM_CHECK(objects_.size() == plan.size(), "{} objects of {} points", objects_.size(),
              plan.size());
  for (std::size_t a = 0; a < plan.axes().size(); ++a) {
    for (SweepColumn& column : columns_of(plan.axes()[a], a)) {
      const bool taken =
          std::any_of(columns_.begin(), columns_.end(),
                      [&](const SweepColumn& each) { return each.name == column.name; });
      if (taken) column.name = plan.axes()[a].pointer.substr(1) + "/" + column.name;
      columns_.push_back(std::move(column));
    }
  }
  const std::vector<SweepMeasure> known = known_measures(percentile_of(plan));
  std::vector<std::vector<std::optional<double>>> all(
      known.size(), std::vector<std::optional<double>>(objects_.size()));
  parallel_for(objects_.size(), threads_, [&](std::size_t i) {
    const ordered_json point = object(i);
    KVSIM_CHECK(point.at("point") == i, "object {} is of point {}", i, point.at("point").dump());
    skipped_[i] = point.contains("skipped") ? 1 : 0;
    if (skipped(i)) return;
    const ordered_json& results = point.at("results");
    const ordered_json* fits = find_path(results, "fits");
    ran_out_[i] = fits != nullptr && *fits == false ? 1 : 0;
    for (std::size_t m = 0; m < known.size(); ++m) {
      const ordered_json* value = find_path(results, known[m].path);
      if (value != nullptr && value->is_number()) all[m][i] = value->get<double>();
    }
  });
  for (std::size_t m = 0; m < known.size(); ++m) {
    if (std::none_of(all[m].begin(), all[m].end(), [](const auto& x) { return x.has_value(); })) {
      continue;
    }
    measures_.push_back(known[m]);
    measured_.push_back(std::move(all[m]));
  }
}

ordered_json ScenarioSweep::object(std::size_t point) const {
  return ordered_json::parse(objects_.at(point));
}

json ScenarioSweep::value(const SweepColumn& column, std::size_t point) const {
  const json whole = plan_->values(point).at(column.axis);
  if (column.key.empty()) return whole;
  if (whole.is_object()) return whole.contains(column.key) ? whole.at(column.key) : json(nullptr);
  return column.key == "name" ? whole : json(nullptr);
}

std::optional<double> ScenarioSweep::measure(const SweepMeasure& measure, std::size_t point) const {
  for (std::size_t m = 0; m < measures_.size(); ++m) {
    if (measures_[m].path == measure.path) return measured_[m].at(point);
  }
  return std::nullopt;
}

std::optional<std::pair<double, double>> ScenarioSweep::interval(const SweepMeasure& measure,
                                                                 std::size_t point) const {
  const ordered_json whole = object(point);
  if (!whole.contains("results")) return std::nullopt;
  // The interval of "ttft_s/p90" is in "ttft_s_low/p90".
  const std::size_t slash = std::min(measure.path.find('/'), measure.path.size());
  const auto end = [&](std::string_view which) {
    const ordered_json* value = find_path(
        whole.at("results"),
        fmt::format("{}_{}{}", measure.path.substr(0, slash), which, measure.path.substr(slash)));
    return value != nullptr && value->is_number() ? std::optional{value->get<double>()}
                                                  : std::nullopt;
  };
  const std::optional<double> low = end("low");
  const std::optional<double> high = end("high");
  if (!low || !high) return std::nullopt;
  return std::pair{*low, *high};
}

std::string sweep_value_text(const json& value) {
  if (value.is_null()) return "-";
  return clean_text(value.is_string() ? value.get<std::string>() : dumped(value));
}

std::string sweep_point_words(const ScenarioSweep& sweep, std::size_t point) {
  std::vector<std::string> words;
  for (const SweepColumn& column : distinguishing_columns(sweep)) {
    const json value = sweep.value(column, point);
    if (!value.is_null())
      words.push_back(fmt::format("{} {}", column.name, excerpt(sweep_value_text(value))));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string sweep_header(const SweepPlan& plan) {
  const ordered_json header{{"schema", "kvsim.sweep-points/1"},
                            {"kvsim", kvsim_version()},
                            {"hash", plan.hash()},
                            {"points", plan.size()},
                            {"sweep", plan.echo()}};
  return header.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string scenario_sweep_text(const ScenarioSweep& sweep, const std::vector<std::string>& notes) {
  const SweepPlan& plan = sweep.plan();
  ordered_json head{{"schema", "kvsim.scenario-sweep/1"}};
  head["kvsim"] = {{"version", kvsim_version()}};
  head["scenario"] = {
      {"name", plan.name()}, {"kind", plan.kind()}, {"hash", plan.hash()}, {"echo", plan.echo()}};
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < sweep.size(); ++i) skipped += sweep.skipped(i) ? 1U : 0U;
  head["n_points"] = sweep.size();
  head["n_skipped"] = skipped;
  head["finding"] = sweep_finding(sweep);
  head["engines"] = engines_json(sweep_engines(sweep));
  head["notes"] = notes;
  std::string out = to_file_text(head);
  out.resize(out.rfind("\n}"));  // the end of the object
  out += ",\n  \"points\": [";
  std::vector<std::string> parts(sweep.size());
  parallel_for(sweep.size(), sweep.threads(), [&](std::size_t i) {
    const std::vector<json> values = plan.values(i);
    ordered_json named = ordered_json::object();
    for (std::size_t a = 0; a < values.size(); ++a) named[plan.axes()[a].pointer] = values[a];
    std::string& part = parts[i];
    part = i == 0 ? "\n    " : ",\n    ";
    // Inserted between the hash and the text after it; no user text precedes this position.
    const std::string& text = sweep.text(i);
    const std::size_t at =
        text.find(sweep.skipped(i) ? std::string_view{",\"skipped\":"} : ",\"results\":");
    KVSIM_CHECK(at != std::string::npos, "an object without results: {}", text);
    part += text.substr(0, at);
    part += ",\"values\":";
    part += named.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    part += text.substr(at);
  });
  for (const std::string& part : parts) out += part;
  return out + "\n  ]\n}\n";
}

std::string scenario_sweep_csv(const ScenarioSweep& sweep) {
  // Columns are the keys of all points, in order of first appearance.
  std::vector<std::string> names;
  std::map<std::string, std::size_t, std::less<>> known;
  bool any_skipped = false;
  struct Row {
    std::string begin, skipped;
    std::vector<std::pair<std::string, std::string>> leaves;  // names and cells
    std::vector<std::string> cells;                           // of the columns in `names` so far
  };
  std::vector<Row> rows(sweep.size());
  parallel_for(sweep.size(), sweep.threads(), [&](std::size_t i) {
    Row& row = rows[i];
    const ordered_json object = sweep.object(i);
    row.begin = fmt::format("{},{}", i, csv_value(json(object.at("hash"))));
    for (const SweepColumn& column : sweep.columns()) {
      row.begin += ",";
      row.begin += csv_value(sweep.value(column, i));
    }
    if (sweep.skipped(i)) {
      row.skipped = csv_value(json(object.at("skipped")));
      return;
    }
    std::vector<std::pair<std::string, const ordered_json*>> leaves;
    flatten(object.at("results"), "", leaves);
    for (auto& [name, value] : leaves) {
      row.leaves.emplace_back(std::move(name), csv_value(json(*value)));
    }
  });
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    Row& row = rows[i];
    any_skipped = any_skipped || sweep.skipped(i);
    for (auto& [name, cell] : row.leaves) {
      auto found = known.find(name);
      if (found == known.end()) {
        found = known.emplace(name, names.size()).first;
        names.push_back(std::move(name));
      }
      if (row.cells.size() <= found->second) row.cells.resize(found->second + 1);
      row.cells[found->second] = std::move(cell);
    }
    row.leaves = {};
  }
  std::string out = "point,hash";
  for (const SweepColumn& column : sweep.columns())
    out += fmt::format(",{}", csv_field(column.name));
  for (const std::string& name : names) out += fmt::format(",{}", csv_field(name));
  out += any_skipped ? ",skipped\n" : "\n";
  for (Row& row : rows) {
    out += row.begin;
    row.cells.resize(names.size());
    for (const std::string& cell : row.cells) {
      out += ",";
      out += cell;
    }
    if (any_skipped) {
      out += ",";
      out += row.skipped;
    }
    out += "\n";
  }
  return out;
}

std::string scenario_sweep_summary(const ScenarioSweep& sweep, const ResultsFolder* written,
                                   std::size_t width) {
  std::vector<std::string> axes;
  for (const ScenarioAxis& axis : sweep.plan().axes()) {
    axes.push_back(axis.range ? axis.pointer
                              : fmt::format("{} ({})", axis.pointer, axis.values.size()));
  }
  std::string out =
      lines(fmt::format("Sweep of {}: {} points over {}.", clean_text(sweep.plan().name()),
                        with_commas(static_cast<std::int64_t>(sweep.size())),
                        clean_text(fmt::format("{}", fmt::join(axes, ", ")))),
            width);
  out += fmt::format("\n{}", table_of(sweep, width));
  out += engines_text(sweep_engines(sweep), width);
  // A reason that many points share is printed once; their numbers are in the document.
  std::vector<std::pair<std::string, std::size_t>> reasons;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    if (!sweep.skipped(i)) continue;
    std::string reason = sweep.object(i).at("skipped").get<std::string>();
    const std::string before = fmt::format("point {}: ", i);
    if (reason.starts_with(before)) reason.erase(0, before.size());
    const auto found = std::find_if(reasons.begin(), reasons.end(),
                                    [&](const auto& each) { return each.first == reason; });
    if (found == reasons.end()) {
      reasons.emplace_back(reason, 1);
    } else {
      ++found->second;
    }
  }
  constexpr std::size_t kMaxReasons = 5;
  for (std::size_t r = 0; r < std::min(reasons.size(), kMaxReasons); ++r) {
    out += lines(fmt::format("skipped {}: {}", reasons[r].second, clean_text(reasons[r].first)),
                 width);
  }
  if (reasons.size() > kMaxReasons) {
    out += fmt::format("and {} more reasons\n", reasons.size() - kMaxReasons);
  }
  if (const std::string best = best_text(sweep, width); !best.empty()) out += "\n" + best;
  if (const std::string finding = sweep_finding(sweep); !finding.empty()) {
    out += lines("Finding: " + clean_text(finding), width);
  }
  if (written != nullptr) {
    const std::string folder = clean_text(written->folder.string());
    out += fmt::format("\nresults  {0}/sweep.json\ntable    {0}/sweep.csv\n", folder);
    if (written->page) out += fmt::format("page     {}/{}\n", folder, kPageFile);
    out += figure_lines(*written);
    for (const std::string& note : written->notes) out += lines("note: " + clean_text(note), width);
  }
  return out;
}

ResultsFolder write_scenario_sweep(const ScenarioSweep& sweep, const std::filesystem::path& folder,
                                   const FolderOptions& options) {
  AtomicFolder building{folder};
  FigureSet figures;
  if (options.figures || options.page) figures = scenario_sweep_figures(sweep);
  if (!options.figures) figures.notes.clear();
  ResultsFolder out = draw_into(building, figures, folder, options);
  if (options.page) write_page(building, scenario_sweep_page(sweep, figures, out.notes), out);
  building.write("sweep.json", scenario_sweep_text(sweep, out.notes));
  building.write("sweep.csv", scenario_sweep_csv(sweep));
  std::string points = summed_line(sweep_header(sweep.plan()));
  std::vector<std::string> lines(sweep.size());
  parallel_for(sweep.size(), sweep.threads(),
               [&](std::size_t i) { lines[i] = summed_line(sweep.text(i)); });
  for (const std::string& line : lines) points += line;
  building.write(std::string{kPointsFile}, points);
  building.commit();
  return out;
}

}  // namespace kvsim
