#include "sim/report/chart/figure_document.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/chart/chart_parts.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

// The members of each struct, listed once for both directions: `visit` is a Writer or a Reader.

template <class Visit, class Line>
void fields_of_line(Visit& visit, Line& line) {
  visit("label", line.label);
  visit("points", line.points);
  visit("spreads", line.spreads);
  visit("band", line.band);
  visit("lone_mark", line.lone_mark);
  visit("end", line.end);
  visit("has_marks", line.has_marks);
}
template <class Visit, class Group>
void fields_of_group(Visit& visit, Group& group) {
  visit("label", group.label);
  visit("points", group.points);
  visit("reference", group.reference);
  visit("style", group.style);
  visit("faint", group.faint);
}
template <class Visit, class Bar>
void fields_of_bar(Visit& visit, Bar& bar) {
  visit("label", bar.label);
  visit("detail", bar.detail);
  visit("heading", bar.heading);
  visit("parts", bar.parts);
  visit("limit", bar.limit);
  visit("cut", bar.cut);
  visit("end_text", bar.end_text);
  visit("inside_numbers", bar.inside_numbers);
  visit("beside", bar.compared);
  visit("beside_text", bar.compared_text);
  visit("range", bar.range);
}
template <class Visit, class Band>
void fields_of_band(Visit& visit, Band& band) {
  visit("style", band.style);
  visit("column", band.column);
  visit("values", band.values);
}
template <class Visit, class Callout>
void fields_of_callout(Visit& visit, Callout& callout) {
  visit("text", callout.text);
  visit("at", callout.at);
  visit("line", callout.line);
}
template <class Visit, class Style>
void fields_of_style(Visit& visit, Style& style) {
  visit("words", style.words);
  visit("colour", style.fill.colour);
  visit("pattern", style.fill.pattern);
  visit("dark", style.fill.dark);
}
template <class Visit, class Chart>
void fields_of_titles(Visit& visit, Chart& chart) {
  visit("name", chart.name);
  visit("title", chart.title);
  visit("x_label", chart.x_label);
}

template <class Visit, class Chart>
void fields_of_chart(Visit& visit, Chart& chart) {
  using Kind = std::remove_const_t<Chart>;
  fields_of_titles(visit, chart);
  if constexpr (!std::is_same_v<Kind, BarChart>) {
    visit("y_label", chart.y_label);
    visit("x_column", chart.x_column);
  }
  if constexpr (std::is_same_v<Kind, LineChart>) {
    visit("y_column", chart.y_column);
    visit("y_unit", chart.y_unit);
    visit("lone_mark_label", chart.lone_mark_label);
    visit("end_label", chart.end_label);
    visit("log_y_where_wide", chart.log_y_where_wide);
    visit("log_x_where_wide", chart.log_x_where_wide);
    visit("integer_x", chart.integer_x);
    visit("log_seconds_x", chart.log_seconds_x);
    visit("steps", chart.steps);
    visit("lines", chart.lines);
    visit("levels", chart.levels);
    visit("plumbs", chart.plumbs);
    visit("callouts", chart.callouts);
  } else if constexpr (std::is_same_v<Kind, AreaChart>) {
    visit("y_unit", chart.y_unit);
    visit("x", chart.x);
    visit("bands", chart.bands);
    visit("levels", chart.levels);
  } else if constexpr (std::is_same_v<Kind, ScatterChart>) {
    visit("y_column", chart.y_column);
    visit("x_scale", chart.x_scale);
    visit("log_x", chart.log_x);
    visit("faint_label", chart.faint_label);
    visit("remark", chart.remark);
    visit("groups", chart.groups);
  } else if constexpr (std::is_same_v<Kind, ParityChart>) {
    visit("y_column", chart.y_column);
    visit("band", chart.band);
    visit("band_label", chart.band_label);
    visit("groups", chart.groups);
  } else if constexpr (std::is_same_v<Kind, BarChart>) {
    visit("column", chart.column);
    visit("unit", chart.unit);
    visit("limit_label", chart.limit_label);
    visit("beside_label", chart.compared_label);
    visit("range_label", chart.range_label);
    visit("styles", chart.styles);
    visit("bars", chart.bars);
  } else {
    visit("y_column", chart.y_column);
    visit("z_label", chart.z_label);
    visit("z_column", chart.z_column);
    visit("z_unit", chart.z_unit);
    visit("x_values", chart.x_values);
    visit("y_values", chart.y_values);
    visit("values", chart.values);
  }
}

