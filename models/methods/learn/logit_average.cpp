#include "models/methods/learn/logit_average.hpp"

#include <algorithm>
#include <cmath>

#include "models/math/log_add.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

const double kLogFp16Tiny = std::log(6.103515625e-05);  // 2^-14, added by the released code

}  // namespace

LogitAverage::LogitAverage(const LogitAverageSettings& settings, std::int32_t group,
                           std::int32_t tokens)
    : settings_{settings},
      group_{group},
      log_keep_{std::log(settings.keep)},
      log_take_{std::log1p(-settings.keep)},
      log_group_{std::log(group)},
      age_(index(tokens), 0) {
  KVSIM_CHECK(settings.window >= 1 && settings.keep >= 0 && settings.keep < 1,
              "window {}, factor {}", settings.window, settings.keep);
  if (settings_.rows) {
    rows_.resize(index(tokens));
    return;
  }
  log_average_.resize(index(tokens), kLogOfZero);
  log_corrections_.push_back(0.0);
  constexpr double kRounding = 1e-17;
  for (double power = settings_.keep; power >= kRounding; power *= settings_.keep) {
    log_corrections_.push_back(-std::log1p(-power));
  }
}

std::int64_t LogitAverage::first_row(std::int64_t prompt) const {
  return std::max<std::int64_t>(prompt - settings_.prompt_rows(), 0);
}

void LogitAverage::Rows::resum() {
  peak = *std::max_element(log_samples.begin(), log_samples.end());
  sum = 0;
  if (peak == kLogOfZero) return;
  for (const double x : log_samples) sum += std::exp(x - peak);
  max = sum;
}

void LogitAverage::take(std::int32_t id, double log_sample, std::int64_t t) {
  ++age_[index(id)];
  if (settings_.rows) {
    take_row(rows_[index(id)], log_sample, t);
    return;
  }
  double& average = log_average_[index(id)];
  average = log_add(log_keep_ + average, log_take_ + log_sample);
}

void LogitAverage::take_row(Rows& rows, double log_sample, std::int64_t t) {
  if (rows.log_samples.empty()) {
    if (!spare_.empty()) {
      rows.log_samples = std::move(spare_.back());
      spare_.pop_back();
    }
    rows.log_samples.assign(index(settings_.window), kLogOfZero);
    rows.peak = kLogOfZero;
  }
  double& at = rows.log_samples[static_cast<std::size_t>(t % settings_.window)];
  const double gone = at;
  at = log_sample;
  // A sample further above the peak would overflow the sum.
  constexpr double kMaxAbove = 300;
  if (rows.peak == kLogOfZero || log_sample - rows.peak > kMaxAbove) {
    rows.resum();
    return;
  }
  rows.sum += std::exp(log_sample - rows.peak) - std::exp(gone - rows.peak);
  rows.max = std::max(rows.max, rows.sum);
  // A sum far below its former value is dominated by the rounding errors of subtracted terms.
  constexpr double kCancelled = 1e-3;
  if (rows.sum < kCancelled * rows.max) rows.resum();
}

void LogitAverage::learn_row(const PromptScores::Row& row) {
  if (row.g == 0) {
    log_sample_.assign(row.logits.begin(), row.logits.end());
  } else {
    for (std::size_t i = 0; i < row.logits.size(); ++i) {
      log_sample_[i] = log_add(log_sample_[i], row.logits[i]);
    }
  }
  if (row.g + 1 < group_) return;
  for (std::size_t i = 0; i < log_sample_.size(); ++i) {
    take(static_cast<std::int32_t>(i), log_sample_[i] - log_group_, row.t);
  }
}

void LogitAverage::learn_prompt(const PromptScores& scores, std::size_t head) {
  scores.each_row(first_row(scores.prompt()), [&](const PromptScores::Row& row) {
    if (row.head == head) learn_row(row);
  });
}

void LogitAverage::observe(const HeadStep& step, std::int32_t newest) {
  const std::size_t n = step.attention.entries();
  KVSIM_CHECK(step.bias.empty() || step.bias.size() == n, "{} biases, {} entries", step.bias.size(),
              n);
  // Uses logits, because probabilities of entries far below the highest are 0.
  log_sample_.assign(n, kLogOfZero);
  for (std::int32_t g = 0; g < group_; ++g) {
    const auto logits = step.attention.logits(g);
    for (std::size_t i = 0; i < n; ++i) log_sample_[i] = log_add(log_sample_[i], logits[i]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double bias = step.bias.empty() ? 0.0 : step.bias[i];
    take(step.entries.id(static_cast<std::int32_t>(i)), log_sample_[i] - log_group_ - bias, newest);
  }
  if (settings_.rows && newest % settings_.window == 0) drop_rows_of_gone(step.entries);
}

void LogitAverage::drop_rows_of_gone(const EntryTable& entries) {
  for (std::size_t id = 0; id < rows_.size(); ++id) {
    auto& samples = rows_[id].log_samples;
    if (samples.empty() || entries.slot_of(static_cast<std::int32_t>(id)) >= 0) continue;
    spare_.push_back(std::move(samples));
    samples = {};
  }
}

double LogitAverage::log_correction(std::int32_t id) const {
  const auto age = static_cast<std::size_t>(age_[index(id)]);
  return age < log_corrections_.size() ? log_corrections_[age] : 0.0;
}

std::int32_t LogitAverage::rows_averaged(std::int32_t id) const {
  return std::clamp(age_[index(id)], 1, settings_.window);
}

double LogitAverage::log_mean(std::int32_t id) const {
  if (!settings_.rows) return log_average_[index(id)] + log_correction(id);
  const Rows& rows = rows_[index(id)];
  const double log_sum = rows.log_samples.empty() ? kLogOfZero : rows.peak + std::log(rows.sum);
  return log_add(log_sum - std::log(rows_averaged(id)), kLogFp16Tiny);
}

void LogitAverage::merge(std::int32_t into, std::span<const std::int32_t> from,
                         std::span<const double> votes, double log_score) {
  KVSIM_CHECK(votes.size() == from.size() + 1, "{} votes for {} entries", votes.size(),
              from.size() + 1);
  if (!settings_.rows) {
    log_average_[index(into)] = log_score - log_correction(into);
    return;
  }
  // Vote-weighted mean over the rows of `into`, then scaled to the score. The sum of the votes is a
  // common factor of all rows, so the scaling cancels it.
  auto& samples = rows_[index(into)].log_samples;
  for (double& x : samples) x += std::log(votes[0]);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto& other = rows_[index(from[i])].log_samples;
    for (std::size_t r = 0; r < samples.size() && r < other.size(); ++r) {
      if (samples[r] > kLogOfZero) {
        samples[r] = log_add(samples[r], std::log(votes[i + 1]) + other[r]);
      }
    }
  }
  rows_[index(into)].resum();
  if (!(rows_[index(into)].sum > 0)) return;
  // ln of (e^log_score - tiny) times the number of rows: the required sum of the rows.
  const double rest = -std::expm1(kLogFp16Tiny - log_score);
  const double log_wanted =
      rest > 0 ? log_score + std::log(rest * rows_averaged(into)) : kLogOfZero;
  const double by = log_wanted - rows_[index(into)].peak - std::log(rows_[index(into)].sum);
  for (double& x : samples) x += by;
  rows_[index(into)].resum();
}

}  // namespace kvsim
