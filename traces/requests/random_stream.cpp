#include "traces/requests/random_stream.hpp"

#include <cmath>
#include <numbers>

#include <boost/math/special_functions/erf.hpp>

#include "models/math/counter_random.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

// Uses only double: long double differs between machines.
using Plain = boost::math::policies::policy<boost::math::policies::promote_double<false>>;

/// FNV-1a, 64 bits (Fowler, Noll, Vo): std::hash differs between libraries.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

}  // namespace

RandomStream::RandomStream(std::uint64_t seed, std::string_view name)
    : engine_{counter_key({seed, hash_of(name)})} {}

double RandomStream::uniform() { return (static_cast<double>(engine_() >> 12U) + 0.5) * 0x1p-52; }

double RandomStream::normal() { return normal_quantile(uniform()); }

double RandomStream::exponential() { return -std::log(uniform()); }

double RandomStream::gamma(double shape) {
  KVSIM_CHECK(shape > 0.0, "gamma of shape {}", shape);
  // Below 1 the method needs one more step; Gamma(a) is Gamma(a + 1) times U^(1/a).
  const double boost = shape < 1.0 ? std::pow(uniform(), 1.0 / shape) : 1.0;
  const double d = (shape < 1.0 ? shape + 1.0 : shape) - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal();
    const double v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
    if (v <= 0.0) continue;
    if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v * boost / shape;
    }
  }
}

double RandomStream::weibull(double shape) {
  KVSIM_CHECK(shape > 0.0, "Weibull of shape {}", shape);
  return std::exp(std::log(exponential()) / shape - std::lgamma(1.0 + 1.0 / shape));
}

std::int64_t RandomStream::below(std::int64_t n) {
  KVSIM_CHECK(n >= 1, "a number below {}", n);
  const auto drawn = static_cast<std::int64_t>(uniform() * static_cast<double>(n));
  return drawn < n ? drawn : n - 1;
}

double normal_cdf(double x) { return 0.5 * boost::math::erfc(-x / std::numbers::sqrt2, Plain{}); }

double normal_quantile(double p) {
  KVSIM_CHECK(p > 0.0 && p < 1.0, "quantile at {}", p);
  return -std::numbers::sqrt2 * boost::math::erfc_inv(2.0 * p, Plain{});
}

}  // namespace kvsim
