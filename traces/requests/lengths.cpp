#include "traces/requests/lengths.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr double kZ99 = 2.3263478740408408;  // standard normal's 99th percentile
constexpr std::int64_t kTabled = 1 << 16;    // Zipf ranges up to this size are tabulated

/// Integral of x^-s from 1 to x, of which the hat of the rejection sampler is made.
double power_integral(double x, double s) {
  const double log_x = std::log(x);
  const double t = (1.0 - s) * log_x;
  // (x^(1-s) - 1) / (1-s), smooth at s = 1
  return std::abs(t) > 1e-8 ? std::expm1(t) / (1.0 - s) : log_x * (1.0 + 0.5 * t);
}
double power_integral_inverse(double y, double s) {
  const double t = y * (1.0 - s);
  return std::exp(std::abs(t) > 1e-8 ? std::log1p(t) / (1.0 - s) : y * (1.0 - 0.5 * t));
}

std::int32_t rounded(double x, std::int32_t low, std::int32_t high) {
  return static_cast<std::int32_t>(
      std::clamp(std::floor(x + 0.5), static_cast<double>(low), static_cast<double>(high)));
}

}  // namespace

double max_p99_per_mean() { return std::exp(0.5 * kZ99 * kZ99); }

LognormalShape lognormal_of(double mean, double p99) {
  KVSIM_CHECK(mean > 0.0 && p99 >= mean, "lognormal of mean {} and p99 {}", mean, p99);
  // ln mean = mu + sigma^2/2 and ln p99 = mu + z sigma, so sigma^2/2 - z sigma + ln(p99/mean) = 0
  const double root = kZ99 * kZ99 - 2.0 * std::log(p99 / mean);
  KVSIM_CHECK(root >= -1e-12, "no lognormal of mean {} has p99 {}", mean, p99);
  const double sigma = kZ99 - std::sqrt(std::max(root, 0.0));
  return {.mu = std::log(mean) - 0.5 * sigma * sigma, .sigma = sigma};
}

LengthSampler::LengthSampler(const LengthSpec& spec) : spec_{spec} {
  KVSIM_CHECK(spec.low >= 0 && spec.low <= spec.high && spec.high <= kMaxTokens,
              "lengths in [{}, {}]", spec.low, spec.high);
  const auto accumulate = [this](double weight) {
    cumulative_.push_back((cumulative_.empty() ? 0.0 : cumulative_.back()) + weight);
  };
  switch (spec.kind) {
    case LengthKind::kFixed:
    case LengthKind::kUniform:
      break;
    case LengthKind::kLognormal:
      KVSIM_CHECK(spec.sigma >= 0.0 && std::isfinite(spec.mu), "lognormal of sigma {}", spec.sigma);
      if (spec.sigma > 0.0) {
        // From half a token below to half above, so that the bounds are as likely as rounding makes
        // them.
        const auto at = [&](double x) {
          return x <= 0.0 ? 0.0 : normal_cdf((std::log(x) - spec.mu) / spec.sigma);
        };
        from_ = at(spec.low - 0.5);
        up_to_ = at(spec.high + 0.5);
        KVSIM_CHECK(up_to_ > from_, "a lognormal that has nothing in [{}, {}]", spec.low,
                    spec.high);
      }
      break;
    case LengthKind::kZipf:
      KVSIM_CHECK(spec.low >= 1 && spec.exponent >= 0.0, "Zipf from {}, exponent {}", spec.low,
                  spec.exponent);
      KVSIM_CHECK(static_cast<std::int64_t>(spec.high) - spec.low < kMaxTokens, "Zipf range");
      if (spec.high - spec.low < kTabled) {
        for (std::int32_t n = spec.low; n <= spec.high; ++n) {
          accumulate(std::pow(static_cast<double>(n), -spec.exponent));
        }
      }
      break;
    case LengthKind::kEmpirical:
      KVSIM_CHECK(!spec.values.empty(), "an empirical distribution of no values");
      KVSIM_CHECK(spec.weights.empty() || spec.weights.size() == spec.values.size(),
                  "{} weights for {} values", spec.weights.size(), spec.values.size());
      for (const double weight : spec.weights) {
        KVSIM_CHECK(weight >= 0.0 && std::isfinite(weight), "a weight of {}", weight);
        accumulate(weight);
      }
      KVSIM_CHECK(spec.weights.empty() || cumulative_.back() > 0.0, "weights that are all 0");
      break;
  }
}

std::size_t LengthSampler::tabled(double u) const {
  const auto found =
      std::upper_bound(cumulative_.begin(), cumulative_.end(), u * cumulative_.back());
  // If a product rounds up to the whole mass, use the last value with nonzero mass.
  const auto last = std::lower_bound(cumulative_.begin(), cumulative_.end(), cumulative_.back());
  return static_cast<std::size_t>(std::min(found, last) - cumulative_.begin());
}

