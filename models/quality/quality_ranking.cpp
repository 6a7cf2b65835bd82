#include "models/quality/quality_ranking.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMinRanked = 3;
constexpr double kSameBudget = 0.01;  // of the prompt

/// Returns ranks from 1; ties share their mean rank.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    const double rank = 0.5 * static_cast<double>(i + 1 + end);
    for (; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

std::optional<double> rank_correlation(std::span<const double> a, std::span<const double> b) {
  KVSIM_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  if (a.size() < kMinRanked) return std::nullopt;
  const std::vector<double> x = ranks_of(a);
  const std::vector<double> y = ranks_of(b);
  const double mean = 0.5 * (static_cast<double>(a.size()) + 1.0);
  double xy = 0.0;
  double xx = 0.0;
  double yy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  if (xx <= 0.0 || yy <= 0.0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

ReplayRanking rank_replays(std::vector<ReplayError> errors, std::span<const QualityRow> rows) {
  ReplayRanking out;
  out.at_answers = std::all_of(errors.begin(), errors.end(), [](const ReplayError& error) {
    return error.answer_error.has_value();
  });
  const auto ranked = [&out](const ReplayError& error) {
    return out.at_answers ? *error.answer_error : error.rel_error;
  };
  std::vector<double> replayed;
  std::vector<double> lost;
  for (ReplayError& error : errors) {
    if (!error.reason.empty()) continue;
    double sum = 0.0;
    for (const QualityRow& row : rows) {
      const auto retained = row.retained();
      if (!retained || row.method != error.method) continue;
      if (error.kept && (!row.budget || row.budget_unit != "fraction" ||
                         std::abs(*row.budget - *error.kept) > kSameBudget)) {
        continue;
      }
      sum += *retained;
      ++error.rows;
    }
    if (error.rows == 0) continue;
    error.retained = sum / static_cast<double>(error.rows);
    replayed.push_back(ranked(error));
    lost.push_back(1.0 - *error.retained);
  }
  out.measured = replayed.size();
  out.correlation = rank_correlation(replayed, lost);
  std::stable_sort(errors.begin(), errors.end(), [&](const ReplayError& a, const ReplayError& b) {
    return ranked(a) < ranked(b);
  });
  out.errors = std::move(errors);
  return out;
}

std::vector<ReplayError> read_replay_errors(const fs::path& path) {
  std::error_code status;
  const Field root = Field::read_file(fs::is_directory(path, status) ? path / "result.json" : path);
  static const std::vector<std::string> schemas{"kvsim.replay/1"};
  (void)root.at("schema").choice(schemas);
  std::vector<ReplayError> out;
  constexpr double kMax = 1e300;
  for (const Field& method : root.at("methods").items()) {
    const auto error = method.find("rel_error_mean");
    if (!error) continue;
    const auto of_answer = method.find("answer_error_mean");
    ReplayError one{.method = method.at("name").string(), .rel_error = error->number(0, kMax)};
    if (of_answer && of_answer->is_number()) one.answer_error = of_answer->number(0, kMax);
    if (const auto budget = method.find("budget"); budget && budget->is_number()) {
      const double value = budget->number(1e-12, kMax);
      const auto prompt = method.find("prompt_tokens");
      if (value <= 1.0) {
        one.kept = value;
      } else {
        one.entries = value;
        if (prompt) one.kept = std::min(1.0, value / prompt->number(1, kMax));
        if (!prompt) {
          one.reason = fmt::format(
              "the result does not state the number of tokens of which {:g} entries are kept",
              value);
        }
      }
    }
    out.push_back(std::move(one));
  }
  if (out.empty()) root.at("methods").fail("expected a method with a \"rel_error_mean\", got none");
  return out;
}

}  // namespace kvsim