/// Builds an object; empty or absent members are omitted.
class Writer {
 public:
  [[nodiscard]] ordered_json take() { return std::move(out_); }

  template <class T>
  void operator()(const char* key, const T& value) {
    out_[key] = json_of(value);
  }
  void operator()(const char* key, const std::string& value) {
    if (!value.empty()) out_[key] = value;
  }
  void operator()(const char* key, std::string_view value) {
    if (!value.empty()) out_[key] = value;
  }
  template <class T>
  void operator()(const char* key, const std::vector<T>& values) {
    if (!values.empty()) out_[key] = json_of(values);
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& value) {
    if (value) out_[key] = json_of(*value);
  }

 private:
  static ordered_json json_of(bool value) { return value; }
  static ordered_json json_of(int value) { return value; }
  static ordered_json json_of(std::size_t value) { return value; }
  static ordered_json json_of(const std::string& value) { return value; }
  static ordered_json json_of(double value) {
    return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
  }
  static ordered_json json_of(const ChartPoint& p) {
    return ordered_json::array({json_of(p.x), json_of(p.y)});
  }
  static ordered_json json_of(const ChartSpread& s) {
    return ordered_json::array({json_of(s.x), json_of(s.low), json_of(s.high)});
  }
  static ordered_json json_of(const ChartRange& range) {
    return ordered_json::array({json_of(range.low), json_of(range.high)});
  }
  static ordered_json json_of(const ChartLevel& level) {
    return {{"label", level.label}, {"at", level.y}};
  }
  static ordered_json json_of(const ChartPlumb& plumb) {
    return {{"label", plumb.label}, {"at", plumb.x}};
  }
  static ordered_json json_of(const std::pair<PartStyle, double>& part) {
    return {{"of", part.first.words}, {"value", part.second}};
  }
  template <class T>
  static ordered_json json_of(const std::optional<T>& value) {
    return value ? json_of(*value) : ordered_json(nullptr);
  }
  template <class T>
  static ordered_json json_of(const std::vector<T>& values) {
    ordered_json out = ordered_json::array();
    for (const T& value : values) out.push_back(json_of(value));
    return out;
  }
  static ordered_json json_of(const ChartLine& line) {
    Writer writer;
    fields_of_line(writer, line);
    return writer.take();
  }
  static ordered_json json_of(const MarkGroup& group) {
    Writer writer;
    fields_of_group(writer, group);
    return writer.take();
  }
  static ordered_json json_of(const ChartBar& bar) {
    Writer writer;
    fields_of_bar(writer, bar);
    return writer.take();
  }
  static ordered_json json_of(const AreaBand& band) {
    Writer writer;
    fields_of_band(writer, band);
    return writer.take();
  }
  static ordered_json json_of(const ChartCallout& callout) {
    Writer writer;
    fields_of_callout(writer, callout);
    return writer.take();
  }
  static ordered_json json_of(const PartStyle& style) {
    Writer writer;
    fields_of_style(writer, style);
    return writer.take();
  }

  ordered_json out_ = ordered_json::object();
};

constexpr double kMax = 1e300;

/// Reads an object, each key at most once; unknown keys are rejected once all keys are listed.
class Reader {
 public:
  Reader(const Field& in, std::set<std::string>& words) : in_{in}, words_{words} {}

  template <class T>
  void operator()(const char* key, T& value) {
    keys_.emplace_back(key);
    if (const auto field = in_.find(key)) read(*field, value);
  }
  void done() const { in_.allow_only(keys_); }
  void also(std::initializer_list<const char*> keys) {
    keys_.insert(keys_.end(), keys.begin(), keys.end());
  }

