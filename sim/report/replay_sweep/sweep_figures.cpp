#include "sim/report/replay_sweep/sweep_figures.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/methods/method.hpp"
#include "models/methods/params.hpp"
#include "models/units/check.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/replay/error_figures.hpp"
#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay_sweep/sweep_means.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxLines = 8;   // per figure of a parameter
constexpr std::size_t kMaxSpread = 4;  // lines with bars that do not hide each other
constexpr std::size_t kMaxMarks = 16;  // kinds of marks that a legend can distinguish

/// "zeromerge on books-treasure-512", "3 methods, means over 4 traces".
std::string about(const ReplaySweep& sweep, const std::string& what) {
  if (sweep.jobs.size() == 1) {
    const ReplayResult& only = sweep.jobs[0].result;
    return fmt::format("{} on {} ({})", what, only.trace, only.source);
  }
  std::vector<std::string> sources;
  for (const auto& job : sweep.jobs) sources.push_back(job.result.source);
  return fmt::format("{}, means over {} traces ({})", what, sweep.jobs.size(),
                     sources_words(sources));
}

std::string methods_words(const ReplaySweep& sweep) {
  constexpr std::size_t kMaxNamed = 3;
  if (sweep.methods.size() > kMaxNamed) return fmt::format("{} methods", sweep.methods.size());
  return fmt::format("{}", fmt::join(sweep.methods, ", "));
}

std::string or_method(std::string words, const SweepCell& cell) {
  return words.empty() ? cell.spec.name : words;
}

void add_pareto(const ReplaySweep& sweep, const std::vector<SweepMean>& means, FigureSet& set) {
  std::set<std::string> labels;
  for (const SweepMean& mean : means) labels.insert(cell_words(sweep, sweep.cells[mean.cell]));
  std::optional<std::size_t> along;  // the axis that lines run along
  if (labels.size() > kMaxMarks && sweep.budgets.size() < 2) along = sweep.axes.size() - 1;
  std::vector<ErrorMark> marks;
  for (const auto& [at, row] : means) {
    const SweepCell& cell = sweep.cells[at];
    marks.push_back({.method = or_method(cell_words(sweep, cell, along), cell),
                     .error = row.rel_error->mean,
                     .held = row.bytes_share->mean,
                     .read = row.read_share->mean,
                     .reads_part = row.reads_part});
  }
  add_error_figures(marks, about(sweep, methods_words(sweep)), set);
}

