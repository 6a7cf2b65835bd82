#pragma once

#include <cstdint>
#include <random>
#include <string_view>

namespace kvsim {

/// One stream of random numbers for a named component. Equal seed and name produce equal numbers on
/// any machine; draws of another component have no effect. The engine is std::mt19937_64, whose
/// output the standard defines; the distributions are implemented here, because those of standard
/// libraries differ.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);

  /// Uniform in the open interval (0, 1), with 52.5 bits.
  double uniform();
  /// Standard normal, by inversion, with one uniform number per draw.
  double normal();
  /// Exponential with mean 1.
  double exponential();
  /// Gamma with mean 1 and coefficient of variation 1 / sqrt(shape). Marsaglia and Tsang 2000 ("A
  /// simple method for generating gamma variables"), with a varying number of uniform numbers per
  /// draw.
  double gamma(double shape);
  /// Weibull with mean 1 and the given shape: E^(1/shape) / Gamma(1 + 1/shape).
  double weibull(double shape);
  /// Uniform in [0, n); `n` is at least 1.
  std::int64_t below(std::int64_t n);

 private:
  std::mt19937_64 engine_;
};

/// The distribution function of the standard normal, and its inverse on (0, 1).
[[nodiscard]] double normal_cdf(double x);
[[nodiscard]] double normal_quantile(double p);

}  // namespace kvsim
