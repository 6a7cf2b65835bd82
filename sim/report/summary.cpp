#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/point_names.hpp"
#include "sim/report/replay_aggregate.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/serve_summary.hpp"
#include "sim/report/startup_report.hpp"
#include "sim/report/table.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(Bytes bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes.count()) / kGiB);
}
/// A figure beside a published one, in the unit the publication uses.
std::string in_unit_of(const PublishedFigure& figure, double value) {
  const std::string& metric = figure.metric;
  if (metric.find("_bytes") != std::string::npos) {
    const bool decimal =
        figure.text.find("GB") != std::string::npos || figure.text.find("TB") != std::string::npos;
    if (decimal && value >= 1e8) return fmt::format("{} GB", amount(value / 1e9));
    return to_text(Bytes{static_cast<std::int64_t>(std::llround(value))});
  }
  if (metric.ends_with("tok_s")) return amount(value) + " tok/s";
  if (metric.ends_with("_s")) return to_text(Seconds{value});
  if (metric.ends_with("tokens")) return with_commas(std::llround(value)) + " tokens";
  if (metric == "oom") return value > 0 ? "yes" : "no";
  return amount(value);
}

std::string published_block(const RunReport& report, const std::vector<std::string>& labels,
                            std::size_t width) {
  const auto document = run_document(report).at("published");
  if (document.empty()) return "";
  Table table{{{"published figure", Align::kLeft},
               {"of", Align::kLeft},
               {"published"},
               {"predicted"},
               {"miss"}}};
  std::string notes;
  const auto add = [&](std::size_t i, const std::string& label) {
    const PublishedFigure& figure = report.scenario->published[i];
    const auto& ours = document[i].at("predicted");
    const auto& miss = document[i].at("miss");
    const bool has_miss = !miss.is_null();
    const std::string mark = figure.note.empty() ? "" : " *";
    table.add_row({figure.metric + mark, label,
                   figure.text.empty() ? in_unit_of(figure, figure.value) : figure.text,
                   ours.is_null()      ? "-"
                   : ours.is_boolean() ? (ours.get<bool>() ? "yes" : "no")
                                       : in_unit_of(figure, ours.get<double>()),
                   has_miss ? fmt::format("{:+.1f} %", miss.get<double>() * 100) : "-"});
    if (figure.note.empty()) return;
    notes += paragraph(
        fmt::format("* {} of {}: {}", figure.metric, labels[figure.point], figure.note), width, 2);
  };
  for (const PointGroup& group : point_groups(*report.scenario, surrounding_keys())) {
    bool first = true;
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      for (std::size_t i = 0; i < document.size(); ++i) {
        if (report.scenario->published[i].point != group.points[k]) continue;
        if (first) table.add_section(group.heading);
        first = false;
        add(i, group.labels[k]);
      }
    }
  }
  return "\n" + table.str(width) + notes;
}

}  // namespace

std::string static_verdict(const RunReport& report, const std::vector<std::string>& labels,
                           std::size_t width) {
  std::vector<std::size_t> failed;
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    if (report.results[i].oom) failed.push_back(i);
  }
  const std::size_t n = report.results.size();
  std::string usable;
  if (n > 0) {
    const auto [low, high] = std::minmax_element(
        report.results.begin(), report.results.end(),
        [](const auto& a, const auto& b) { return a.usable_hbm < b.usable_hbm; });
    usable = "usable HBM " + gib(low->usable_hbm) +
             (low->usable_hbm < high->usable_hbm ? " to " + gib(high->usable_hbm) : "") + " GiB";
  }
  if (failed.empty()) {
    return n == 1 ? fmt::format("It fits ({}).\n", usable)
                  : fmt::format("All {} points fit ({}).\n", n, usable);
  }
  std::stable_sort(failed.begin(), failed.end(), [&](std::size_t a, std::size_t b) {
    const auto when = [&](std::size_t i) {
      return std::pair{report.results[i].oom->tokens, report.results[i].oom->step};
    };
    return when(a) < when(b);
  });
  std::string out = fmt::format("{} of {} point{} fit{} ({}).\n", n - failed.size(), n,
                                n == 1 ? "" : "s", n - failed.size() == 1 ? "s" : "", usable);
  constexpr std::size_t kMostSentences = 8;
  for (std::size_t i = 0; i < std::min(failed.size(), kMostSentences); ++i) {
    const std::string label = n == 1 ? "it" : labels[failed[i]];
    out += paragraph("- " + oom_sentence(label, *report.results[failed[i]].oom), width, 2);
  }
  if (failed.size() > kMostSentences) {
    out += fmt::format("- and {} more: see points.csv\n", failed.size() - kMostSentences);
  }
  return out;
}