 private:
  static void read(const Field& in, bool& value) { value = in.boolean(); }
  static void read(const Field& in, double& value) { value = in.number(-kMax, kMax); }
  static void read(const Field& in, std::string& value) { value = in.string(); }
  /// Numbers of gnuplot's patterns.
  static void read(const Field& in, int& value) { value = static_cast<int>(in.integer(0, 9)); }
  static void read(const Field& in, std::size_t& value) {
    constexpr std::int64_t kMaxIndex = 1 << 20;
    value = static_cast<std::size_t>(in.integer(0, kMaxIndex));
  }
  void read(const Field& in, std::string_view& value) { value = kept(in.string()); }
  /// null is read as NaN: a value that was not finite.
  static double number_or_none(const Field& in) {
    return in.is_null() ? std::numeric_limits<double>::quiet_NaN() : in.number(-kMax, kMax);
  }
  static std::vector<Field> numbers(const Field& in, std::size_t n) {
    std::vector<Field> items = in.items();
    if (items.size() != n) in.expected(fmt::format("{} numbers", n));
    return items;
  }
  static void read(const Field& in, ChartPoint& p) {
    const std::vector<Field> both = numbers(in, 2);
    p = {both[0].number(-kMax, kMax), number_or_none(both[1])};
  }
  static void read(const Field& in, ChartSpread& s) {
    const std::vector<Field> all = numbers(in, 3);
    s = {all[0].number(-kMax, kMax), number_or_none(all[1]), number_or_none(all[2])};
  }
  static void read(const Field& in, ChartRange& range) {
    const std::vector<Field> both = numbers(in, 2);
    range = {both[0].number(-kMax, kMax), both[1].number(-kMax, kMax)};
  }
  static void read(const Field& in, ChartLevel& level) {
    in.allow_only({"label", "at"});
    level = {in.at("label").string(), in.at("at").number(-kMax, kMax)};
  }
  static void read(const Field& in, ChartPlumb& plumb) {
    in.allow_only({"label", "at"});
    plumb = {in.at("label").string(), in.at("at").number(-kMax, kMax)};
  }
  void read(const Field& in, std::pair<PartStyle, double>& part) {
    in.allow_only({"of", "value"});
    part.first.words = kept(in.at("of").string());
    part.second = in.at("value").number(-kMax, kMax);
  }
  template <class T>
  void read(const Field& in, std::optional<T>& value) {
    if (in.is_null()) return;
    read(in, value.emplace());
  }
  template <class T>
  void read(const Field& in, std::vector<T>& values) {
    for (const Field& item : in.items()) read(item, values.emplace_back());
  }
  template <class T, class Fields>
  void read_object(const Field& in, T& value, Fields fields) {
    Reader reader{in, words_};
    fields(reader, value);
    reader.done();
  }
  void read(const Field& in, ChartLine& line) {
    read_object(in, line, [](Reader& r, ChartLine& l) { fields_of_line(r, l); });
  }
  void read(const Field& in, MarkGroup& group) {
    read_object(in, group, [](Reader& r, MarkGroup& g) { fields_of_group(r, g); });
  }
  void read(const Field& in, ChartBar& bar) {
    read_object(in, bar, [](Reader& r, ChartBar& b) { fields_of_bar(r, b); });
  }
  void read(const Field& in, AreaBand& band) {
    read_object(in, band, [](Reader& r, AreaBand& b) { fields_of_band(r, b); });
  }
  void read(const Field& in, ChartCallout& callout) {
    (void)in.at("at");
    read_object(in, callout, [](Reader& r, ChartCallout& c) { fields_of_callout(r, c); });
  }
  void read(const Field& in, PartStyle& style) {
    (void)in.at("words");
    read_object(in, style, [](Reader& r, PartStyle& s) { fields_of_style(r, s); });
    const std::string_view colour = style.fill.colour;
    const bool good =
        colour.size() == 7 && colour.front() == '#' &&
        colour.find_first_not_of("0123456789abcdefABCDEF", 1) == std::string_view::npos;
    if (!good) in.at("colour").expected("a colour such as \"#0072B2\"");
  }

