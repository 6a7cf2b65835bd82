#include "validation/served/served_lengths.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>

#include "traces/requests/formats/length_pairs.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/random_stream.hpp"

namespace kvsim {

const SetRows& served_set_rows(const std::filesystem::path& path, const ServedLengths& set) {
  static std::mutex mutex;
  static std::map<std::string, SetRows> known;
  const std::scoped_lock lock{mutex};
  const auto [entry, is_new] = known.try_emplace(path.string());
  if (!is_new) return entry->second;
  const auto bound = [&](const char* key, std::int64_t otherwise) {
    const auto found = set.bounds.find(key);
    return found == set.bounds.end() ? otherwise : found->second;
  };
  constexpr std::int64_t kNone = 1 << 24;
  SetRows& rows = entry->second;
  for (const LengthPairs::Pair& row : read_length_pairs(path).rows) {
    if (row.prompt < bound("min_prompt_tokens", 1) ||
        row.prompt > bound("max_prompt_tokens", kNone) ||
        row.output < bound("min_output_tokens", 0) ||
        row.prompt + row.output > bound("max_total_tokens", kNone)) {
      continue;
    }
    rows.outputs.push_back(row.output);
    rows.prompt_mean += row.prompt;
  }
  if (!rows.outputs.empty()) rows.prompt_mean /= static_cast<double>(rows.outputs.size());
  return rows;
}

namespace {

/// Returns the point in [low, high] at which the increasing function `of` reaches `value`; `high`
/// if it does not.
template <class Function>
double where(const Function& of, double value, double low, double high) {
  if (of(high) <= value) return high;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (of(middle) < value ? low : high) = middle;
  }
  return high;
}

}  // namespace

double output_factor(const std::vector<std::int32_t>& outputs, double stated, std::int64_t cap) {
  constexpr double kMax = 1000;
  const auto mean = [&](double factor) {
    double sum = 0;
    for (const std::int32_t n : outputs) {
      const double scaled = factor * n;
      sum += cap > 0 ? std::min(scaled, static_cast<double>(cap)) : scaled;
    }
    return sum / static_cast<double>(outputs.size());
  };
  return where(mean, stated, 0, kMax);
}

double mean_before_cap(double stated, double p99_per_mean, std::int64_t cap) {
  constexpr double kMaxRatio = 20;
  const double sigma = lognormal_of(1, p99_per_mean).sigma;
  const auto longest = static_cast<double>(cap);
  const auto cut = [&](double mean) {
    const double d = (std::log(longest / mean) + 0.5 * sigma * sigma) / sigma;
    return mean * normal_cdf(d - sigma) + longest * normal_cdf(-d);
  };
  return where(cut, stated, stated, kMaxRatio * stated);
}

nlohmann::ordered_json stopping_outputs(double tokens) {
  constexpr int kParts = 10;
  const double share = stopping_share();
  const double longest = tokens / (1 - share / 2);
  nlohmann::ordered_json values = nlohmann::ordered_json::array();
  nlohmann::ordered_json weights = nlohmann::ordered_json::array();
  for (int part = 0; part < kParts; ++part) {
    const double middle = longest * (part + 0.5) / kParts;
    values.push_back(std::max<std::int64_t>(1, std::llround(middle)));
    weights.push_back(share / kParts);
  }
  values.push_back(std::llround(longest));
  weights.push_back(1 - share);
  return {{"kind", "empirical"}, {"values", values}, {"weights", weights}};
}

}  // namespace kvsim
