#include "sim/report/replay_sweep/replay_sweep.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/excerpt.hpp"
#include "sim/replay/replay_metrics.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/replay_sweep/sweep_figures.hpp"
#include "sim/report/replay_sweep/sweep_means.hpp"
#include "sim/report/replay_sweep/sweep_page.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/method_cases.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"
#include "sim/run/run_report.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json value_json(const std::optional<ParamValue>& value) {
  if (!value) return nullptr;
  return std::visit([](const auto& v) { return ordered_json(v); }, *value);
}

ordered_json budget_json(const Budget& budget) {
  if (budget.fraction > 0) return budget.fraction;
  return budget.entries;
}

bool varies(const ordered_json& point) {
  const ordered_json& values = point.at("values");
  return std::any_of(values.begin(), values.end(),
                     [](const ordered_json& value) { return !value.is_null(); });
}

std::vector<std::size_t> ascending(std::vector<std::size_t> indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

/// Merges all bands into one.
std::vector<std::vector<std::size_t>> joined(const std::vector<std::vector<std::size_t>>& bands) {
  std::vector<std::size_t> all;
  for (const auto& band : bands) all.insert(all.end(), band.begin(), band.end());
  return {all};
}

double held_share(const ordered_json& method) {
  return method.at("bytes_held_final").get<double>() / method.at("bytes_full_final").get<double>();
}

/// The best points of each trace and budget by each metric; ties go to the first. Methods without
/// any of the parameters are references, not candidates. One budget may hold different bytes, so
/// points are compared only if they hold equal bytes.
ordered_json best_json(const ordered_json& points) {
  std::vector<std::pair<ordered_json, ordered_json>> groups;  // trace, budget
  for (const ordered_json& point : points) {
    std::pair group{point.at("method").at("trace"), point.at("method").at("budget")};
    if (varies(point) && std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(std::move(group));
    }
  }
  ordered_json best = ordered_json::array();
  for (const auto& [trace, budget] : groups) {
    std::vector<std::size_t> members;
    std::vector<double> shares;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ordered_json& method = points[i].at("method");
      if (!varies(points[i]) || method.at("trace") != trace || method.at("budget") != budget) {
        continue;
      }
      members.push_back(i);
      shares.push_back(held_share(method));
    }
    const std::vector<std::vector<std::size_t>> bands = equal_bytes_bands(shares);
    for (const MetricInfo* metric : shown_in(infos_of(replay_metrics()), &MetricUse::sweep)) {
      // Points are compared by their errors only if they hold equal bytes.
      const bool at_equal_bytes = metric->kind == MetricKind::kError;
      for (const std::vector<std::size_t>& band : at_equal_bytes ? bands : joined(bands)) {
        std::optional<std::size_t> chosen;
        double min = 0;
        for (const std::size_t m : ascending(band)) {
          const ordered_json& value = points[members[m]].at("method").at(metric->key);
          if (value.is_null()) continue;
          const double badness = value.get<double>() * (metric->higher_is_better ? -1 : 1);
          if (chosen && badness >= min) continue;
          chosen = members[m];
          min = badness;
        }
        if (!chosen) continue;
        best.push_back({{"trace", trace},
                        {"budget", budget},
                        {"bytes_share", {shares[band.front()], shares[band.back()]}},
                        {"metric", metric->key},
                        {"point", *chosen},
                        {"value", points[*chosen].at("method").at(metric->key)}});
      }
    }
  }
  return best;
}

constexpr std::size_t kLongestWords = 200;
constexpr std::size_t kMaxReasons = 5;

/// cell_words, shortened for the terminal: a value may have any length.
std::string screen_words(const ReplaySweep& sweep, const SweepCell& cell) {
  return excerpt(cell_words(sweep, cell), kLongestWords);
}

/// "-" for errors that are not finite: values exceed the range of the method's store.
std::string short_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "-";
}

std::string lines(std::string_view text, std::size_t width) {
  std::string out;
  for (const std::string& line : wrapped(text, width)) out += line + "\n";
  return out;
}