  std::string_view kept(std::string text) { return *words_.insert(std::move(text)).first; }

  const Field& in_;
  std::set<std::string>& words_;
  std::vector<std::string> keys_;
};

// Preconditions of drawing a chart.

void need(const Field& at, bool holds, std::string_view what) {
  if (!holds) at.fail(what);
}

void check_unit(const Field& in, const char* key, double value) {
  if (!(value > 0)) in.at(key).expected("a number above 0");
}

void check(const Field& in, LineChart& chart) {
  constexpr double kMaxX = 1e15;  // above it, ticks at whole numbers are no longer distinct
  check_unit(in, "y_unit", chart.y_unit);
  need(in, !chart.lines.empty(), "a chart without lines");
  const auto good = [&](double x) {
    return std::abs(x) <= kMaxX && (!chart.log_seconds_x || x > 0);
  };
  bool all = true;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) all = all && good(p.x);
    for (const ChartSpread& s : line.spreads) all = all && good(s.x);
    for (const ChartSpread& s : line.band) all = all && good(s.x);
    if (line.lone_mark) all = all && good(line.lone_mark->x);
    if (line.end) all = all && good(line.end->x);
  }
  for (const ChartPlumb& plumb : chart.plumbs) all = all && good(plumb.x);
  for (const ChartCallout& callout : chart.callouts) {
    all = all && good(callout.at.x) && std::isfinite(callout.at.y);
    need(in.at("callouts"), !callout.line || *callout.line < chart.lines.size(),
         "a callout of a line that there is not");
  }
  need(in, all, "a place on the x axis that it cannot have");
}

void check(const Field& in, AreaChart& chart) {
  check_unit(in, "y_unit", chart.y_unit);
  need(in, !chart.bands.empty() && !chart.x.empty(), "a chart without bands");
  for (const AreaBand& band : chart.bands) {
    need(in.at("bands"), band.values.size() == chart.x.size(), "a band needs a value each x");
  }
}

void check_groups(const Field& in, const std::vector<MarkGroup>& groups, bool positive_x) {
  constexpr std::size_t kMaxStyles = 210;  // chart::line_style
  const Field at = in.at("groups");
  bool any = false;
  for (const MarkGroup& group : groups) {
    need(at, !group.style || *group.style < kMaxStyles, "a style that there is not");
    for (const ChartPoint p : group.points) {
      need(at, p.y > 0 && (!positive_x || p.x > 0), "a mark at 0 of a logarithmic axis");
      any = true;
    }
  }
  need(at, any, "a chart without marks");
}
void check(const Field& in, ScatterChart& chart) {
  check_unit(in, "x_scale", chart.x_scale);
  check_groups(in, chart.groups, chart.log_x);
}
void check(const Field& in, ParityChart& chart) {
  need(in.at("band"), chart.band >= 0 && chart.band < 1, "half a band is a share below 1");
  check_groups(in, chart.groups, true);
}

void check(const Field& in, BarChart& chart) {
  check_unit(in, "unit", chart.unit);
  need(in, !chart.bars.empty(), "a chart without bars");
  for (ChartBar& bar : chart.bars) {
    for (auto& [style, value] : bar.parts) {
      const std::string_view words = style.words;
      const auto found = std::find_if(chart.styles.begin(), chart.styles.end(),
                                      [&](const PartStyle& other) { return other.words == words; });
      need(in.at("bars"), found != chart.styles.end(),
           fmt::format("no style of this chart is called \"{}\"", words));
      style = *found;
    }
  }
}

void check(const Field& in, HeatMap& map) {
  check_unit(in, "z_unit", map.z_unit);
  const Field at = in.at("values");
  need(at, map.values.size() == map.y_values.size(), "a row is needed for each of y_values");
  bool any = false;
  for (const auto& row : map.values) {
    need(at, row.size() == map.x_values.size(), "a row needs a value for each of x_values");
    any = any || std::any_of(row.begin(), row.end(), [](const auto& v) { return v.has_value(); });
  }
  need(at, any, "a map without values");
}

