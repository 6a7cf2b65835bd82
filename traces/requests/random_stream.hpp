#pragma once

#include <cstdint>
#include <random>
#include <string_view>

namespace kvsim {

/// One stream of random numbers of a named component: equal seed and name, equal numbers, on any
/// machine; another component's draws never move it. The engine is std::mt19937_64, whose words
/// the standard fixes; the distributions are our own, for the library's differ.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);

  /// Uniform in the open interval (0, 1): 52 bits and a half.
  double uniform();
  /// Standard normal, by inversion: one uniform a draw.
  double normal();
  /// Mean 1.
  double exponential();
  /// Mean 1, coefficient of variation 1 / sqrt(shape). Marsaglia and Tsang 2000 ("A simple method
  /// for generating gamma variables"): a varying number of uniforms a draw.
  double gamma(double shape);
  /// Mean 1, of the given shape: E^(1/shape) / Gamma(1 + 1/shape).
  double weibull(double shape);
  /// Uniform in [0, n). `n` at least 1.
  std::int64_t below(std::int64_t n);

 private:
  std::mt19937_64 engine_;
};

/// The distribution function of the standard normal, and its inverse on (0, 1).
[[nodiscard]] double normal_cdf(double x);
[[nodiscard]] double normal_quantile(double p);

}  // namespace kvsim