std::string table_of(const ReplaySweep& sweep, const ReplayJob& job, std::size_t width) {
  std::vector<Table::Column> columns;
  const bool named = sweep.methods.size() > 1;
  if (named) columns.push_back({"method", Table::Align::kLeft});
  columns.push_back({"budget"});
  for (const SweepAxis& axis : sweep.axes) columns.push_back({axis.name});
  for (const char* header : {"bytes", "of full", "error", "p99", "mass"}) {
    columns.push_back({header});
  }
  Table table{columns};
  for (std::size_t m = 0; m < job.ran.size(); ++m) {
    const SweepCell& cell = sweep.cells[job.ran[m]];
    const ReplayMethod& method = job.result.methods[m];
    std::vector<std::string> row;
    if (named) row.push_back(method.name);
    row.push_back(method.budget ? budget_text(*method.budget) : "-");
    for (const auto& value : cell.values) row.push_back(value_cell(value));
    row.push_back(to_text(Bytes{method.bytes_held_final}));
    row.push_back(fmt::format("{:.1f} %", 100 * static_cast<double>(method.bytes_held_final) /
                                              static_cast<double>(method.bytes_full_final)));
    row.push_back(short_number(method.rel_error_mean));
    row.push_back(short_number(method.rel_error_p99));
    row.push_back(method.retained_mass_mean ? fmt::format("{:.4f}", *method.retained_mass_mean)
                                            : "-");
    table.add_row(std::move(row));
  }
  return table.str(width);
}

/// Two or more combinations of one trace and one budget that hold equal bytes.
struct Comparison {
  double low = 0, high = 0;  // shares of the full cache's bytes
  double min = 0, max = 0;
  std::vector<const SweepCell*> best;  // cells with the smallest error
};

std::vector<Comparison> comparisons_of(const ReplaySweep& sweep) {
  std::vector<Comparison> out;
  for (const ReplayJob& job : sweep.jobs) {
    std::map<std::optional<double>, std::vector<std::size_t>> by_budget;
    for (std::size_t m = 0; m < job.ran.size(); ++m) {
      const auto& values = sweep.cells[job.ran[m]].values;
      const bool varies =
          std::any_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); });
      const ReplayMethod& method = job.result.methods[m];
      const bool has_error = method.steps > 0 && std::isfinite(method.rel_error_mean);
      if (varies && has_error) by_budget[method.budget].push_back(m);
    }
    for (const auto& of_budget : by_budget) {
      const std::vector<std::size_t>& members = of_budget.second;
      std::vector<double> shares;
      for (const std::size_t m : members) {
        const ReplayMethod& method = job.result.methods[m];
        shares.push_back(static_cast<double>(method.bytes_held_final) /
                         static_cast<double>(method.bytes_full_final));
      }
      for (const std::vector<std::size_t>& band : equal_bytes_bands(shares)) {
        if (band.size() < 2) continue;
        Comparison& one = out.emplace_back();
        one.low = shares[band.front()];
        one.high = shares[band.back()];
        const auto error = [&](std::size_t i) {
          return job.result.methods[members[i]].rel_error_mean;
        };
        const auto [min, max] =
            std::minmax_element(band.begin(), band.end(),
                                [&](std::size_t a, std::size_t b) { return error(a) < error(b); });
        one.min = error(*min);
        one.max = error(*max);
        for (const std::size_t i : band) {
          if (error(i) == one.min) one.best.push_back(&sweep.cells[job.ran[members[i]]]);
        }
      }
    }
  }
  return out;
}

/// The values that all `cells` share, as cell_words; empty if there are none.
std::string shared_words(const ReplaySweep& sweep, const std::vector<const SweepCell*>& cells) {
  const auto all_share = [&](auto&& of) {
    return std::all_of(cells.begin(), cells.end(),
                       [&](const SweepCell* cell) { return of(*cell) == of(*cells.front()); });
  };
  std::vector<std::string> words;
  if (sweep.methods.size() > 1 && all_share([](const SweepCell& c) { return c.spec.name; })) {
    words.push_back(cells.front()->spec.name);
  }
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) {
    if (!cells.front()->values[a] || sweep.axes[a].values.size() < 2) continue;
    if (!all_share([a](const SweepCell& c) { return c.values[a]; })) continue;
    words.push_back(sweep.axes[a].name + " " + excerpt(to_text(*cells.front()->values[a])));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// Indices of cells that the job did not run, in the order of its `skipped` list.
std::vector<std::size_t> not_run(const ReplaySweep& sweep, const ReplayJob& job) {
  std::vector<std::size_t> out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < sweep.cells.size(); ++i) {
    if (next < job.ran.size() && job.ran[next] == i) {
      ++next;
    } else {
      out.push_back(i);
    }
  }
  KVSIM_CHECK(out.size() == job.skipped.size() && next == job.result.methods.size(),
              "{} of {} combinations ran, {} skipped", job.result.methods.size(),
              sweep.cells.size(), job.skipped.size());
  return out;
}