template <class Chart>
constexpr const char* word_of() {
  if constexpr (std::is_same_v<Chart, LineChart>) return "lines";
  if constexpr (std::is_same_v<Chart, AreaChart>) return "area";
  if constexpr (std::is_same_v<Chart, ScatterChart>) return "scatter";
  if constexpr (std::is_same_v<Chart, ParityChart>) return "parity";
  if constexpr (std::is_same_v<Chart, BarChart>) return "bars";
  if constexpr (std::is_same_v<Chart, HeatMap>) return "heat_map";
}

template <class Chart>
ordered_json json_of_chart(const Chart& chart) {
  Writer writer;
  fields_of_chart(writer, chart);
  ordered_json out{{"chart", word_of<Chart>()}};
  out.update(writer.take());
  return out;
}

template <class Chart>
AnyChart read_chart(const Field& in, std::set<std::string>& words) {
  Chart chart;
  Reader reader{in, words};
  reader.also({"schema", "figure", "chart"});
  fields_of_chart(reader, chart);
  reader.done();
  check(in, chart);
  return chart;
}

/// A safe file name: scripts contain it.
void check_name(const Field& name) {
  constexpr std::size_t kLongest = 200;
  const std::string text = name.string();
  const bool good = !text.empty() && text.size() <= kLongest && text.front() != '.' &&
                    text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
                    });
  if (!good) name.expected("a file name of letters, digits, \"_\", \"-\" and \".\"");
}

}  // namespace

ordered_json chart_json(const LineChart& chart) { return json_of_chart(chart); }
ordered_json chart_json(const AreaChart& chart) { return json_of_chart(chart); }
ordered_json chart_json(const ScatterChart& chart) { return json_of_chart(chart); }
ordered_json chart_json(const ParityChart& chart) { return json_of_chart(chart); }
ordered_json chart_json(const BarChart& chart) { return json_of_chart(chart); }
ordered_json chart_json(const HeatMap& map) { return json_of_chart(map); }

std::string figure_document(const Figure& figure) {
  if (figure.chart.is_null()) return "";
  ordered_json out{{"schema", kFigureSchema}};
  if (!figure.kind.empty()) out["figure"] = figure.kind;
  out.update(figure.chart);
  // Names come from users' files and may be invalid UTF-8.
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

StoredFigure read_figure(const Field& document, std::set<std::string>& words) {
  const Field schema = document.at("schema");
  if (schema.raw() != kFigureSchema) schema.expected(fmt::format("\"{}\"", kFigureSchema));
  check_name(document.at("name"));
  if (const auto kind = document.find("figure")) check_name(*kind);
  using Read = AnyChart (*)(const Field&, std::set<std::string>&);
  constexpr std::array<std::pair<std::string_view, Read>, 6> kReaders{
      {{word_of<LineChart>(), read_chart<LineChart>},
       {word_of<AreaChart>(), read_chart<AreaChart>},
       {word_of<ScatterChart>(), read_chart<ScatterChart>},
       {word_of<ParityChart>(), read_chart<ParityChart>},
       {word_of<BarChart>(), read_chart<BarChart>},
       {word_of<HeatMap>(), read_chart<HeatMap>}}};
  std::vector<std::string> known;
  for (const auto& [word, read] : kReaders) known.emplace_back(word);
  const std::string chart = document.at("chart").choice(known);
  const auto* const found = std::find_if(kReaders.begin(), kReaders.end(),
                                         [&](const auto& each) { return each.first == chart; });
  StoredFigure out{"", found->second(document, words)};
  const auto kind = document.find("figure");
  out.kind = kind ? kind->string() : name_of(out.chart);
  return out;
}

Figure draw(const AnyChart& chart) {
  return std::visit([](const auto& one) { return draw(one); }, chart);
}

const std::string& name_of(const AnyChart& chart) {
  return std::visit([](const auto& one) -> const std::string& { return one.name; }, chart);
}

}  // namespace kvsim
