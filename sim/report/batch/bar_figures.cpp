#include "sim/report/batch/bar_figures.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/owner_styles.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxFiles = 12;  // per kind of figure
constexpr std::size_t kMaxBars = 24;   // per file
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

double as_double(Bytes bytes) { return static_cast<double>(bytes.count()); }

/// One bar per point under its group's heading. A file holds whole groups as long as they fit.
template <class MakeBar>
std::vector<std::vector<ChartBar>> bars_by_group(const Scenario& scenario, MakeBar bar_of) {
  std::vector<std::vector<ChartBar>> files(1);
  for (const PointGroup& group : figure_groups(scenario, surrounding_keys())) {
    const std::size_t rows = group.points.size() + (group.heading.empty() ? 0 : 1);
    if (!files.back().empty() && files.back().size() + rows > kMaxBars) files.emplace_back();
    if (!group.heading.empty()) files.back().push_back({.label = group.heading, .heading = true});
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      if (files.back().size() >= kMaxBars) files.emplace_back();
      files.back().push_back(bar_of(group.points[k], group.labels[k]));
    }
  }
  return files;
}

/// Draws one file per group, named after `chart`, which has no bars itself.
void add_files(BarChart chart, std::vector<std::vector<ChartBar>> files, FigureSet& set) {
  const std::string kind = chart.name;
  for (std::size_t file = 0; file < std::min(files.size(), kMaxFiles); ++file) {
    if (files.size() > 1) chart.name = fmt::format("{}_{}", kind, file + 1);
    chart.bars = std::move(files[file]);
    const bool any = std::any_of(chart.bars.begin(), chart.bars.end(),
                                 [](const ChartBar& bar) { return !bar.parts.empty(); });
    if (!any) continue;
    set.figures.push_back(draw(chart));
    set.figures.back().kind = kind;
  }
  if (files.size() > kMaxFiles) {
    set.notes.push_back(
        fmt::format("{} more figures of {} were left out", files.size() - kMaxFiles, kind));
  }
}

/// "OOM at 54,171 tokens".
std::string oom_words(const OomEvent& oom) {
  if (oom.phase == "decode") return fmt::format("OOM at {} tokens", with_commas(oom.tokens));
  return oom.phase == "load" ? "OOM on loading" : "OOM in " + oom.phase;
}

/// A point's bar: bytes by owner at the peak, or at the OOM including the requested bytes.
ChartBar breakdown_of(const StaticResult& result, const std::string& label) {
  constexpr double kCut = 1.15;  // times the limit; the requested bytes may be many times the
                                 // memory
  ChartBar bar{.label = label, .limit = as_double(result.usable_hbm)};
  if (result.oom)
    bar.detail = oom_words(*result.oom);
  else if (!result.peak_phase.empty())
    bar.detail = "peak in " + result.peak_phase;
  const Owners& owners = result.oom ? result.oom->owners : result.peak_owners;
  Bytes unnamed{0};
  for (const auto& [name, bytes] : owners) unnamed += bytes;
  for (const OwnerStyle& row : owner_styles()) {
    const auto found = owners.find(std::string{row.owner});
    if (found == owners.end() || !(found->second > Bytes{0})) continue;
    bar.parts.emplace_back(row.style, as_double(found->second));
    unnamed -= found->second;
  }
  if (unnamed > Bytes{0}) bar.parts.emplace_back(style_of_owner("other"), as_double(unnamed));
  if (result.oom) {
    bar.parts.emplace_back(style_of_refusal(), as_double(result.oom->requested));
    bar.cut = kCut * as_double(result.usable_hbm);
    bar.end_text = fmt::format("{}\n{}", style_of_refusal().words, to_text(result.oom->requested));
  }
  return bar;
}

/// "335.5 GB" next to a value printed in GB, "19.53 GiB" next to others.
std::string in_unit_of(const std::string& published, Bytes bytes) {
  const bool decimal =
      published.find("GB") != std::string::npos || published.find("TB") != std::string::npos;
  if (!decimal) return to_text(bytes);
  const double gigabytes = as_double(bytes) / 1e9;
  return gigabytes < 999.5 ? fmt::format("{:.4g} GB", gigabytes)
                           : with_commas(std::llround(gigabytes)) + " GB";
}

PartStyle style_of_prediction() { return {"predicted", style_of_owner("kv_cache").fill}; }

/// The cache size of a point by its size law, whether or not it fits, and a published size of it.
ChartBar cache_of(const RunReport& report, std::size_t point, bool with_method) {
  const Scenario& scenario = *report.scenario;
  const nlohmann::ordered_json& keys = scenario.points[point].keys;
  ChartBar bar{.label = label_of(keys, {"model"}), .inside_numbers = false};
  if (with_method) bar.label = label_of(keys, {"model", "method", "budget"});
  const StaticSpec& spec = scenario.points[point].spec;
  const std::string batch = spec.batch > 1 ? with_commas(spec.batch) + " x " : std::string{};
  bar.detail = fmt::format("{}, {}{} tokens", name_of(spec.kv_dtype), batch,
                           with_commas(spec.prompt_tokens));
  const auto published = std::find_if(scenario.published.begin(), scenario.published.end(),
                                      [point](const PublishedValue& value) {
                                        return value.point == point && value.metric == "kv_bytes";
                                      });
  const StaticResult& result = report.results[point];
  const Bytes bytes = scenario.points[point].kv_bytes_wanted.value_or(result.kv_bytes);
  bar.parts.emplace_back(style_of_prediction(), as_double(bytes));
  bar.end_text = to_text(bytes);
  if (published != scenario.published.end()) {
    bar.end_text = in_unit_of(published->text, bytes);
    bar.compared = published->value;
    bar.compared_text = in_unit_of(published->text, Bytes{std::llround(published->value)});
  }
  return bar;
}

}  // namespace

void add_bar_figures(const RunReport& report, FigureSet& set) {
  const Scenario& scenario = *report.scenario;
  const std::vector<PointGroup> groups = figure_groups(scenario, surrounding_keys());
  // The description of a single group also includes the settings that its methods share.
  const std::string about =
      groups.size() == 1 ? groups.front().description : common_description(scenario);
  add_files({.name = "hbm_breakdown",
             .title = "HBM by owner at the peak: " + about,
             .x_label = "HBM (GiB)",
             .column = "bytes",
             .unit = kGiB,
             .limit_label = "usable HBM",
             .styles = breakdown_styles()},
            bars_by_group(scenario,
                          [&](std::size_t point, const std::string& label) {
                            return breakdown_of(report.results[point], label);
                          }),
            set);
  const bool none_decodes =
      std::all_of(scenario.points.begin(), scenario.points.end(),
                  [](const ScenarioPoint& point) { return point.spec.output_tokens == 0; });
  if (!none_decodes) return;
  std::set<std::string> methods;
  for (const ScenarioPoint& point : scenario.points) {
    methods.insert(label_of(point.keys, {"method", "budget", "method_params"}));
  }
  std::vector<std::vector<ChartBar>> files(1);
  for (std::size_t point = 0; point < scenario.points.size(); ++point) {
    if (files.back().size() == kMaxBars) files.emplace_back();
    files.back().push_back(cache_of(report, point, methods.size() > 1));
  }
  const std::string title = scenario.title.empty() ? scenario.name : scenario.title;
  add_files({.name = "cache_size",
             .title = "Cache after the prompt: " + title,
             .x_label = "keys, values and side data of the whole batch (GiB)",
             .column = "bytes",
             .unit = kGiB,
             .compared_label = "published",
             .styles = {style_of_prediction()}},
            std::move(files), set);
}

}  // namespace kvsim
