#include "sim/report/folder/page_parts.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxPoints = 300;  // of the table of a run or a sweep
constexpr std::size_t kMaxCharts = 96;

/// Charts of one kind next to each other, in the order of the figures.
ordered_json charts_json(const FigureSet& figures, std::vector<std::string>& cuts) {
  ordered_json out = ordered_json::array();
  for (const Figure& figure : figures.figures) {
    if (figure.page.is_null()) continue;
    if (out.size() == kMaxCharts) {
      cuts.push_back(
          fmt::format("The first {} charts of {} are here.", kMaxCharts, figures.figures.size()));
      break;
    }
    out.push_back({{"kind", figure.kind},
                   {"name", figure.name},
                   {"title", figure.title},
                   {"spec", figure.page}});
  }
  return out;
}

/// Cleans displayed names and limits them to a length that a page can lay out. Keeps the scenario
/// as run unchanged.
void bound_names(ordered_json& value, std::string_view key) {
  constexpr std::array<std::string_view, 9> kNames{"label", "name", "title",      "model", "gpu",
                                                   "of",    "best", "categories", "rows"};
  if (key == "scenario") return;
  if (value.is_string()) {
    if (std::find(kNames.begin(), kNames.end(), key) == kNames.end()) return;
    value = name_text(value.get_ref<const std::string&>(), 2 * kLongestName);
  } else if (value.is_array()) {
    for (ordered_json& item : value) bound_names(item, key);
  } else if (value.is_object()) {
    for (auto& [name, item] : value.items()) bound_names(item, name);
  }
}

}  // namespace

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("- ")) line.remove_prefix(2);
    if (!line.empty()) out.emplace_back(line);
  }
  return out;
}

std::vector<PageSentence> lines_that_begin(const std::string& text,
                                           const std::vector<std::string_view>& words) {
  std::vector<PageSentence> out;
  for (std::string& line : lines_of(text)) {
    const bool wanted = std::any_of(words.begin(), words.end(),
                                    [&](std::string_view word) { return line.starts_with(word); });
    if (wanted) out.push_back({std::move(line)});
  }
  return out;
}

ordered_json data_of(const char* kind, ordered_json document, const FigureSet& figures,
                     ordered_json extras, std::vector<std::string> cuts) {
  ordered_json out{{"schema", kPageSchema}, {"kind", kind}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["charts"] = charts_json(figures, cuts);
  out["document"] = std::move(document);
  out["extras"] = std::move(extras);
  out["left_out"] = cuts;
  bound_names(out, "");
  return out;
}

ordered_json page_columns(const MetricInfos& metrics) {
  ordered_json out = ordered_json::array();
  for (const MetricInfo* info : metrics) {
    if (info->page.header.empty()) continue;
    out.push_back({{"key", info->key},
                   {"header", info->page.header},
                   {"unit", info->page.unit},
                   {"place", info->page.place},
                   {"latency", info->kind == MetricKind::kLatency}});
  }
  return out;
}

void cut_points(ordered_json& document, std::vector<std::string>& cuts) {
  const auto points = document.find("points");
  if (points == document.end() || !points->is_array()) return;
  const std::size_t n = points->size();
  if (n > kMaxPoints) {
    points->erase(points->begin() + kMaxPoints, points->end());
    cuts.push_back(fmt::format("Tables have the first {} of {} points; result.json has all.",
                               kMaxPoints, with_commas(static_cast<std::int64_t>(n))));
  }
  bool explained = false;
  for (std::size_t i = kMaxExplained; i < points->size(); ++i) {
    ordered_json& point = (*points)[i];
    for (const char* key : {"time_terms", "peak_terms", "mean_iteration"}) {
      explained = point.erase(key) > 0 || explained;
    }
  }
  if (explained) {
    cuts.push_back(
        fmt::format("Operators and terms of memory are of the first {} points; "
                    "result.json has all.",
                    kMaxExplained));
  }
}

std::string title_of(const std::string& name, const std::string& title) {
  return name_text(title.empty() ? name : title, 2 * kLongestName);
}

}  // namespace kvsim