/// The cell of every point, in order of points.
std::vector<const SweepCell*> cells_of_points(const ReplaySweep& sweep) {
  std::vector<const SweepCell*> out;
  for (const ReplayJob& job : sweep.jobs) {
    for (const std::size_t i : job.ran) out.push_back(&sweep.cells[i]);
  }
  return out;
}

std::string best_lines(const ReplaySweep& sweep, const ordered_json& document, std::size_t width) {
  const std::vector<const SweepCell*> cells = cells_of_points(sweep);
  std::string out;
  for (const ordered_json& best : document.at("best")) {
    const std::string metric = best.at("metric");
    // The table shows the other metrics clearly enough.
    if (metric != "rel_error_mean" && metric != "retained_mass_mean") continue;
    std::string where;
    if (!best.at("budget").is_null()) where = " at budget " + budget_text(best.at("budget"));
    where += fmt::format(" holding {} of the bytes",
                         share_range(best.at("bytes_share")[0], best.at("bytes_share")[1]));
    if (sweep.jobs.size() > 1) where += " on " + best.at("trace").get<std::string>();
    out += lines(
        fmt::format("best {}{}: {}, {}", find_metric(replay_metrics(), metric)->info.sweep.header,
                    where, short_number(best.at("value").get<double>()),
                    screen_words(sweep, *cells[best.at("point").get<std::size_t>()])),
        width);
  }
  return out;
}

/// The mean over traces if there are several: a table, and the smallest error of each budget.
std::string means_text(const ReplaySweep& sweep, const std::vector<SweepMean>& means,
                       std::size_t width) {
  if (sweep.jobs.size() < 2 || means.empty()) return "";
  std::string out = "\n";
  out += lines(fmt::format("Means over the {} traces.", sweep.jobs.size()), width);
  out += sweep_means_table(sweep, means, width);
  for (const std::size_t m : best_means(sweep, means)) {
    const AggregateRow& row = means[m].over;
    std::string where = row.budget ? " at budget " + budget_text(*row.budget) : "";
    where += fmt::format(" holding {} of the bytes",
                         share_range(row.bytes_share->mean, row.bytes_share->mean));
    out += lines(fmt::format("best mean error{}: {}, {}", where, short_number(row.rel_error->mean),
                             screen_words(sweep, sweep.cells[means[m].cell])),
                 width);
  }
  return out;
}

}  // namespace

std::string value_cell(const std::optional<ParamValue>& value) {
  constexpr std::size_t kLongest = 24;
  return value ? excerpt(to_text(*value), kLongest) : "-";
}

