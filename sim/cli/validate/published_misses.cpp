#include "sim/cli/validate/published_misses.hpp"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "validation/published/published_reasons.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kNotKnown = "no reason known";

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : std::string{};
}

/// "SL-017 -33 %".
std::string named(const ScoredRow& row) {
  return fmt::format("{} {:+.0f} %", row.row.id, 100 * *row.error());
}

struct Missed {
  std::string document, reason;
  std::vector<const ScoredRow*> rows;
};

/// Misses grouped by reason, in the order of their first rows; misses without a reason come last.
std::vector<Missed> missed_of(const PublishedScore& score) {
  std::vector<Missed> with, without;
  std::map<std::pair<const RowReason*, std::string>, std::size_t> places;
  for (const ScoredRow& row : score.rows) {
    if (!misses_badly(row)) continue;
    const RowReason* reason = find_reason(row);
    auto& list = reason != nullptr ? with : without;
    const auto [place, first] =
        places.try_emplace({reason, reason != nullptr ? std::string{} : row.document}, list.size());
    if (first) {
      list.push_back({.document = row.document,
                      .reason = reason != nullptr ? reason->reason : std::string{kNotKnown},
                      .rows = {}});
    }
    list[place->second].rows.push_back(&row);
  }
  with.insert(with.end(), without.begin(), without.end());
  return with;
}

}  // namespace

std::string stacks_text(const PublishedScore& score, std::size_t width) {
  if (score.stacks.empty()) return {};
  Table table{{{"stack", Table::Align::kLeft},
               {"of", Table::Align::kLeft},
               {"rows"},
               {"MAPE", Table::Align::kRight, "%"},
               {"median", Table::Align::kRight, "%"},
               {"bias", Table::Align::kRight, "%"},
               {"held out"},
               {"median", Table::Align::kRight, "%"}}};
  std::string why;
  for (const PublishedGroup& group : score.stacks) {
    table.add_row({group.stack, group.metric, fmt::format("{}", group.n), percent(group.mape),
                   percent(group.median_ape), fmt::format("{:+.1f}", 100 * *group.bias),
                   group.n_held_out == 0 ? std::string{} : fmt::format("{}", group.n_held_out),
                   percent(group.median_ape_held_out)});
    if (*group.median_ape <= kBadMedian) continue;
    const StackReason* reason = find_stack_reason(group.stack);
    why += "  " +
           paragraph(fmt::format("{}: {}", group.stack,
                                 reason != nullptr ? std::string_view{reason->reason} : kNotKnown),
                     width - 2, 4);
  }
  std::string out = "\n" + table.str(width);
  if (!why.empty()) {
    out += fmt::format("\nmedian above {:.0f} %, and why\n{}", 100 * kBadMedian, why);
  }
  return out;
}

std::string misses_text(const PublishedScore& score, std::size_t width) {
  const auto missed = missed_of(score);
  if (missed.empty()) return {};
  std::size_t n = 0;
  std::string out;
  for (const Missed& some : missed) {
    n += some.rows.size();
    std::string rows;
    for (const ScoredRow* row : some.rows) rows += (rows.empty() ? "" : ", ") + named(*row);
    out += "  " + paragraph(some.document, width - 2, 2);
    out += "    " + paragraph(rows, width - 4, 4);
    out += "    " + paragraph(some.reason, width - 4, 4);
  }
  return fmt::format("\noff by more than {:.0f} %: {} figures, and why\n", 100 * kBadMiss, n) + out;
}

}  // namespace kvsim