namespace {

std::string points_table(const RunReport& report, std::size_t width) {
  constexpr Align kRight = Align::kRight;
  Table table{{{"point", Align::kLeft},
               {"prefill", kRight, "GiB"},
               {"decode", kRight, "GiB"},
               {"KV", kRight, "GiB"},
               {"TTFT", kRight, "s"},
               {"decode", kRight, "tok/s"},
               {"all", kRight, "tok/s"},
               {"OOM at", kRight, "tokens"}}};
  for (const PointGroup& group : point_groups(*report.scenario, surrounding_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const StaticResult& r = report.results[group.points[k]];
      std::optional<double> prefill;
      if (r.prefill_time) prefill = r.prefill_time->count();
      std::string oom = "-";
      if (r.oom) oom = r.oom->phase == "decode" ? with_commas(r.oom->tokens) : r.oom->phase;
      table.add_row({indent + group.labels[k], gib(r.prefill_peak),
                     r.decode_peak > Bytes{0} ? gib(r.decode_peak) : "-", gib(r.kv_bytes),
                     amount(prefill), amount(r.decode_tok_s), amount(r.throughput_tok_s), oom});
    }
  }
  return table.str(width);
}

/// Shares of a step's time by what bounds them, in %.
struct BoundShares {
  std::string compute = "-", memory = "-", overhead = "-";
};
BoundShares shares_of(const ExplainedStep& step) {
  double compute = 0, memory = 0;
  for (const TimeTerm& term : step.terms) {
    if (term.bound == "compute") compute += term.time.count();
    if (term.bound == "memory") memory += term.time.count();
  }
  const auto percent = [&](double part) {
    return fmt::format("{:.1f}", 100 * part / step.time.count());
  };
  return {percent(compute), percent(memory),
          percent(std::max(0.0, step.time.count() - compute - memory))};
}

/// What bounds the time of prefill and of the last decode step; empty where no time was explained
/// or there are too many points to read.
std::string bounds_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMostPoints = 20;
  const auto explained = [](const StaticResult& r) { return !r.explained.empty(); };
  if (report.results.size() > kMostPoints ||
      std::none_of(report.results.begin(), report.results.end(), explained)) {
    return "";
  }
  constexpr Align kRight = Align::kRight;
  Table table{{{"point", Align::kLeft},
               {"compute", kRight, "% TTFT"},
               {"memory", kRight, "% TTFT"},
               {"overhead", kRight, "% TTFT"},
               {"step", kRight, "ms"},
               {"compute", kRight, "% step"},
               {"memory", kRight, "% step"},
               {"overhead", kRight, "% step"}}};
  for (const PointGroup& group : point_groups(*report.scenario, surrounding_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const auto& steps = report.results[group.points[k]].explained;
      if (steps.empty()) continue;
      const BoundShares prefill = shares_of(steps.front());
      const bool decodes = steps.back().step > 0;
      const BoundShares last = decodes ? shares_of(steps.back()) : BoundShares{};
      table.add_row({indent + group.labels[k], prefill.compute, prefill.memory, prefill.overhead,
                     decodes ? amount(steps.back().time.count() * 1e3) : "-", last.compute,
                     last.memory, last.overhead});
    }
  }
  return "\n" +
         paragraph(
             "What bounds the time of prefill (TTFT) and of the last decode step; overhead is "
             "kernel launches and the host (time_terms in result.json):",
             width) +
         table.str(width);
}

