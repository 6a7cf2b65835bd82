#include "sim/report/chart/figure_overlay.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart/figure_page.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxLines = 30;    // that differ in at least two of colour, dash and mark
constexpr std::size_t kMaxBars = 48;     // the number that fits in a page's height
constexpr std::size_t kMaxCallouts = 8;  // each takes a row above the lines
constexpr std::size_t kMaxNamesInTitle = 4;

template <class Chart>
struct Part {
  const std::string& of;
  const Chart& chart;
};
template <class Chart>
using Parts = std::vector<Part<Chart>>;

/// Why something is impossible; nullopt if it is possible.
using Reason = std::optional<std::string>;

template <class Chart, class Member>
Reason differ(const Parts<Chart>& parts, Member Chart::*member, std::string_view what) {
  for (const auto& part : parts) {
    if (part.chart.*member == parts.front().chart.*member) continue;
    return fmt::format("{} differs: {} in {}, {} in {}", what, parts.front().chart.*member,
                       parts.front().of, part.chart.*member, part.of);
  }
  return std::nullopt;
}

/// "decode step (means of 3 steps)" as two parts: a remark of several words is not a unit.
std::pair<std::string, std::string> without_remark(const std::string& label) {
  const std::size_t open = label.rfind(" (");
  if (open == std::string::npos || !label.ends_with(')')) return {label, ""};
  const std::string remark = label.substr(open);
  if (remark.find(' ', 2) == std::string::npos) return {label, ""};
  return {label.substr(0, open), remark};
}

/// Sets `chart`'s label to the one that the parts share, dropping remarks that differ. Keeps a
/// label that only some parts have if `keep_lone`.
template <class Chart>
Reason share_label(const Parts<Chart>& parts, std::string Chart::*label, std::string_view axis,
                   bool keep_lone, Chart& chart) {
  std::set<std::string> remarks;
  const auto [base, first_remark] = without_remark(parts.front().chart.*label);
  bool bare = false;
  for (const auto& part : parts) {
    const auto [words, remark] = without_remark(part.chart.*label);
    if (words != base) {
      return fmt::format("the {} axis differs: \"{}\" in {}, \"{}\" in {}", axis,
                         parts.front().chart.*label, parts.front().of, part.chart.*label, part.of);
    }
    bare = bare || remark.empty();
    if (!remark.empty()) remarks.insert(remark);
  }
  const bool kept = remarks.size() == 1 && (!bare || keep_lone);
  chart.*label = kept ? base + *remarks.begin() : base;
  return std::nullopt;
}

/// Sets label and unit to those of the part with the largest unit: "GiB" if one part has "MiB".
template <class Chart>
Reason share_unit(const Parts<Chart>& parts, std::string Chart::*label, double Chart::*unit,
                  std::string Chart::*column, std::string_view axis, Chart& chart) {
  const Chart* largest = &parts.front().chart;
  for (const auto& part : parts) {
    if (part.chart.*unit > largest->*unit) largest = &part.chart;
  }
  Parts<Chart> same;  // parts with the largest unit; the others' labels differ in the unit
  for (const auto& part : parts) {
    const auto name_of_axis = [&](const Chart& one) {
      return page_axis(without_remark(one.*label).first, one.*column).name;
    };
    if (name_of_axis(part.chart) != name_of_axis(*largest)) {
      return fmt::format("the {} axis differs: \"{}\" in {}, \"{}\" in {}", axis,
                         parts.front().chart.*label, parts.front().of, part.chart.*label, part.of);
    }
    if (part.chart.*unit == largest->*unit) same.push_back(part);
  }
  chart.*unit = largest->*unit;
  return share_label(same, label, axis, true, chart);
}

