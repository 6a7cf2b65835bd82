#include "sim/report/batch/static_summary.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/point_table.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/text_style.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gib(Bytes bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes.count()) / kGiB);
}

/// Shares of a step's time by bound, in %.
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

/// "0.41 to 0.62"; "-" if there is no range.
template <class Ends>
std::string range(const std::optional<Ends>& ends, std::string_view unit) {
  const MetricEnds of{ends};
  return range_cell(of.low.number(), of.high.number(), unit);
}
/// Tokens per sequence at which memory runs out, for the largest and the smallest memory use.
std::string oom_range(const StaticResult& r) {
  const RunIntervals& at = *r.intervals;
  if (!at.oom_low) return "-";
  return fmt::format("{} to {}", with_commas(*at.oom_low),
                     at.oom_high ? with_commas(*at.oom_high) : "none");
}
/// "40 (37 to 44)"; "8 or more" if the search ended there, "-" if there was no search.
std::string batch_range(const std::optional<FitRange>& fit) {
  if (!fit) return "-";
  const auto count = [](std::int64_t n) {
    return fmt::format("{}{}", with_commas(n), n == FitRange::kMaxBatch ? "+" : "");
  };
  if (!fit->batch_low || !fit->batch_high) return count(fit->batch);
  return fmt::format("{} ({} to {})", count(fit->batch), count(*fit->batch_low),
                     count(*fit->batch_high));
}
std::string gpu_range(const std::optional<FitRange>& fit) {
  if (!fit) return "-";
  const auto count = [](const std::optional<std::int32_t>& n) {
    return n ? fmt::format("{}", *n) : fmt::format(">{}", FitRange::kMaxGpus);
  };
  const bool one_answer = fit->gpus == fit->gpus_low && fit->gpus == fit->gpus_high;
  if (one_answer || !fit->batch_low) return count(fit->gpus);
  return fmt::format("{} ({} to {})", count(fit->gpus), count(fit->gpus_low),
                     count(fit->gpus_high));
}

/// "in prefill", "at decode step 34,171".
std::string oom_moment(const OomEvent& oom) {
  // The model loads; the blocks of its pool do not suffice.
  if (oom.phase == "load" && oom.tokens > 0) {
    return fmt::format("in the pool, which has no block for token {} of each sequence",
                       with_commas(oom.tokens));
  }
  if (oom.phase == "load") return "on loading the model";
  if (oom.phase == "decode") return fmt::format("at decode step {}", with_commas(oom.step));
  return "in " + oom.phase;
}

std::string brief_oom_sentence(std::string_view label, const OomEvent& oom) {
  return oom.phase == "decode"
             ? fmt::format("{}: out of memory at {} tokens", label, with_commas(oom.tokens))
             : fmt::format("{}: out of memory {}", label, oom_moment(oom));
}

}  // namespace