/// "0.41 to 0.62"; "-" without one.
template <class Ends>
std::string range(const std::optional<Ends>& ends, double scale = 1) {
  if (!ends) return "-";
  return fmt::format("{} to {}", amount(static_cast<double>(ends->low.count()) * scale),
                     amount(static_cast<double>(ends->high.count()) * scale));
}

/// Tokens per sequence at which memory runs out, at the most and the least that a run may take.
std::string oom_range(const StaticResult& r) {
  const RunIntervals& at = *r.intervals;
  if (!at.oom_low) return "-";
  return fmt::format("{} to {}", with_commas(*at.oom_low),
                     at.oom_high ? with_commas(*at.oom_high) : "none");
}

/// "40 (37 to 44)"; "8 or more" where the search ended there, "-" where nothing was searched.
std::string batch_range(const std::optional<FitRange>& fit) {
  if (!fit) return "-";
  const auto count = [](std::int64_t n) {
    return fmt::format("{}{}", with_commas(n), n == FitRange::kMostBatch ? "+" : "");
  };
  if (!fit->batch_low || !fit->batch_high) return count(fit->batch);
  return fmt::format("{} ({} to {})", count(fit->batch), count(*fit->batch_low),
                     count(*fit->batch_high));
}
std::string gpu_range(const std::optional<FitRange>& fit) {
  if (!fit) return "-";
  const auto count = [](const std::optional<std::int32_t>& n) {
    return n ? fmt::format("{}", *n) : fmt::format(">{}", FitRange::kMostGpus);
  };
  const bool one_answer = fit->gpus == fit->gpus_low && fit->gpus == fit->gpus_high;
  if (one_answer || !fit->batch_low) return count(fit->gpus);
  return fmt::format("{} ({} to {})", count(fit->gpus), count(fit->gpus_low),
                     count(fit->gpus_high));
}

/// Where 90 % of cases lie about the figures, and what says so; empty where no point has one or
/// there are too many points to read.
std::string intervals_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMostPoints = 20;
  const auto has_one = [](const StaticResult& r) {
    return r.intervals && (r.intervals->prefill || r.intervals->peak || r.intervals->oom_low);
  };
  if (report.results.size() > kMostPoints ||
      std::none_of(report.results.begin(), report.results.end(), has_one)) {
    return "";
  }
  constexpr Align kRight = Align::kRight;
  Table table{{{"90 % of cases", Align::kLeft},
               {"peak", kRight, "GiB"},
               {"TTFT", kRight, "s"},
               {"step", kRight, "ms"},
               {"OOM at", kRight, "tokens"},
               {"most", kRight, "batch"},
               {"fewest", kRight, "GPUs"}}};
  std::vector<std::string> bases;
  for (const PointGroup& group : point_groups(*report.scenario, surrounding_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const StaticResult& r = report.results[group.points[k]];
      if (!r.intervals) continue;
      const double steps =
          static_cast<double>(report.scenario->points[group.points[k]].spec.output_tokens);
      table.add_row({indent + group.labels[k], range(r.intervals->peak, 1 / kGiB),
                     range(r.intervals->prefill), range(r.intervals->decode, 1e3 / steps),
                     oom_range(r), batch_range(r.fit_range), gpu_range(r.fit_range)});
      for (const std::string& basis :
           {"times: " + r.intervals->time_basis, "memory: " + r.intervals->memory_basis}) {
        if (std::find(bases.begin(), bases.end(), basis) == bases.end()) bases.push_back(basis);
      }
    }
  }
  std::string out = "\n" + table.str(width);
  constexpr std::size_t kMostBases = 4;
  for (std::size_t i = 0; i < std::min(bases.size(), kMostBases); ++i) {
    out += paragraph("- " + bases[i], width, 2);
  }
  if (bases.size() > kMostBases) {
    out += fmt::format("- and {} more: interval_basis in result.json\n", bases.size() - kMostBases);
  }
  return out;
}