std::optional<double> number_of(const ParamValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

bool is_numeric(const SweepAxis& axis) {
  return std::all_of(axis.values.begin(), axis.values.end(),
                     [](const ParamValue& value) { return number_of(value).has_value(); });
}

bool is_whole(const SweepAxis& axis) {
  return std::all_of(axis.values.begin(), axis.values.end(), [](const ParamValue& value) {
    return std::holds_alternative<std::int64_t>(value);
  });
}

/// The means of one method that differ in only one parameter.
struct Slice {
  std::string label;
  std::vector<const SweepMean*> means;  // in the requested order of the parameter's values
};

/// "budget 20 %, residual_slots 4": the values that the means of a slice share, if other slices
/// have different ones.
std::string slice_words(const ReplaySweep& sweep, const SweepMean& mean, std::size_t axis,
                        bool by_budget) {
  std::vector<std::string> words;
  if (by_budget && mean.over.budget) words.push_back("budget " + budget_text(*mean.over.budget));
  const SweepCell& cell = sweep.cells[mean.cell];
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) {
    if (a == axis || !cell.values[a]) continue;
    words.push_back(sweep.axes[a].name + " " + to_text(*cell.values[a]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// Whether two cells of one method differ only in the parameter.
bool same_but_axis(const SweepCell& a, const SweepCell& b, std::size_t axis) {
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if (i != axis && a.values[i] != b.values[i]) return false;
  }
  return true;
}

std::vector<Slice> slices_of(const ReplaySweep& sweep, const std::vector<SweepMean>& means,
                             const std::string& method, std::size_t axis) {
  std::vector<Slice> slices;
  for (const SweepMean& mean : means) {
    const SweepCell& cell = sweep.cells[mean.cell];
    if (cell.spec.name != method || !cell.values[axis]) continue;
    auto found = std::find_if(slices.begin(), slices.end(), [&](const Slice& slice) {
      const SweepMean& first = *slice.means.front();
      return first.over.budget == mean.over.budget &&
             same_but_axis(sweep.cells[first.cell], cell, axis);
    });
    if (found == slices.end()) {
      found = slices.insert(slices.end(),
                            {slice_words(sweep, mean, axis, sweep.budgets.size() > 1), {}});
    }
    found->means.push_back(&mean);
  }
  return slices;
}

/// For each budget the slice through the point with the smallest error.
std::vector<Slice> best_slices(const std::vector<Slice>& slices) {
  const auto min_error = [](const Slice& slice) {
    double error = INFINITY;
    for (const SweepMean* mean : slice.means) error = std::min(error, mean->over.rel_error->mean);
    return error;
  };
  std::vector<Slice> best;
  for (const Slice& slice : slices) {
    const auto found = std::find_if(best.begin(), best.end(), [&](const Slice& each) {
      return each.means.front()->over.budget == slice.means.front()->over.budget;
    });
    if (found == best.end()) {
      best.push_back(slice);
    } else if (min_error(slice) < min_error(*found)) {
      *found = slice;
    }
  }
  return best;
}

/// The unit of a parameter's values, if its declaration has one.
std::string_view unit_of(const ParamInfo& info, const SweepAxis& axis) {
  if (std::holds_alternative<std::int64_t>(info.default_value)) return "count";
  if (info.low >= 0 && info.high <= 1) return "fraction";
  const auto below_one = std::count_if(axis.values.begin(), axis.values.end(),
                                       [](const auto& value) { return *number_of(value) < 1; });
  const bool either = info.range.find(" below 1, or entries") != std::string::npos;
  if (either && below_one == std::ssize(axis.values)) return "fraction";
  if (either && below_one == 0) return "entries";
  return "number";
}

/// "recent of h2o (fraction)": parameters of two methods may share a name.
std::string parameter_label(const SweepAxis& axis, const std::string& method) {
  const MethodInfo info = describe_method(method);
  const ParamInfo* found = find_param(info.params, axis.name);
  KVSIM_CHECK(found != nullptr, "method {} was replayed with {}", method, axis.name);
  return fmt::format("{} of {} ({})", found->name, method, unit_of(*found, axis));
}

void add_lines(const ReplaySweep& sweep, std::size_t a, const std::string& method,
               const std::vector<Slice>& slices, LineChart chart, FigureSet& set) {
  const SweepAxis& axis = sweep.axes[a];
  chart.x_label = parameter_label(axis, method);
  const bool spread = sweep.jobs.size() > 1 && slices.size() <= kMaxSpread;
  chart.y_label =
      spread ? "mean relative error ± 1 sd (fraction)" : "mean relative error (fraction)";
  chart.x_column = axis.name;
  chart.y_column = "rel_error_mean";
  chart.log_y_where_wide = true;
  chart.integer_x = is_whole(axis);
  chart.log_x_where_wide = chart.integer_x;  // doublings of a fraction have no short labels
  for (const Slice& slice : slices) {
    ChartLine line{.label = slice.label};
    for (const SweepMean* mean : slice.means) {
      const Spread& error = *mean->over.rel_error;
      const double x = *number_of(*sweep.cells[mean->cell].values[a]);
      line.points.push_back({x, error.mean});
      if (spread && error.sd)
        line.spreads.push_back({x, error.mean - *error.sd, error.mean + *error.sd});
    }
    std::sort(line.points.begin(), line.points.end(),
              [](ChartPoint p, ChartPoint q) { return p.x < q.x; });
    std::sort(line.spreads.begin(), line.spreads.end(),
              [](const ChartSpread& p, const ChartSpread& q) { return p.x < q.x; });
    chart.lines.push_back(std::move(line));
  }
  set.figures.push_back(draw(chart));
}

void add_bars(const ReplaySweep& sweep, std::size_t a, const std::vector<Slice>& slices,
              BarChart chart, FigureSet& set) {
  constexpr PartStyle kError{"mean relative error", {"#0072B2", 0, true}};
  chart.x_label = "mean relative error (fraction)";
  chart.column = "rel_error_mean";
  chart.styles = {kError};
  for (const Slice& slice : slices) {
    if (slices.size() > 1) chart.bars.push_back({.label = slice.label, .heading = true});
    for (const SweepMean* mean : slice.means) {
      const Spread& error = *mean->over.rel_error;
      ChartBar bar{.label = to_text(*sweep.cells[mean->cell].values[a])};
      if (std::isfinite(error.mean)) bar.parts.emplace_back(kError, error.mean);
      bar.inside_numbers = false;
      bar.end_text = !std::isfinite(error.mean) ? "-"
                     : error.sd ? fmt::format("{:.4g} ± {:.2g} sd", error.mean, *error.sd)
                                : fmt::format("{:.4g}", error.mean);
      chart.bars.push_back(std::move(bar));
    }
  }
  set.figures.push_back(draw(chart));
}

void add_axis(const ReplaySweep& sweep, const std::vector<SweepMean>& means, std::size_t a,
              const std::string& method, FigureSet& set) {
  const SweepAxis& axis = sweep.axes[a];
  std::vector<Slice> slices = slices_of(sweep, means, method, a);
  std::string others;
  if (slices.size() > kMaxLines) {
    slices = best_slices(slices);
    others = ", others as in each budget's best";
  }
  std::set<ParamValue> values;
  for (const Slice& slice : slices) {
    for (const SweepMean* mean : slice.means) values.insert(*sweep.cells[mean->cell].values[a]);
  }
  const std::string kind = "error_vs_" + axis.name;
  const std::string name = sweep.methods.size() > 1 ? kind + "_" + method : kind;
  if (values.size() < 2) return;  // the figure would show nothing
  if (slices.size() > kMaxLines) {
    set.notes.push_back(
        fmt::format("{}: left out, its {} lines could not be distinguished", name, slices.size()));
    return;
  }
  for (Slice& slice : slices) {
    if (slice.label.empty()) slice.label = method;
  }
  const std::string title = fmt::format("Attention output error against {}{}: {}", axis.name,
                                        others, about(sweep, method));
  if (is_numeric(axis)) {
    add_lines(sweep, a, method, slices, {.name = name, .title = title}, set);
  } else {
    add_bars(sweep, a, slices, {.name = name, .title = title}, set);
  }
  set.figures.back().kind = kind;
}

}  // namespace

FigureSet sweep_figures(const ReplaySweep& sweep) {
  FigureSet set;
  const std::vector<SweepMean> means = sweep_means(sweep);
  if (means.empty()) return set;
  add_pareto(sweep, means, set);
  for (std::size_t a = 0; a < sweep.axes.size(); ++a) {
    for (const std::string& method : sweep.methods) {
      const bool has = std::any_of(means.begin(), means.end(), [&](const SweepMean& mean) {
        const SweepCell& cell = sweep.cells[mean.cell];
        return cell.spec.name == method && cell.values[a].has_value();
      });
      if (has) add_axis(sweep, means, a, method, set);
    }
  }
  return set;
}

}  // namespace kvsim
