#include "sim/report/run/run_summary.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/batch/engine_report.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/batch/static_summary.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/folder/summary_blocks.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/replay/replay_summary.hpp"
#include "sim/report/run/run_finding.hpp"
#include "sim/report/service/serve_summary.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/text_style.hpp"
#include "sim/run/run_report.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

/// A predicted value in the unit of the published value.
std::string in_unit_of(const PublishedValue& entry, double value) {
  const std::string_view unit = published_metric(entry.metric).unit;
  if (unit == "B") {
    const bool decimal =
        entry.text.find("GB") != std::string::npos || entry.text.find("TB") != std::string::npos;
    if (decimal && value >= 1e8) return fmt::format("{} GB", amount(value / 1e9));
    return to_text(Bytes{static_cast<std::int64_t>(std::llround(value))});
  }
  if (unit == "s") return to_text(Seconds{value});
  if (unit == "tokens") return with_commas(std::llround(value)) + " tokens";
  if (unit.empty()) return value > 0 ? "yes" : "no";
  return fmt::format("{} {}", amount(value), unit);
}

/// `with_notes`: also the reasons why a published figure cannot be right.
std::string published_block(const RunReport& report, const ordered_json& document,
                            const std::vector<std::string>& labels, std::size_t width,
                            bool with_notes) {
  const ordered_json& published = document.at("published");
  if (published.empty()) return "";
  const bool has_notes =
      std::any_of(report.scenario->published.begin(), report.scenario->published.end(),
                  [](const PublishedValue& entry) { return !entry.note.empty(); });
  Table table{{{has_notes && !with_notes ? "metric (*: see -v)" : "metric", Align::kLeft},
               {"of", Align::kLeft},
               {"published"},
               {"predicted"},
               {"miss"}}};
  std::string notes;
  const auto add = [&](std::size_t i, const std::string& label) {
    const PublishedValue& entry = report.scenario->published[i];
    const auto& ours = published[i].at("predicted");
    const auto& miss = published[i].at("miss");
    const bool has_miss = !miss.is_null();
    const std::string mark = entry.note.empty() ? "" : " *";
    table.add_row({entry.metric + mark, label,
                   entry.text.empty() ? in_unit_of(entry, entry.value) : entry.text,
                   ours.is_null()      ? "-"
                   : ours.is_boolean() ? (ours.get<bool>() ? "yes" : "no")
                                       : in_unit_of(entry, ours.get<double>()),
                   has_miss ? fmt::format("{:+.1f} %", miss.get<double>() * 100) : "-"});
    if (entry.note.empty()) return;
    notes += paragraph(fmt::format("* {} of {}: {}", entry.metric, labels[entry.point], entry.note),
                       width, 2);
  };
  const std::vector<PointGroup> groups = point_groups(*report.scenario, surrounding_keys());
  const bool is_numbered = !with_notes && groups.size() > 1 && has_numbered_groups(report);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PointGroup& group = groups[g];
    const std::string number = is_numbered ? fmt::format("{}: ", g + 1) : std::string{};
    bool first = !is_numbered;
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      for (std::size_t i = 0; i < published.size(); ++i) {
        if (report.scenario->published[i].point != group.points[k]) continue;
        if (first) table.add_section(group.heading);
        first = false;
        add(i, number + group.labels[k]);
      }
    }
  }
  return with_notes ? "\n" + table.str(width) + notes : table.str(width);
}