std::string notes_block(const std::vector<std::string>& notes, std::size_t width) {
  std::string out;
  for (const std::string& note : notes) out += paragraph("note: " + note, width, 6);
  return out;
}

std::string files_block(const ResultsFolder* written, std::size_t width) {
  if (written == nullptr) return "";
  const std::string folder = clean_text(written->folder.string());
  std::string out = fmt::format("\nresults  {}/result.json\n", folder);
  if (written->page) out += fmt::format("page     {}/{}\n", folder, kPageFile);
  for (const std::string& name : written->figures) {
    if (name.ends_with(".png")) out += fmt::format("figure   {}/{}\n", folder, name);
  }
  if (!written->figures.empty()) out += "         (each as .svg too)\n";
  return out + notes_block(written->notes, width);
}

std::string replay_table(const ReplayResult& replay, std::size_t width) {
  Table table{{{"method", Align::kLeft},
               {"budget"},
               {"entries"},
               {"bytes"},
               {"of full"},
               {"error"},
               {"p99"},
               {"size law", Align::kLeft}}};
  for (const ReplayMethod& m : replay.methods) {
    std::string budget = "-";
    if (m.budget) {
      budget = *m.budget <= 1 ? fmt::format("{:g} %", *m.budget * 100) : amount(*m.budget);
    }
    const double part = m.bytes_full_final > 0 ? static_cast<double>(m.bytes_held_final) /
                                                     static_cast<double>(m.bytes_full_final)
                                               : 0;
    std::string closed = "none";
    if (m.closed_form_bytes_final) {
      closed = *m.closed_form_bytes_final == m.bytes_held_final
                   ? "agrees"
                   : "says " + to_text(Bytes{*m.closed_form_bytes_final});
    }
    table.add_row({m.name, budget, with_commas(m.entries_held_final),
                   to_text(Bytes{m.bytes_held_final}), fmt::format("{:.1f} %", part * 100),
                   amount(m.rel_error_mean), amount(m.rel_error_p99), closed});
  }
  return table.str(width);
}

std::string replay_block(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                         std::size_t width) {
  std::string out = paragraph(
      fmt::format("Replay of trace {}, {} decode steps: what is held after the last, and "
                  "how far attention's output strays from the full cache's.",
                  replay.trace,
                  replay.methods.empty() ? "0" : with_commas(replay.methods.front().steps)),
      width);
  out += replay_table(replay, width);
  for (const SkippedMethod& m : skipped) {
    out += paragraph(fmt::format("skipped {}: {}", m.name, m.reason), width, 8);
  }
  std::set<std::pair<std::string, std::string>> said;  // at one budget as at the next
  for (const ReplayMethod& m : replay.methods) {
    for (const std::string& note : m.notes) {
      if (!said.emplace(m.name, note).second) continue;
      out += paragraph(fmt::format("note: {}: {}", m.name, note), width, 6);
    }
  }
  return out;
}

}  // namespace

