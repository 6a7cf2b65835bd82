#include "validation/residuals/fit_residuals.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array kPooledWeights{0.1, 0.25, 0.5, 1.0};  // documents
constexpr double kLeastRows = 20;
constexpr double kTail = 0.05;

/// Logarithms of one class by document.
using Documents = std::map<std::string, std::vector<double>>;

struct Weighted {
  double value = 0, weight = 0;
};

void add(std::vector<Weighted>& out, const Documents& documents, double total,
         const std::string& left_out) {
  double all = 0;
  const auto weight = [](const std::vector<double>& values) {
    return std::min(1.0, static_cast<double>(values.size()) / kLeastRows);
  };
  for (const auto& [name, values] : documents) all += name == left_out ? 0 : weight(values);
  if (all <= 0) return;
  for (const auto& [name, values] : documents) {
    if (name == left_out) continue;
    const double each =
        (total > 0 ? total / all : 1) * weight(values) / static_cast<double>(values.size());
    for (const double value : values) out.push_back({.value = value, .weight = each});
  }
}

double quantile(const std::vector<Weighted>& sorted, double share) {
  double all = 0;
  for (const Weighted& w : sorted) all += w.weight;
  // Each value is at the middle of its weight; between two middles in proportion.
  double before = 0;
  double previous_at = 0;
  double previous = sorted.front().value;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const double at = (before + sorted[i].weight / 2) / all;
    if (at >= share) {
      if (i == 0) return sorted[i].value;
      const double part = (share - previous_at) / (at - previous_at);
      return previous + part * (sorted[i].value - previous);
    }
    before += sorted[i].weight;
    previous_at = at;
    previous = sorted[i].value;
  }
  return sorted.back().value;
}

struct Ends {
  double low = 0, high = 0;
};
Ends ends_of(const Documents& own, const Documents& others, double pooled,
             const std::string& left_out) {
  std::vector<Weighted> all;
  add(all, own, 0, left_out);
  add(all, others, pooled, left_out);
  KVSIM_CHECK(!all.empty(), "a class without rows");
  std::sort(all.begin(), all.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  return {.low = quantile(all, kTail), .high = quantile(all, 1 - kTail)};
}

/// Winkler's score of a 90 % interval of logarithms.
double winkler(const Ends& ends, double value) {
  double out = ends.high - ends.low;
  if (value < ends.low) out += (ends.low - value) / kTail;
  if (value > ends.high) out += (value - ends.high) / kTail;
  return out;
}

ResidualClass class_of(const ResidualKey& key, const Documents& own, const Documents& others,
                       double pooled) {
  ResidualClass out{.key = key};
  const Ends ends = ends_of(own, others, pooled, "");
  out.low = std::exp(ends.low);
  out.high = std::exp(ends.high);
  out.documents = static_cast<std::int64_t>(own.size());
  for (const auto& [name, values] : own) {
    out.rows += std::ssize(values);
    if (own.size() + others.size() < 2) continue;
    const Ends of_others = ends_of(own, others, pooled, name);
    double inside = 0;
    double score = 0;
    for (const double value : values) {
      inside += value >= of_others.low && value <= of_others.high ? 1 : 0;
      score += winkler(of_others, value);
    }
    const auto n = static_cast<double>(values.size() * own.size());
    out.coverage += inside / n;
    out.interval_score += score / n;
  }
  return out;
}

}  // namespace

std::vector<ResidualClass> fit_residuals(const std::vector<ResidualRow>& rows) {
  KVSIM_CHECK(!rows.empty(), "no rows to fit residuals to");
  std::map<ResidualKey, Documents> classes;
  for (const ResidualRow& row : rows) {
    classes[row.key][row.document].push_back(row.log_ratio);
    ResidualKey all = row.key;
    all.stack.clear();
    classes[all][row.document].push_back(row.log_ratio);
  }
  std::map<ResidualKey, Documents> others;
  for (const auto& [key, own] : classes) {
    for (const ResidualRow& row : rows) {
      if (row.key.metric != key.metric || row.key.is_queued != key.is_queued ||
          own.contains(row.document)) {
        continue;
      }
      others[key][row.document].push_back(row.log_ratio);
    }
  }
  std::vector<ResidualClass> best;
  double lowest = 0;
  for (const double pooled : kPooledWeights) {
    std::vector<ResidualClass> out;
    double score = 0;
    for (const auto& [key, own] : classes) {
      out.push_back(class_of(key, own, others[key], pooled));
      score += out.back().interval_score * static_cast<double>(out.back().documents);
    }
    if (!best.empty() && score >= lowest) continue;
    best = std::move(out);
    lowest = score;
  }
  return best;
}

}  // namespace kvsim