/// HBM over the tokens of each point, or over the time of each service, as sparklines up to the
/// usable HBM. Empty if the style has no blocks or there are too many points to read.
std::string sparklines_block(const RunReport& report, const std::vector<std::string>& labels,
                             const TextStyle& style) {
  constexpr std::size_t kMaxPoints = 16;
  constexpr std::size_t kColumns = 40;
  if (!style.blocks || labels.size() > kMaxPoints) return "";
  const bool serves = report.scenario->kind == "serve";
  Table table{{{serves ? "HBM over time" : "HBM over tokens", Align::kLeft},
               {"of usable", Align::kLeft},
               {"peak"}}};
  std::vector<LineTones> tones{{.line = Tone::kHeading}};
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::vector<double> values;
    Bytes usable, peak;
    bool oom = false;
    if (serves) {
      const ServeResult& r = report.serves[i];
      if (r.timeline.empty()) continue;
      for (const ServeSample& sample : r.timeline.front()) {
        values.push_back(static_cast<double>(sample.held.count()));
      }
      usable = r.usable_hbm;
      peak = r.peak_hbm;
    } else {
      const StaticResult& r = report.results[i];
      for (const StaticSample& sample : r.timeline) {
        values.push_back(static_cast<double>(sample.peak.count()));
      }
      usable = r.usable_hbm;
      peak = r.peak_hbm;
      oom = r.oom.has_value();
    }
    if (values.empty() || usable <= Bytes{0}) continue;
    const auto top = static_cast<double>(usable.count());
    table.add_row(
        {labels[i],
         fmt::format("{}{}", sparkline(values, top, kColumns - (oom ? 1 : 0)), oom ? "×" : ""),
         fmt::format("{:.0f} %", 100 * static_cast<double>(peak.count()) / top)});
    tones.push_back({.line = oom ? Tone::kBad : Tone::kPlain});
  }
  if (tones.size() == 1) return "";
  return fmt::format("\n{}", toned_lines(table.str(style.width), tones, style));
}

/// The engine start of each point that has one, printed once if points share it.
std::string startups_block(const RunReport& report, const std::vector<std::string>& labels,
                           std::size_t width) {
  constexpr std::size_t kMaxBlocks = 3;
  std::vector<std::pair<std::string, std::vector<std::string>>> blocks;
  const bool serves = report.scenario->kind == "serve";
  for (std::size_t i = 0; i < report.scenario->points.size(); ++i) {
    const auto& startup = serves ? report.serves[i].startup : report.results[i].startup;
    if (!startup) continue;
    std::string text = startup_text(*startup, width);
    const auto found = std::find_if(blocks.begin(), blocks.end(),
                                    [&](const auto& block) { return block.first == text; });
    if (found == blocks.end()) {
      blocks.push_back({std::move(text), {labels[i]}});
    } else {
      found->second.push_back(labels[i]);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(blocks.size(), kMaxBlocks); ++i) {
    const auto& [text, points] = blocks[i];
    if (blocks.size() > 1) out += paragraph(fmt::format("\n{}:", fmt::join(points, ", ")), width);
    out += text;
  }
  if (blocks.size() > kMaxBlocks) {
    out += fmt::format("and {} more starts: see result.json\n", blocks.size() - kMaxBlocks);
  }
  return out;
}

/// Notes of points, each once with the points that it applies to.
std::vector<std::string> point_notes(const RunReport& report,
                                     const std::vector<std::string>& labels) {
  const bool serves = report.scenario->kind == "serve";
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    for (const std::string& note : serves ? report.serves[i].notes : report.results[i].notes) {
      const auto found = std::find_if(notes.begin(), notes.end(),
                                      [&](const auto& entry) { return entry.first == note; });
      if (found == notes.end()) {
        notes.push_back({note, {labels[i]}});
      } else {
        found->second.push_back(labels[i]);
      }
    }
  }
  std::vector<std::string> out;
  for (const auto& [note, points] : notes) {
    const std::string who = points.size() == labels.size() ? ""
                            : points.size() > 3 ? fmt::format("{} points: ", points.size())
                                                : fmt::format("{}: ", fmt::join(points, ", "));
    out.push_back(fmt::format("note: {}{}", who, note));
  }
  return out;
}

/// Caveats of the scenario's points, each once.
std::vector<std::string> warnings(const RunReport& report) {
  std::vector<std::string> out;
  for (const ScenarioPoint& point : report.scenario->points) {
    for (const std::string& note : point.notes) {
      if (std::find(out.begin(), out.end(), note) == out.end()) out.push_back(note);
    }
  }
  // One batch of a list is enough: all larger ones also exceed the limit.
  for (const StaticResult& result : report.results) {
    if (result.exceeded_num_seqs.empty()) continue;
    out.push_back(result.exceeded_num_seqs);
    break;
  }
  return out;
}