std::string oom_sentence(std::string_view label, const OomEvent& oom) {
  std::vector<std::pair<Bytes, std::string>> owners;
  for (const auto& [name, bytes] : oom.owners) {
    if (bytes > Bytes{0}) owners.emplace_back(bytes, name);
  }
  std::stable_sort(owners.begin(), owners.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> held;
  held.reserve(owners.size());
  for (const auto& [bytes, name] : owners) held.push_back(name + " " + to_text(bytes));
  return fmt::format("{}: out of memory {} ({} tokens): requested {}{}, {} free, short by {}{}{}",
                     label, oom_moment(oom), with_commas(oom.tokens), to_text(oom.requested),
                     oom.what.empty() ? "" : " for " + oom.what, to_text(oom.free),
                     to_text(oom.requested - oom.free), held.empty() ? "" : "; ",
                     fmt::join(held, ", "));
}

namespace {

/// "usable HBM 79.1 GiB" if all points have the same, else "usable HBM 79.1 to 140.2 GiB".
std::string usable_words(const RunReport& report) {
  const auto [low, high] =
      std::minmax_element(report.results.begin(), report.results.end(),
                          [](const auto& a, const auto& b) { return a.usable_hbm < b.usable_hbm; });
  return "usable HBM " + gib(low->usable_hbm) +
         (low->usable_hbm < high->usable_hbm ? " to " + gib(high->usable_hbm) : "") + " GiB";
}

/// Points that run out of memory, earliest failure first.
std::vector<std::size_t> failed_points(const RunReport& report) {
  std::vector<std::size_t> failed;
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    if (report.results[i].oom) failed.push_back(i);
  }
  std::stable_sort(failed.begin(), failed.end(), [&](std::size_t a, std::size_t b) {
    const auto when = [&](std::size_t i) {
      return std::pair{report.results[i].oom->tokens, report.results[i].oom->step};
    };
    return when(a) < when(b);
  });
  return failed;
}

/// "10 of 12 points fit (usable HBM 79.1 GiB).", coloured by the result.
std::string fit_line(const RunReport& report, std::size_t n_failed, const TextStyle& style) {
  const std::size_t n = report.results.size();
  if (n == 0) return "";
  const std::string usable = usable_words(report);
  if (n_failed == 0) {
    const std::string fits = n == 1 ? "It fits" : fmt::format("All {} points fit", n);
    return fmt::format("{} ({}).\n", toned(Tone::kGood, fits, style), usable);
  }
  const std::string fit = fmt::format("{} of {} point{} fit{}", n - n_failed, n, n == 1 ? "" : "s",
                                      n - n_failed == 1 ? "s" : "");
  return fmt::format("{} ({}).\n", toned(Tone::kBad, fit, style), usable);
}

/// A line for each of the first `max` points of `failed`; `sentence` makes its text.
template <class Sentence>
std::string failed_lines(const RunReport& report, const std::vector<std::string>& labels,
                         const std::vector<std::size_t>& failed, std::size_t max, std::size_t width,
                         Sentence sentence) {
  std::string out;
  for (std::size_t i = 0; i < std::min(failed.size(), max); ++i) {
    const std::string label = report.results.size() == 1 ? "it" : labels[failed[i]];
    out += paragraph("- " + sentence(label, *report.results[failed[i]].oom), width, 2);
  }
  if (failed.size() > max) {
    out += fmt::format("- and {} more: see points.csv\n", failed.size() - max);
  }
  return out;
}

}  // namespace

std::string static_verdict(const RunReport& report, const std::vector<std::string>& labels,
                           const TextStyle& style) {
  constexpr std::size_t kMaxSentences = 8;
  const std::vector<std::size_t> failed = failed_points(report);
  return fit_line(report, failed.size(), style) +
         failed_lines(report, labels, failed, kMaxSentences, style.width, oom_sentence);
}

std::string brief_verdict(const RunReport& report, const std::vector<std::string>& labels,
                          const TextStyle& style) {
  constexpr std::size_t kMaxSentences = 3;
  const std::vector<std::size_t> failed = failed_points(report);
  const bool all_listed = !failed.empty() && failed.size() <= kMaxSentences;
  return (all_listed ? "" : fit_line(report, failed.size(), style)) +
         failed_lines(report, labels, failed, kMaxSentences, style.width, brief_oom_sentence);
}

bool has_numbered_groups(const RunReport& report) {
  return !report.scenario->published.empty() && !report.results.empty() && !report.replay &&
         report.results.size() <= kMaxShownPoints;
}

std::string points_table(const RunReport& report, const TextStyle& style) {
  std::vector<PointColumn> columns = summary_columns(
      static_metrics(),
      [&](std::size_t point) {
        return StaticPoint{report.scenario->points[point].spec, report.results[point]};
      },
      style.verbose);
  sort_columns(columns);
  columns.push_back({0, "OOM at", "tokens", [&](std::size_t point) -> std::string {
                       const auto& oom = report.results[point].oom;
                       if (!oom) return "-";
                       return oom->phase == "decode" ? with_commas(oom->tokens) : oom->phase;
                     }});
  std::vector<PointGroup> groups = point_groups(*report.scenario, surrounding_keys());
  if (!style.verbose && has_numbered_groups(report)) number_headings(groups);
  const std::string others = style.verbose ? std::string{} : keep_first_groups(groups);
  // The first heading is on the units line if it fits there.
  const std::string first = groups.empty() ? "" : clean_text(groups.front().heading);
  std::string text =
      point_table({.header = "point", .unit = first}, columns, groups).str(style.width);
  const bool joined = text.find("\n" + first + " ") == text.find('\n');
  if (!joined) {
    text = point_table({.header = "point"}, columns, groups).str(style.width);
  }
  std::vector<LineTones> tones(2, {.line = Tone::kHeading});  // names and units
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].heading.empty() && !(joined && g == 0)) {
      tones.push_back({.line = Tone::kHeading});
    }
    for (const std::size_t point : groups[g].points) {
      tones.push_back({.last_word = report.results[point].oom ? Tone::kBad : Tone::kPlain});
    }
  }
  return toned_lines(text, tones, style) + others;
}