/// "Peak memory versus length: a, b" for parts with the title "Peak memory versus length: …".
template <class Chart>
std::string title_of(const Parts<Chart>& parts, const std::string& name) {
  const auto stem = [](const std::string& title) { return title.substr(0, title.find(": ")); };
  std::string words = stem(parts.front().chart.title);
  for (const auto& part : parts) {
    if (stem(part.chart.title) != words) {
      words = name;
      std::replace(words.begin(), words.end(), '_', ' ');
    }
  }
  std::vector<std::string> of;
  for (const auto& part : parts) of.push_back(part.of);
  if (of.size() > kMaxNamesInTitle) {
    return fmt::format("{}: {}, … {} in all", words, fmt::join(of.begin(), of.begin() + 2, ", "),
                       of.size());
  }
  return fmt::format("{}: {}", words, fmt::join(of, ", "));
}

/// The first non-empty text of the parts.
template <class Chart>
std::string first_words(const Parts<Chart>& parts, std::string Chart::*member) {
  for (const auto& part : parts) {
    if (!(part.chart.*member).empty()) return part.chart.*member;
  }
  return "";
}

/// A bound that all parts share appears once; other bounds get the name of their part.
template <class Chart, class Bound>
void join_bounds(const Parts<Chart>& parts, std::vector<Bound> Chart::*member, double Bound::*at,
                 Chart& chart) {
  std::vector<std::pair<Bound, std::vector<std::string>>> all;
  for (const auto& part : parts) {
    for (const Bound& bound : part.chart.*member) {
      auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) {
        return each.first.label == bound.label && each.first.*at == bound.*at;
      });
      if (found == all.end()) found = all.insert(all.end(), {bound, {}});
      if (found->second.empty() || found->second.back() != part.of) {
        found->second.push_back(part.of);
      }
    }
  }
  for (auto& [bound, of] : all) {
    if (of.size() < parts.size())
      bound.label = fmt::format("{}: {}", fmt::join(of, ", "), bound.label);
    (chart.*member).push_back(std::move(bound));
  }
}

Reason join(const Parts<LineChart>& parts, LineChart& chart) {
  for (const auto& reason : {differ(parts, &LineChart::x_column, "the column of x"),
                             differ(parts, &LineChart::y_column, "the column of y"),
                             differ(parts, &LineChart::log_seconds_x, "an axis of seconds"),
                             differ(parts, &LineChart::steps, "lines in steps"),
                             share_label(parts, &LineChart::x_label, "x", false, chart),
                             share_unit(parts, &LineChart::y_label, &LineChart::y_unit,
                                        &LineChart::y_column, "y", chart)}) {
    if (reason) return reason;
  }
  const LineChart& first = parts.front().chart;
  chart.x_column = first.x_column;
  chart.y_column = first.y_column;
  chart.log_seconds_x = first.log_seconds_x;
  chart.steps = first.steps;
  chart.lone_mark_label = first_words(parts, &LineChart::lone_mark_label);
  chart.end_label = first_words(parts, &LineChart::end_label);
  chart.log_x_where_wide = chart.log_y_where_wide = true;
  for (const auto& [of, one] : parts) {
    chart.log_x_where_wide = chart.log_x_where_wide && one.log_x_where_wide;
    chart.log_y_where_wide = chart.log_y_where_wide && one.log_y_where_wide;
    chart.integer_x = chart.integer_x && one.integer_x;
    for (const ChartCallout& callout : one.callouts) {
      chart.callouts.push_back({fmt::format("{}, {}", of, callout.text), callout.at, callout.line});
      if (callout.line) *chart.callouts.back().line += chart.lines.size();
    }
    for (const ChartLine& line : one.lines) {
      chart.lines.push_back(line);
      chart.lines.back().label = fmt::format("{}: {}", of, line.label);
    }
  }
  if (chart.lines.size() > kMaxLines) {
    return fmt::format("{} lines could not be distinguished", chart.lines.size());
  }
  // The crosses remain, and the legend explains them.
  if (chart.callouts.size() > kMaxCallouts) chart.callouts.clear();
  join_bounds(parts, &LineChart::levels, &ChartLevel::y, chart);
  join_bounds(parts, &LineChart::plumbs, &ChartPlumb::x, chart);
  return std::nullopt;
}