/// A note on one line. If it is longer, its last clauses are only printed with --verbose.
std::string brief_note(const std::string& note, std::size_t width) {
  constexpr std::string_view kEnd = "…";
  const std::string whole = clean_text("note: " + note);
  if (display_width(whole) <= width) return whole + "\n";
  const std::size_t room = width - display_width(kEnd);
  std::size_t end = 0;
  for (const std::string_view separator : {"; ", " (", ": "}) {
    for (std::size_t at = whole.find(separator, 6); at != std::string::npos;
         at = whole.find(separator, at + 1)) {
      if (display_width(whole.substr(0, at)) <= room) end = std::max(end, at);
    }
  }
  return end > 0 ? fmt::format("{}{}\n", whole.substr(0, end), kEnd)
                 : shortened(whole, width) + "\n";
}

/// The short summary: the table, points that run out of memory, published values, methods at equal
/// bytes, the finding, and the locations of the rest.
std::string brief_summary(const RunReport& report, const ordered_json& document,
                          const ResultsFolder* written, const TextStyle& style) {
  constexpr std::size_t kMaxNotes = 2;
  const std::size_t width = style.width;
  const Scenario& scenario = *report.scenario;
  std::vector<std::size_t> all(scenario.points.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<std::string> labels = labels_within(scenario, all);
  const std::string title =
      shortened(clean_text(scenario.title.empty() ? scenario.name : scenario.title), width) + "\n";
  std::string out;
  if (report.replay) {
    const ReplayResult& replay = *report.replay;
    const std::string equal = equal_bytes_table(replay, width);
    out += equal.empty()
               ? title + replay_block(replay, report.skipped, width)
               : paragraph(fmt::format("Trace {} ({}), equal bytes:", replay.trace, replay.source),
                           width) +
                     equal;
  } else {
    out += title;
  }
  if (!all.empty()) {
    if (scenario.kind == "serve") {
      out += brief_serve_block(report, labels, width);
    } else {
      // With a replay, points are only context: the verdict is enough.
      if (!report.replay) out += points_table(report, style);
      out += brief_verdict(report, labels, style);
    }
    out += published_block(report, document, labels, width, false);
  }
  // The assumed settings of the engine are part of the answer.
  out += engines_text(scenario, width);
  const std::vector<std::string> warned = warnings(report);
  for (std::size_t i = 0; i < std::min(warned.size(), kMaxNotes); ++i) {
    out += brief_note(warned[i], width);
  }
  for (const std::string& note : scenario.notes) out += brief_note(note, width);
  for (const std::string& note : report.notes) out += brief_note(note, width);
  const std::string finding =
      report.replay ? replay_finding(*report.replay) : points_finding(report);
  if (!finding.empty()) out += paragraph("Finding: " + finding, width, 2);
  return out + brief_files_block(written, width);
}

}  // namespace

std::string run_summary(const RunReport& report, const ordered_json& document,
                        const ResultsFolder* written, const TextStyle& style) {
  if (!style.verbose) return brief_summary(report, document, written, style);
  const std::size_t width = style.width;
  const Scenario& scenario = *report.scenario;
  std::vector<std::size_t> all(scenario.points.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<std::string> labels = labels_within(scenario, all);
  std::string out = paragraph(
      scenario.title.empty() ? scenario.name : scenario.name + ": " + scenario.title, width);
  if (!all.empty()) {
    const std::string common = common_description(scenario);
    if (common != clean_text(scenario.title)) out += paragraph(common, width);
    const bool serves = scenario.kind == "serve";
    if (serves) {
      out += serve_block(report, labels, width);
    } else {
      out += "\n" + points_table(report, style) + "\n" + static_verdict(report, labels, style);
      out += bounds_block(report, width);
      out += intervals_block(report, width);
    }
    out += allocator_block(report, labels, width);
    out += sparklines_block(report, labels, style);
    out += startups_block(report, labels, width);
    for (const std::string& note : point_notes(report, labels)) out += paragraph(note, width, 6);
    out += published_block(report, document, labels, width, true);
  }
  if (report.replay) out += "\n" + replay_block(*report.replay, report.skipped, width);
  out += notes_block(scenario.notes, width) + notes_block(report.notes, width);
  out += finding_block(run_finding(report), width);
  return out + files_block(written, width);
}

std::string run_summary(const RunReport& report, const ordered_json& document,
                        const ResultsFolder* written, std::size_t width) {
  return run_summary(report, document, written, TextStyle{width});
}

}  // namespace kvsim