std::string bounds_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMaxPoints = 20;
  const auto explained = [](const StaticResult& r) { return !r.explained.empty(); };
  if (report.results.size() > kMaxPoints ||
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

std::string intervals_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMaxPoints = 20;
  const auto has_one = [](const StaticResult& r) {
    return r.intervals && (r.intervals->prefill || r.intervals->peak || r.intervals->oom_low);
  };
  if (report.results.size() > kMaxPoints ||
      std::none_of(report.results.begin(), report.results.end(), has_one)) {
    return "";
  }
  const auto result_of = [&](std::size_t point) -> const StaticResult& {
    return report.results[point];
  };
  const auto has_intervals = [&](std::size_t point) {
    return result_of(point).intervals.has_value();
  };
  const std::vector<PointColumn> times{
      {1, "peak", "GiB", [&](auto p) { return range(result_of(p).intervals->peak, "GiB"); }},
      {1, "TTFT", "s", [&](auto p) { return range(result_of(p).intervals->prefill, "s"); }},
      {1, "step", "ms",
       [&](auto p) {  // the last decode step, as in the table of bounds
         const auto& steps = result_of(p).explained;
         const bool decodes = !steps.empty() && steps.back().step > 0;
         return range(decodes ? steps.back().interval : std::optional<Interval>{}, "ms");
       }}};
  const std::vector<PointColumn> sizes{
      {2, "OOM at", "tokens", [&](auto p) { return oom_range(result_of(p)); }},
      {2, "most", "batch", [&](auto p) { return batch_range(result_of(p).fit_range); }},
      {2, "fewest", "GPUs", [&](auto p) { return gpu_range(result_of(p).fit_range); }}};
  const std::vector<PointGroup> groups = point_groups(*report.scenario, surrounding_keys());
  const auto text_of = [&](const std::vector<PointColumn>& columns) {
    return "\n" +
           point_table({.header = "90 % interval"}, columns, groups, has_intervals).str(width);
  };
  std::vector<PointColumn> both = times;
  both.insert(both.end(), sizes.begin(), sizes.end());
  std::string out = text_of(both);
  const auto line_ends = [&](std::size_t from) {
    return std::min(out.find('\n', from), out.size());
  };
  bool fits = true;
  for (std::size_t from = 0; from < out.size(); from = line_ends(from) + 1) {
    fits = fits && display_width(out.substr(from, line_ends(from) - from)) <= width;
  }
  if (!fits) out = text_of(times) + text_of(sizes);
  std::vector<std::string> bases;
  for (const PointGroup& group : groups) {
    for (const std::size_t point : group.points) {
      if (!has_intervals(point)) continue;
      const RunIntervals& at = *result_of(point).intervals;
      for (const std::string& basis : {"times: " + at.time_basis, "memory: " + at.memory_basis}) {
        if (std::find(bases.begin(), bases.end(), basis) == bases.end()) bases.push_back(basis);
      }
    }
  }
  constexpr std::size_t kMaxBases = 4;
  for (std::size_t i = 0; i < std::min(bases.size(), kMaxBases); ++i) {
    out += paragraph("- " + bases[i], width, 2);
  }
  if (bases.size() > kMaxBases) {
    out += fmt::format("- and {} more: interval_basis in result.json\n", bases.size() - kMaxBases);
  }
  return out;
}

std::string allocator_block(const RunReport& report, const std::vector<std::string>& labels,
                            std::size_t width) {
  std::string out;
  const bool serves = !report.serves.empty();
  for (std::size_t i = 0; i < (serves ? report.serves.size() : report.results.size()); ++i) {
    const auto& simulated = serves ? report.serves[i].allocator : report.results[i].allocator;
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

}  // namespace kvsim