std::string replay_sweep_finding(const ReplaySweep& sweep) {
  const std::vector<Comparison> all = comparisons_of(sweep);
  if (all.empty()) {
    const bool has_all =
        std::all_of(sweep.jobs.begin(), sweep.jobs.end(), [](const ReplayJob& job) {
          return std::all_of(job.result.methods.begin(), job.result.methods.end(),
                             [](const ReplayMethod& m) { return std::isfinite(m.rel_error_mean); });
        });
    return fmt::format(
        "No two combinations{} hold equal bytes here, so their errors are not "
        "comparable.",
        has_all ? "" : " with finite errors");
  }
  const bool matters = std::any_of(all.begin(), all.end(), [](const Comparison& one) {
    return one.max > one.min * (1 + kWorthNaming);
  });
  if (!matters) {
    return fmt::format(
        "The varied parameters change nothing here: at equal bytes all errors are within {:.0f} %.",
        100 * kWorthNaming);
  }
  std::vector<std::pair<std::string, std::size_t>> wins;
  for (const Comparison& one : all) {
    const std::string words = shared_words(sweep, one.best);
    if (words.empty()) continue;  // ties between combinations without a common value
    const auto found =
        std::find_if(wins.begin(), wins.end(), [&](const auto& win) { return win.first == words; });
    if (found == wins.end()) {
      wins.emplace_back(words, 1);
    } else {
      ++found->second;
    }
  }
  const auto winner = std::max_element(
      wins.begin(), wins.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (winner == wins.end() || 2 * winner->second <= all.size()) {
    return all.size() == 1
               ? std::string{"No value leads: combinations without a common value have the least "
                             "error."}
               : fmt::format("No value leads in most of the {} comparisons at equal bytes.",
                             all.size());
  }
  if (all.size() == 1) {
    return fmt::format(
        "Of the combinations that hold {} of the bytes, {} has the least error ({}; the largest "
        "is {}).",
        share_range(all.front().low, all.front().high), winner->first, amount(all.front().min),
        amount(all.front().max));
  }
  return fmt::format("At equal bytes {} has the least error in {} of {} comparisons.",
                     winner->first, winner->second, all.size());
}

std::string cell_words(const ReplaySweep& sweep, const SweepCell& cell,
                       std::optional<std::size_t> without) {
  std::vector<std::string> words;
  if (sweep.methods.size() > 1) words.push_back(cell.spec.name);
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) {
    if (a == without || !cell.values[a]) continue;
    words.push_back(sweep.axes[a].name + " " + to_text(*cell.values[a]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

ordered_json values_json(const ReplaySweep& sweep, const SweepCell& cell) {
  ordered_json out = ordered_json::object();
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) {
    out[sweep.axes[a].name] = value_json(cell.values[a]);
  }
  return out;
}

ordered_json sweep_document(const ReplaySweep& sweep) {
  ordered_json out = {{"schema", "kvsim.sweep/1"}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["traces"] = ordered_json::array();
  ordered_json grid = {{"methods", sweep.methods}};
  grid["budgets"] = ordered_json::array();
  for (const Budget& budget : sweep.budgets) grid["budgets"].push_back(budget_json(budget));
  grid["params"] = ordered_json::array();
  for (const SweepAxis& axis : sweep.axes) {
    ordered_json values = ordered_json::array();
    for (const ParamValue& value : axis.values) values.push_back(value_json(value));
    grid["params"].push_back({{"name", axis.name}, {"values", std::move(values)}});
  }
  grid["fixed"] = ordered_json::object();
  for (const auto& [name, value] : sweep.fixed) grid["fixed"][name] = value_json(value);
  grid["combinations"] = sweep.cells.size();
  out["grid"] = std::move(grid);
  out["points"] = ordered_json::array();
  out["skipped"] = ordered_json::array();
  for (const ReplayJob& job : sweep.jobs) {
    out["traces"].push_back(job.result.trace);
    ordered_json replay = replay_document(job.result);
    for (std::size_t m = 0; m < job.ran.size(); ++m) {
      out["points"].push_back({{"values", values_json(sweep, sweep.cells[job.ran[m]])},
                               {"method", std::move(replay["methods"][m])}});
    }
    const std::vector<std::size_t> skipped = not_run(sweep, job);
    for (std::size_t i = 0; i < skipped.size(); ++i) {
      const SweepCell& cell = sweep.cells[skipped[i]];
      out["skipped"].push_back(
          {{"trace", job.result.trace},
           {"name", cell.spec.name},
           {"budget", cell.spec.budget ? budget_json(*cell.spec.budget) : ordered_json(nullptr)},
           {"values", values_json(sweep, cell)},
           {"reason", job.skipped[i].reason}});
    }
  }
  out["best"] = best_json(out["points"]);
  out["means"] = ordered_json::array();
  out["best_means"] = ordered_json::array();
  if (sweep.jobs.size() > 1) {
    const std::vector<SweepMean> means = sweep_means(sweep);
    out["means"] = sweep_means_json(sweep, means);
    for (const std::size_t m : best_means(sweep, means)) {
      out["best_means"].push_back({{"budget", out["means"][m].at("budget")},
                                   {"mean", m},
                                   {"rel_error", means[m].over.rel_error->mean}});
    }
  }
  out["finding"] = replay_sweep_finding(sweep);
  out["notes"] = sweep.notes;
  return out;
}

std::string sweep_csv(const ReplaySweep& sweep) {
  std::string out = "trace,method,budget";
  for (const SweepAxis& axis : sweep.axes) out.append(",").append(csv_field(axis.name));
  constexpr std::string_view kColumns =
      "budget_reached,entries_held_final,bytes_held_final,bytes_full_final,bytes_read_total,"
      "rel_error_mean,rel_error_p99,cosine_mean,retained_mass_mean";
  out.append(",").append(kColumns).append("\n");
  const auto columns = columns_of(replay_metrics(), kColumns);
  for (const ReplayJob& job : sweep.jobs) {
    for (std::size_t m = 0; m < job.ran.size(); ++m) {
      const ReplayMethod& method = job.result.methods[m];
      out += fmt::format("{},{},{}", csv_field(job.result.trace), csv_field(method.name),
                         method.budget ? csv_number(*method.budget) : "");
      for (const auto& value : sweep.cells[job.ran[m]].values) {
        out += ',';
        if (value) out += csv_field(to_text(*value));
      }
      out += csv_values(columns, ReplayedMethod{job.result, method}) + "\n";
    }
  }
  return out;
}

std::string sweep_summary(const ReplaySweep& sweep, const ResultsFolder* written,
                          std::size_t width) {
  std::string out;
  for (const ReplayJob& job : sweep.jobs) {
    if (!out.empty()) out += "\n";
    out += lines(fmt::format("Sweep of {} on trace {} ({}): {} of {} combinations.",
                             fmt::join(sweep.methods, ", "), clean_text(job.result.trace),
                             job.result.source, job.ran.size(), sweep.cells.size()),
                 width);
    out += table_of(sweep, job, width);
    // A reason that many combinations share is printed once.
    std::vector<std::pair<std::string, std::size_t>> reasons;
    for (const SkippedMethod& skipped : job.skipped) {
      const auto found = std::find_if(reasons.begin(), reasons.end(), [&](const auto& each) {
        return each.first == skipped.reason;
      });
      if (found == reasons.end()) {
        reasons.emplace_back(skipped.reason, 1);
      } else {
        ++found->second;
      }
    }
    for (std::size_t r = 0; r < std::min(reasons.size(), kMaxReasons); ++r) {
      out += lines(fmt::format("skipped {}: {}", reasons[r].second, clean_text(reasons[r].first)),
                   width);
    }
    if (reasons.size() > kMaxReasons) {
      out += fmt::format("and {} more reasons\n", reasons.size() - kMaxReasons);
    }
  }
  const ordered_json document = sweep_document(sweep);
  if (!document.at("best").empty()) out.append("\n").append(best_lines(sweep, document, width));
  out += means_text(sweep, sweep_means(sweep), width);
  out += lines("Finding: " + clean_text(replay_sweep_finding(sweep)), width);
  for (const std::string& note : sweep.notes) out += lines("note: " + clean_text(note), width);
  if (written != nullptr) {
    out += fmt::format("\nresults  {}/result.json\n", clean_text(written->folder.string()));
    if (written->page) {
      out += fmt::format("page     {}/{}\n", clean_text(written->folder.string()), kPageFile);
    }
    out += figure_lines(*written);
    for (const std::string& note : written->notes) out += lines("note: " + clean_text(note), width);
  }
  return out;
}

ResultsFolder write_sweep_results(const ReplaySweep& sweep, const std::filesystem::path& folder,
                                  const FolderOptions& options) {
  AtomicFolder building{folder};
  const FigureSet figures = sweep_figures(sweep);
  ResultsFolder out = draw_into(building, figures, folder, options);
  ordered_json document = sweep_document(sweep);
  for (const std::string& note : out.notes) document["notes"].push_back(note);
  if (options.page) write_page(building, sweep_page(sweep, document, figures), out);
  building.write("result.json", to_file_text(document));
  building.write("sweep.csv", sweep_csv(sweep));
  if (sweep.jobs.size() > 1) building.write("sweep_means.csv", sweep_means_csv(sweep));
  building.commit();
  return out;
}

}  // namespace kvsim