/// The marks of all parts; grey ones stay grey and are counted separately.
template <class Chart>
Reason join_groups(const Parts<Chart>& parts, Chart& chart, std::size_t& faint) {
  std::size_t coloured = 0;
  for (const auto& [of, one] : parts) {
    for (const MarkGroup& group : one.groups) {
      chart.groups.push_back(group);
      chart.groups.back().label = fmt::format("{}: {}", of, group.label);
      chart.groups.back().style.reset();  // styles of two results have the same indices
      ++(group.faint ? faint : coloured);
    }
  }
  if (coloured > kMaxLines)
    return fmt::format("{} kinds of marks could not be distinguished", coloured);
  return std::nullopt;
}

Reason join(const Parts<ScatterChart>& parts, ScatterChart& chart) {
  for (const auto& reason : {differ(parts, &ScatterChart::x_column, "the column of x"),
                             differ(parts, &ScatterChart::y_column, "the column of y"),
                             differ(parts, &ScatterChart::x_scale, "the scale of x"),
                             differ(parts, &ScatterChart::log_x, "a logarithmic x axis"),
                             share_label(parts, &ScatterChart::x_label, "x", false, chart),
                             share_label(parts, &ScatterChart::y_label, "y", false, chart)}) {
    if (reason) return reason;
  }
  const ScatterChart& first = parts.front().chart;
  chart.x_column = first.x_column;
  chart.y_column = first.y_column;
  chart.x_scale = first.x_scale;
  chart.log_x = first.log_x;
  std::vector<std::pair<std::string, std::vector<std::string>>> remarks;  // and the parts they
                                                                          // belong to
  for (const auto& [of, one] : parts) {
    if (one.remark.empty()) continue;
    auto found = std::find_if(remarks.begin(), remarks.end(),
                              [&, &words = one.remark](const auto& r) { return r.first == words; });
    if (found == remarks.end()) found = remarks.insert(remarks.end(), {one.remark, {}});
    found->second.push_back(of);
  }
  for (const auto& [words, of] : remarks) {
    if (!chart.remark.empty()) chart.remark += "; ";
    chart.remark +=
        of.size() == parts.size() ? words : fmt::format("{}: {}", fmt::join(of, ", "), words);
  }
  std::size_t faint = 0;
  const Reason reason = join_groups(parts, chart, faint);
  chart.faint_label = fmt::format("{} more", faint);
  return reason;
}

Reason join(const Parts<ParityChart>& parts, ParityChart& chart) {
  for (const auto& reason : {differ(parts, &ParityChart::x_column, "the column of x"),
                             differ(parts, &ParityChart::y_column, "the column of y"),
                             differ(parts, &ParityChart::band, "the band"),
                             share_label(parts, &ParityChart::x_label, "x", false, chart),
                             share_label(parts, &ParityChart::y_label, "y", false, chart)}) {
    if (reason) return reason;
  }
  const ParityChart& first = parts.front().chart;
  chart.x_column = first.x_column;
  chart.y_column = first.y_column;
  chart.band = first.band;
  chart.band_label = first.band_label;
  std::size_t faint = 0;
  return join_groups(parts, chart, faint);
}

/// The bars of each part under a heading with the part's name.
Reason join(const Parts<BarChart>& parts, BarChart& chart) {
  for (const auto& reason :
       {differ(parts, &BarChart::column, "the column"),
        share_unit(parts, &BarChart::x_label, &BarChart::unit, &BarChart::column, "x", chart)}) {
    if (reason) return reason;
  }
  chart.column = parts.front().chart.column;
  chart.limit_label = first_words(parts, &BarChart::limit_label);
  chart.compared_label = first_words(parts, &BarChart::compared_label);
  chart.range_label = first_words(parts, &BarChart::range_label);
  for (const auto& [of, one] : parts) {
    for (const PartStyle& style : one.styles) {
      const bool known = std::any_of(chart.styles.begin(), chart.styles.end(),
                                     [&](const PartStyle& s) { return s.words == style.words; });
      if (!known) chart.styles.push_back(style);
    }
    const bool headed = !one.bars.empty() && one.bars.front().heading;
    if (!headed) chart.bars.push_back({.label = of, .heading = true});
    for (const ChartBar& bar : one.bars) {
      chart.bars.push_back(bar);
      if (bar.heading) chart.bars.back().label = fmt::format("{}: {}", of, bar.label);
    }
  }
  if (chart.bars.size() > kMaxBars) return fmt::format("{} bars are too many", chart.bars.size());
  return std::nullopt;
}

