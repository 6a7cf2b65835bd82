#include "models/math/merging/zip_merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kMinLogit = 1e-3;  // below it the ratio of logits is meaningless
constexpr double kMinFactor = 0.5;
constexpr double kMaxFactor = 2.0;

}  // namespace

ZipMerged zip_merge(std::span<const ZipMember> members, const ZipRule& rule,
                    std::span<const double> q, double scale) {
  KVSIM_CHECK(!members.empty(), "a merge of no members");
  const std::size_t d = members.front().key.size();
  double highest = -std::numeric_limits<double>::infinity();
  for (const ZipMember& each : members) {
    KVSIM_CHECK(each.key.size() == d && each.value.size() == d, "rows of {} and {}, expected {}",
                each.key.size(), each.value.size(), d);
    KVSIM_CHECK(each.votes > 0, "{} votes", each.votes);
    highest = std::max(highest, std::log(each.votes) + each.log_score);
  }
  ZipMerged merged{.key = std::vector<double>(d, 0.0),
                   .value = std::vector<double>(d, 0.0),
                   .votes = 0,
                   .log_score = 0,
                   .scale_low = std::numeric_limits<double>::infinity(),
                   .scale_high = 0,
                   .fell_back = false};
  double sum = 0;
  double mean_logit = 0;
  for (const ZipMember& each : members) {
    const double w = std::exp(std::log(each.votes) + each.log_score - highest);
    sum += w;
    mean_logit += w * each.log_score;
    merged.votes += each.votes;
    merged.scale_low = std::min(merged.scale_low, each.scale_low);
    merged.scale_high = std::max(merged.scale_high, each.scale_high);
    for (std::size_t j = 0; j < d; ++j) {
      merged.key[j] += w * static_cast<double>(each.key[j]);
      merged.value[j] += w * static_cast<double>(each.value[j]);
    }
  }
  mean_logit /= sum;
  for (std::size_t j = 0; j < d; ++j) {
    merged.key[j] /= sum;
    merged.value[j] /= sum;
  }
  // The mean of s is at most its mean weighted by s, so the logit never exceeds mean_logit.
  const double logit = highest + std::log(sum) - std::log(merged.votes);
  merged.log_score = logit;

  const auto count_exactly = [&] {
    merged.votes *= std::exp(logit - mean_logit);
    merged.log_score = mean_logit;
  };
  const auto stretch = [&](double factor) {
    for (double& x : merged.key) x *= factor;
    const double low = merged.scale_low * factor;
    const double high = merged.scale_high * factor;
    merged.scale_low = std::min(low, high);
    merged.scale_high = std::max(low, high);
  };
  const double factor = logit / mean_logit;
  switch (rule.key) {
    case ZipKey::kZip:
      if (std::isfinite(factor)) {
        stretch(factor);
      } else {
        merged.fell_back = true;
        count_exactly();
      }
      break;
    case ZipKey::kGuarded: {
      const bool tame =
          std::abs(mean_logit) >= kMinLogit && factor >= kMinFactor && factor <= kMaxFactor &&
          (!rule.bound_product ||
           (merged.scale_low * factor >= kMinFactor && merged.scale_high * factor <= kMaxFactor));
      if (tame) {
        stretch(factor);
      } else {
        merged.fell_back = true;
        count_exactly();
      }
      break;
    }
    case ZipKey::kRealVotes:
      count_exactly();
      break;
    case ZipKey::kAdditive: {
      KVSIM_CHECK(q.size() == d, "a query of {} elements, expected {}", q.size(), d);
      double norm = 0;
      for (const double x : q) norm += x * x;
      if (norm > 0) {  // for a zero query all keys have equal logits: nothing to correct
        for (std::size_t j = 0; j < d; ++j) {
          merged.key[j] += (logit - mean_logit) * q[j] / (scale * norm);
        }
      }
      break;
    }
    case ZipKey::kConvex:
      break;
  }
  return merged;
}

}  // namespace kvsim