std::string oom_sentence(std::string_view label, const OomEvent& oom) {
  std::string when = "in " + oom.phase;
  if (oom.phase == "load") when = "on loading the model";
  if (oom.phase == "decode") when = fmt::format("at decode step {}", with_commas(oom.step));
  std::vector<std::pair<Bytes, std::string>> owners;
  for (const auto& [name, bytes] : oom.owners) {
    if (bytes > Bytes{0}) owners.emplace_back(bytes, name);
  }
  std::stable_sort(owners.begin(), owners.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> held;
  held.reserve(owners.size());
  for (const auto& [bytes, name] : owners) held.push_back(name + " " + to_text(bytes));
  return fmt::format("{}: out of memory {} ({} tokens): asked {}{}, {} free, short by {}{}{}",
                     label, when, with_commas(oom.tokens), to_text(oom.requested),
                     oom.what.empty() ? "" : " for " + oom.what, to_text(oom.free),
                     to_text(oom.requested - oom.free), held.empty() ? "" : "; ",
                     fmt::join(held, ", "));
}

namespace {

/// What the simulated allocator came to, a paragraph a point.
std::string allocator_block(const RunReport& report, const std::vector<std::string>& labels,
                            std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const auto& simulated = report.results[i].allocator;
    if (!simulated) continue;
    const AllocatorStats& end = simulated->end;
    std::string text = fmt::format(
        "allocator, {}: {} reserved at most, {} allocated; at the end {} and {}, fragmentation "
        "{:.2f}",
        labels[i], to_text(end.reserved_peak), to_text(end.allocated_peak), to_text(end.reserved),
        to_text(end.allocated), end.fragmentation());
    if (end.retries > 0) text += fmt::format("; cache given back {} times", end.retries);
    out += paragraph(text, width, 6);
    if (simulated->oom) {
      out += paragraph(
          fmt::format("allocator, {}: {} at step {} ({} tokens): {}", labels[i],
                      simulated->oom->what, with_commas(simulated->oom->step),
                      with_commas(simulated->oom->tokens), simulated->oom->reason.message()),
          width, 6);
    }
  }
  return out;
}

/// The engine's start of each point that has one, said once where points share it.
std::string startups_block(const RunReport& report, const std::vector<std::string>& labels,
                           std::size_t width) {
  constexpr std::size_t kMostBlocks = 3;
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
  for (std::size_t i = 0; i < std::min(blocks.size(), kMostBlocks); ++i) {
    const auto& [text, points] = blocks[i];
    if (blocks.size() > 1) out += paragraph(fmt::format("\n{}:", fmt::join(points, ", ")), width);
    out += text;
  }
  if (blocks.size() > kMostBlocks) {
    out += fmt::format("and {} more starts: see result.json\n", blocks.size() - kMostBlocks);
  }
  return out;
}

}  // namespace

std::string run_summary(const RunReport& report, const ResultsFolder* written, std::size_t width) {
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
      out += "\n" + points_table(report, width) + "\n" + static_verdict(report, labels, width);
      out += bounds_block(report, width);
      out += intervals_block(report, width);
      out += allocator_block(report, labels, width);
    }
    out += startups_block(report, labels, width);
    // The same note of many points is said once.
    std::vector<std::pair<std::string, std::vector<std::string>>> notes;
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::string& note : serves ? report.serves[i].notes : report.results[i].notes) {
        const auto found = std::find_if(notes.begin(), notes.end(),
                                        [&](const auto& entry) { return entry.first == note; });
        if (found == notes.end())
          notes.push_back({note, {labels[i]}});
        else
          found->second.push_back(labels[i]);
      }
    }
    for (const auto& [note, points] : notes) {
      const std::string who = points.size() == all.size() ? ""
                              : points.size() > 3 ? fmt::format("{} points: ", points.size())
                                                  : fmt::format("{}: ", fmt::join(points, ", "));
      out += paragraph(fmt::format("note: {}{}", who, note), width, 6);
    }
    out += published_block(report, labels, width);
  }
  if (report.replay) out += "\n" + replay_block(*report.replay, report.skipped, width);
  out += notes_block(scenario.notes, width) + notes_block(report.notes, width);
  return out + files_block(written, width);
}

std::string replay_summary(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                           const ResultsFolder* written, std::size_t width) {
  return replay_block(replay, skipped, width) + files_block(written, width);
}

std::string aggregate_summary(const std::vector<ReplayResult>& replays,
                              const ResultsFolder* written, std::size_t width) {
  return paragraph(
             fmt::format("Means over {} traces, each counting once; the interval is Student's "
                         "of the mean error.",
                         replays.size()),
             width) +
         aggregate_table(aggregate(replays), width) + files_block(written, width);
}

}  // namespace kvsim