Reason join(const Parts<AreaChart>& /*parts*/, AreaChart& /*chart*/) {
  return "stacked bands would hide those of another result; draw one result at a "
         "time";
}
Reason join(const Parts<HeatMap>& /*parts*/, HeatMap& /*map*/) {
  return "a cell of a map has room for one result; draw one result at a time";
}

using Columns = std::tuple<std::size_t, std::string, std::string>;

/// The kind of chart and its columns.
Columns columns_of(const AnyChart& chart) {
  return std::visit(
      [&](const auto& one) -> Columns {
        using Kind = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Kind, BarChart>)
          return {chart.index(), "", one.column};
        else if constexpr (std::is_same_v<Kind, AreaChart>)
          return {chart.index(), one.x_column, ""};
        else if constexpr (std::is_same_v<Kind, HeatMap>)
          return {chart.index(), one.x_column, one.z_column};
        else
          return {chart.index(), one.x_column, one.y_column};
      },
      chart);
}

std::string columns_words(const Columns& columns) {
  const auto& [index, x, y] = columns;
  if (x.empty() || y.empty()) return x + y;
  return fmt::format("{} over {}", y, x);
}

/// Whether `kind` is only the form of a sweep's figure; the columns describe its content.
bool is_form(const std::string& kind) {
  constexpr std::array<std::string_view, 4> kForms{"lines", "tradeoff", "heat_map", "bars"};
  return std::find(kForms.begin(), kForms.end(), kind) != kForms.end();
}

/// Identifies figures that can be overlaid.
struct Key {
  std::string kind;
  Columns columns;
  friend bool operator==(const Key&, const Key&) = default;
};
Key key_of(const StoredFigure& figure) { return {figure.kind, columns_of(figure.chart)}; }

std::string name_of_key(const Key& key) {
  if (!is_form(key.kind)) return key.kind;
  const auto& [index, x, y] = key.columns;
  if (x.empty()) return fmt::format("{}_{}", slug(y), key.kind);
  return fmt::format("{}_vs_{}", slug(y), slug(x));
}

std::vector<const StoredFigure*> figures_of(const FiguresOfResult& result, const Key& key) {
  std::vector<const StoredFigure*> out;
  for (const StoredFigure& figure : result.figures) {
    if (key_of(figure) == key) out.push_back(&figure);
  }
  return out;
}

/// Why `result` has no figures of `key`.
std::string absence(const FiguresOfResult& result, const Key& key) {
  for (const StoredFigure& figure : result.figures) {
    if (is_form(key.kind) || figure.kind != key.kind) continue;
    return fmt::format("{} has {} there", result.name, columns_words(columns_of(figure.chart)));
  }
  return fmt::format("there is none in {}", result.name);
}

/// "fp16-batch-4" for "memory_vs_length_fp16-batch-4".
std::string tail_of(const std::string& name, const std::string& kind) {
  if (!name.starts_with(kind) || name.size() <= kind.size() + 1) return name;
  return name.substr(kind.size() + 1);
}

/// Omitted figures of one kind, by reason.
using LeftOut = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add(const std::string& name, const std::vector<OverlayPart>& parts, Overlaid& out,
         LeftOut& left_out) {
  const auto chart = overlay(name, parts);
  if (chart) {
    out.charts.push_back(chart.value());
    return;
  }
  auto found = std::find_if(left_out.begin(), left_out.end(),
                            [&](const auto& each) { return each.first == chart.error(); });
  if (found == left_out.end()) found = left_out.insert(left_out.end(), {chart.error(), {}});
  found->second.push_back(name);
}

