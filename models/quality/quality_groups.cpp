#include "models/quality/quality_groups.hpp"

#include <cmath>
#include <map>
#include <tuple>

namespace kvsim {
namespace {

void summarise_group(QualityGroup& group, std::span<const QualityRow> rows) {
  double sum = 0.0;
  double squares = 0.0;
  double variance = 0.0;
  double n = 0.0;
  bool all_errors = true;
  for (const std::size_t i : group.rows) {
    const auto value = rows[i].retained();
    if (!value) continue;
    ++n;
    sum += *value;
    squares += *value * *value;
    const auto error = rows[i].retained_stderr();
    all_errors = all_errors && error;
    variance += error.value_or(0.0) * error.value_or(0.0);
  }
  if (n == 0.0) return;
  group.retained = sum / n;
  if (all_errors) {
    group.standard_error = std::sqrt(variance) / n;
  } else if (n >= 2.0) {
    const double spread = std::max(0.0, squares - sum * sum / n) / (n - 1.0);
    group.standard_error = std::sqrt(spread / n);
  }
}

}  // namespace

std::vector<QualityGroup> group_quality(std::span<const QualityRow> rows) {
  std::vector<QualityGroup> groups;
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::optional<double>,
                      std::string, std::optional<double>, std::string, std::optional<double>>,
           std::size_t>
      places;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const QualityRow& row = rows[i];
    const auto [at, is_new] =
        places.try_emplace({row.method, row.model, row.task, row.harness(), row.budget,
                            row.budget_unit, row.bits, row.when, row.kept_bytes()},
                           groups.size());
    if (is_new) groups.push_back({.rows = {}, .first = &row, .kept_bytes = row.kept_bytes()});
    groups[at->second].rows.push_back(i);
  }
  for (QualityGroup& group : groups) summarise_group(group, rows);
  return groups;
}

}  // namespace kvsim