bool LengthSampler::invertible() const {
  return spec_.kind != LengthKind::kZipf || !cumulative_.empty();
}

std::int32_t LengthSampler::at(double u) const {
  const auto share_of = [&](std::int64_t count) {
    return std::min(static_cast<std::int64_t>(u * static_cast<double>(count)), count - 1);
  };
  switch (spec_.kind) {
    case LengthKind::kFixed:
      return spec_.low;
    case LengthKind::kUniform:
      return spec_.low +
             static_cast<std::int32_t>(share_of(std::int64_t{spec_.high} - spec_.low + 1));
    case LengthKind::kLognormal: {
      if (spec_.sigma == 0.0) return rounded(std::exp(spec_.mu), spec_.low, spec_.high);
      const double p = std::clamp(from_ + u * (up_to_ - from_), 0x1p-1000, 1.0 - 0x1p-53);
      return rounded(std::exp(spec_.mu + spec_.sigma * normal_quantile(p)), spec_.low, spec_.high);
    }
    case LengthKind::kZipf:
      KVSIM_CHECK(!cumulative_.empty(), "the inverse of a Zipf of up to {} lengths", spec_.high);
      return spec_.low + static_cast<std::int32_t>(tabled(u));
    case LengthKind::kEmpirical: {
      const std::size_t at = spec_.weights.empty()
                                 ? static_cast<std::size_t>(share_of(std::ssize(spec_.values)))
                                 : tabled(u);
      return spec_.values[at];
    }
  }
  return spec_.low;
}

std::int32_t LengthSampler::draw(RandomStream& stream) const {
  if (spec_.kind == LengthKind::kFixed) return spec_.low;
  if (spec_.kind == LengthKind::kUniform) {
    return spec_.low +
           static_cast<std::int32_t>(stream.below(std::int64_t{spec_.high} - spec_.low + 1));
  }
  if (spec_.kind == LengthKind::kEmpirical && spec_.weights.empty()) {
    return spec_.values[static_cast<std::size_t>(stream.below(std::ssize(spec_.values)))];
  }
  if (invertible()) return at(stream.uniform());
  // Rejection-inversion (Hörmann and Derflinger 1996): the hat is x^-s over [n-1/2, n+1/2].
  const double s = spec_.exponent;
  const double first = power_integral(spec_.low - 0.5, s);
  const double last = power_integral(spec_.high + 0.5, s);
  for (;;) {
    const double y = first + stream.uniform() * (last - first);
    const std::int32_t n = rounded(power_integral_inverse(y, s), spec_.low, spec_.high);
    // The hat's mass over n's cell, at least n^-s because x^-s is convex.
    const double cell = power_integral(n + 0.5, s) - power_integral(n - 0.5, s);
    if (stream.uniform() * cell <= std::pow(static_cast<double>(n), -s)) return n;
  }
}

double LengthSampler::mean() const {
  switch (spec_.kind) {
    case LengthKind::kFixed:
      return spec_.low;
    case LengthKind::kUniform:
      return 0.5 * (static_cast<double>(spec_.low) + spec_.high);
    case LengthKind::kLognormal: {
      if (spec_.sigma == 0.0) return rounded(std::exp(spec_.mu), spec_.low, spec_.high);
      // E[X; a < X < b] = exp(mu + sigma^2/2) (Phi(sigma - A) - Phi(sigma - B)), A = (ln a -
      // mu)/sigma
      const auto part = [&](double x) {
        return x <= 0.0 ? 1.0 : normal_cdf(spec_.sigma - (std::log(x) - spec_.mu) / spec_.sigma);
      };
      return std::exp(spec_.mu + 0.5 * spec_.sigma * spec_.sigma) *
             (part(spec_.low - 0.5) - part(spec_.high + 0.5)) / (up_to_ - from_);
    }
    case LengthKind::kZipf: {
      double mass = 0.0;
      double moment = 0.0;
      for (std::int32_t n = spec_.low; n <= spec_.high; ++n) {
        const double p = std::pow(static_cast<double>(n), -spec_.exponent);
        mass += p;
        moment += p * n;
      }
      return moment / mass;
    }
    case LengthKind::kEmpirical: {
      double mass = 0.0;
      double moment = 0.0;
      for (std::size_t i = 0; i < spec_.values.size(); ++i) {
        const double weight = spec_.weights.empty() ? 1.0 : spec_.weights[i];
        mass += weight;
        moment += weight * spec_.values[i];
      }
      return moment / mass;
    }
  }
  return spec_.low;
}

}  // namespace kvsim
