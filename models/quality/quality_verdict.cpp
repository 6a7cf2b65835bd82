#include "models/quality/quality_verdict.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/names.hpp"

namespace kvsim {
namespace {

constexpr double kSlack = 1e-9;

std::string bare_model(std::string_view name) {
  std::string text = folded_name(name);
  if (text.starts_with("meta-")) text.erase(0, 5);
  for (const std::string_view end : {"-instruct", "-chat", "-it", "-hf"}) {
    if (text.ends_with(end)) text.erase(text.size() - end.size());
  }
  return text;
}

std::string basis_of(const MethodSaving& saving) {
  if (saving.rows == 0) {
    return fmt::format("{} rows, none of which states a size in bytes", saving.unsized_rows);
  }
  std::string text = fmt::format(
      "{} {} of {} ({})", saving.basis == SavingBasis::kMeasured ? "measured:" : "predicted from",
      saving.rows == 1 ? "1 row" : fmt::format("{} rows", saving.rows),
      fmt::join(saving.models, ", "), source_names(saving.harnesses));
  if (saving.nearest_context) {
    text += fmt::format("; nearest context {:.0f} tokens", *saving.nearest_context);
  }
  if (saving.unsized_rows > 0) {
    text += fmt::format("; {} rows without a size in bytes", saving.unsized_rows);
  }
  return text;
}

}  // namespace

std::string_view word_of(QualityVerdict::Answer answer) {
  static constexpr std::array<std::string_view, 4> kWords{"unknown", "holds", "may hold", "fails"};
  return kWords[static_cast<std::size_t>(answer)];
}

std::vector<QualityVerdict> judge_quality(std::span<const QualityRow> rows,
                                          const QualityModel& model, const PlannedMethod& planned,
                                          double max_loss) {
  using Answer = QualityVerdict::Answer;
  if (planned.method == "full") {
    return {{.answer = Answer::kHolds, .protocol = "", .basis = "the full cache is the reference"}};
  }
  SavingQuery query{.max_loss = max_loss, .methods = {planned.method}};
  if (planned.context > 0.0) query.context = planned.context;
  std::set<std::string> models;
  for (const QualityRow& row : rows) {
    if (bare_model(row.model) == bare_model(planned.model)) models.insert(folded_name(row.model));
  }
  query.models.assign(models.begin(), models.end());
  if (models.empty()) query.models.push_back(folded_name(planned.model));
  std::vector<QualityVerdict> out;
  for (const MethodSaving& saving : largest_savings(rows, model, query)) {
    QualityVerdict verdict{.protocol = saving.protocol, .basis = basis_of(saving)};
    // A format's bytes are taken from its rows, an eviction's from its budget.
    std::optional<double> kept = planned.kept_entries;
    if (!kept && !saving.points.empty()) kept = saving.points.back().kept;
    if (kept && !saving.points.empty()) {
      const double saved = 1.0 - *kept;
      const double largest = 1.0 - saving.points.back().kept;
      const auto within = [&](const std::optional<double>& bound) {
        return bound && saved <= *bound + kSlack;
      };
      verdict.answer = within(saving.certain)     ? Answer::kHolds
                       : within(saving.possible)  ? Answer::kMayHold
                       : saved > largest + kSlack ? Answer::kUnknown
                                                  : Answer::kFails;
    }
    out.push_back(std::move(verdict));
  }
  if (out.empty()) {
    out.push_back({.answer = Answer::kUnknown,
                   .protocol = "",
                   .basis = "no row of this method in the tables of scores"});
  }
  return out;
}

}  // namespace kvsim