/// Adds one note per reason.
void note(const Key& key, const LeftOut& left_out, Overlaid& out) {
  for (const auto& [reason, names] : left_out) {
    out.notes.push_back(names.size() == 1 ? fmt::format("{}: {}", names.front(), reason)
                                          : fmt::format("{} ({} figures): {}", name_of_key(key),
                                                        names.size(), reason));
  }
}

void add_kind(std::span<const FiguresOfResult> results, const Key& key, Overlaid& out) {
  std::vector<std::vector<const StoredFigure*>> figures;
  std::vector<std::string> missing;
  for (const FiguresOfResult& result : results) {
    figures.push_back(figures_of(result, key));
    if (figures.back().empty()) missing.push_back(absence(result, key));
  }
  if (!missing.empty()) {
    out.notes.push_back(fmt::format("{} ({}): {}", name_of_key(key), columns_words(key.columns),
                                    fmt::join(missing, ", ")));
    return;
  }
  const auto names = [](const std::vector<const StoredFigure*>& of) {
    std::set<std::string> all;
    for (const StoredFigure* figure : of) all.insert(name_of(figure->chart));
    return all;
  };
  const std::set<std::string> first = names(figures.front());
  const bool all_equal = std::all_of(figures.begin(), figures.end(),
                                     [&](const auto& of) { return names(of) == first; });
  LeftOut left_out;
  if (all_equal) {
    for (std::size_t i = 0; i < figures.front().size(); ++i) {
      const std::string& name = name_of(figures.front()[i]->chart);
      std::vector<OverlayPart> parts;
      for (std::size_t r = 0; r < results.size(); ++r) {
        for (const StoredFigure* figure : figures[r]) {
          if (name_of(figure->chart) == name) parts.push_back({results[r].name, &figure->chart});
        }
      }
      add(name, parts, out, left_out);
    }
    note(key, left_out, out);
    return;
  }
  std::vector<OverlayPart> parts;
  for (std::size_t r = 0; r < results.size(); ++r) {
    for (const StoredFigure* figure : figures[r]) {
      std::string of = results[r].name;
      if (figures[r].size() > 1) of += ", " + tail_of(name_of(figure->chart), key.kind);
      parts.push_back({std::move(of), &figure->chart});
    }
  }
  add(name_of_key(key), parts, out, left_out);
  note(key, left_out, out);
}

}  // namespace

Result<AnyChart, std::string> overlay(const std::string& name, std::span<const OverlayPart> parts) {
  KVSIM_CHECK(parts.size() >= 2, "{} charts over each other", parts.size());
  for (const OverlayPart& part : parts) {
    if (part.chart->index() == parts.front().chart->index()) continue;
    return fmt::format("it is drawn in another way in {} than in {}", part.of, parts.front().of);
  }
  return std::visit(
      [&](const auto& first) -> Result<AnyChart, std::string> {
        using Chart = std::decay_t<decltype(first)>;
        Parts<Chart> same;
        for (const OverlayPart& part : parts) {
          same.push_back({part.of, std::get<Chart>(*part.chart)});
        }
        Chart chart;
        chart.name = name;
        chart.title = title_of(same, name);
        if (Reason reason = join(same, chart)) return std::move(*reason);
        return AnyChart{std::move(chart)};
      },
      *parts.front().chart);
}

Overlaid overlay_results(std::span<const FiguresOfResult> results) {
  Overlaid out;
  std::vector<Key> keys;
  for (const FiguresOfResult& result : results) {
    for (const StoredFigure& figure : result.figures) {
      Key key = key_of(figure);
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    }
  }
  for (const Key& key : keys) add_kind(results, key, out);
  // Kinds with the same word but different columns are separate files.
  std::set<std::string> taken;
  for (AnyChart& chart : out.charts) {
    const std::string name = name_of(chart);
    std::string free = name;
    for (int n = 2; !taken.insert(free).second; ++n) free = fmt::format("{}_{}", name, n);
    std::visit([&](auto& one) { one.name = free; }, chart);
  }
  return out;
}

}  // namespace kvsim
