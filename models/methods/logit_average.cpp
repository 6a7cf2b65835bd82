#include "models/methods/logit_average.hpp"

#include <algorithm>
#include <cmath>

#include "models/math/moving_average.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kFloor = 1e-300;
constexpr double kMostLift = 300;
constexpr double kFp16Tiny = 6.103515625e-05;

}  // namespace

LogitAverage::LogitAverage(const LogitAverageSettings& settings, std::int32_t group,
                           std::int32_t tokens)
    : settings_{settings},
      group_{group},
      average_(index(tokens), 0.0),
      age_(index(tokens), 0),
      factors_(index(group)) {
  KVSIM_CHECK(settings.window >= 1 && settings.keep >= 0 && settings.keep < 1,
              "window {}, factor {}", settings.window, settings.keep);
  if (settings_.rows) rows_.resize(index(tokens));
  correction_.push_back(1.0);
  double power = 1.0;
  while (!settings_.rows) {
    power *= settings_.keep;
    if (power < 1e-17) break;
    correction_.push_back(1.0 / (1.0 - power));
  }
}

std::int64_t LogitAverage::first_row(std::int64_t prompt) const {
  return std::max<std::int64_t>(prompt - settings_.prompt_rows(), 0);
}

void LogitAverage::lift(double log_scale) {
  if (started_ && log_scale - reference_ <= kMostLift) return;
  if (started_) {
    const double by = std::exp(reference_ - log_scale);
    for (double& x : average_) x *= by;
    for (auto& row : rows_) {
      for (double& x : row) x *= by;
    }
  }
  reference_ = log_scale;
  started_ = true;
}

void LogitAverage::take(std::int32_t id, double sample, std::int64_t t) {
  double& average = average_[index(id)];
  ++age_[index(id)];
  if (!settings_.rows) {
    average = moving_average(average, sample, settings_.keep);
    return;
  }
  auto& row = rows_[index(id)];
  if (row.empty()) {
    if (!spare_.empty()) {
      row = std::move(spare_.back());
      spare_.pop_back();
    }
    row.assign(index(settings_.window), 0.0);
  }
  double& at = row[static_cast<std::size_t>(t % settings_.window)];
  const double gone = at;
  at = sample;
  average += sample - gone;
  constexpr double kCancelled = 1e-3;  // a sum so much smaller than what left it is summed anew
  if (average < kCancelled * gone) average = resummed(id);
}

double LogitAverage::resummed(std::int32_t id) const {
  double sum = 0;
  for (const double x : rows_[index(id)]) sum += x;
  return sum;
}

void LogitAverage::learn_row(const PromptScores::Row& row) {
  lift(*std::max_element(row.logits.begin(), row.logits.end()));
  if (row.g == 0) sample_.assign(row.logits.size(), 0.0);
  for (std::size_t i = 0; i < row.logits.size(); ++i) {
    sample_[i] += std::exp(row.logits[i] - reference_);
  }
  if (row.g + 1 < group_) return;
  for (std::size_t i = 0; i < sample_.size(); ++i) {
    take(static_cast<std::int32_t>(i), sample_[i] / group_, row.t);
  }
}

void LogitAverage::learn_prompt(const PromptScores& scores, std::size_t head) {
  scores.each_row(first_row(scores.prompt()), [&](const PromptScores::Row& row) {
    if (row.head == head) learn_row(row);
  });
}

void LogitAverage::observe(const HeadStep& step, std::int32_t newest) {
  // e^logit of an entry is its probability times the row's sum: no exponential an entry.
  const std::size_t n = step.attention.entries();
  for (std::int32_t g = 0; g < group_; ++g) lift(step.attention.log_sum(g));
  for (std::int32_t g = 0; g < group_; ++g) {
    factors_[index(g)] = std::exp(step.attention.log_sum(g) - reference_) / group_;
  }
  sample_.assign(n, 0.0);
  for (std::int32_t g = 0; g < group_; ++g) {
    const auto p = step.attention.probabilities(g);
    for (std::size_t i = 0; i < n; ++i) sample_[i] += p[i] * factors_[index(g)];
  }
  for (std::size_t i = 0; i < step.bias.size(); ++i) {
    if (step.bias[i] != 0) sample_[i] *= std::exp(-step.bias[i]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    take(step.entries.id(static_cast<std::int32_t>(i)), sample_[i], newest);
  }
  if (settings_.rows && newest % settings_.window == 0) drop_rows_of_gone(step.entries);
}

void LogitAverage::drop_rows_of_gone(const EntryTable& entries) {
  for (std::size_t id = 0; id < rows_.size(); ++id) {
    if (rows_[id].empty() || entries.slot_of(static_cast<std::int32_t>(id)) >= 0) continue;
    spare_.push_back(std::move(rows_[id]));
    rows_[id] = {};
  }
}

double LogitAverage::relative(std::int32_t id) const {
  const auto at = index(id);
  if (settings_.rows) {
    const std::int32_t samples = std::min(std::max(age_[at], 1), settings_.window);
    return std::max(average_[at] / samples + kFp16Tiny * std::exp(-reference_), kFloor);
  }
  const auto age = static_cast<std::size_t>(age_[at]);
  return std::max(average_[at] * (age < correction_.size() ? correction_[age] : 1.0), kFloor);
}

double LogitAverage::log_mean(std::int32_t id) const { return reference_ + std::log(relative(id)); }

void LogitAverage::merge(std::int32_t into, std::span<const std::int32_t> from,
                         std::span<const double> votes, double log_score) {
  KVSIM_CHECK(votes.size() == from.size() + 1, "{} votes for {} entries", votes.size(),
              from.size() + 1);
  const auto at = index(into);
  if (!settings_.rows) {
    const double wanted = std::exp(log_score - reference_);
    const auto age = static_cast<std::size_t>(age_[at]);
    average_[at] = wanted / (age < correction_.size() ? correction_[age] : 1.0);
    return;
  }
  // Vote-weighted mean of the rows that `into` has, then brought to the score.
  auto& row = rows_[at];
  double all = votes[0];
  for (double& x : row) x *= votes[0];
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto& other = rows_[index(from[i])];
    for (std::size_t r = 0; r < row.size() && r < other.size(); ++r) {
      if (row[r] > 0) row[r] += votes[i + 1] * other[r];
    }
    all += votes[i + 1];
  }
  double sum = 0;
  for (double& x : row) {
    x /= all;
    sum += x;
  }
  const std::int32_t samples = std::min(std::max(age_[at], 1), settings_.window);
  const double wanted =
      std::max(std::exp(log_score - reference_) - kFp16Tiny * std::exp(-reference_), 0.0) * samples;
  for (double& x : row) x = sum > 0 ? x * (wanted / sum) : x;
  average_[at] = sum > 0 ? wanted : 0.0;
}

}  // namespace kvsim
